"""Builds verilated models as shared libraries, once for equal inputs."""

import json
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

from hdl.checks import integer
from hdl.store import digest, keep
from sim.verilated.classes import MACROS, Classes, joined_file, verilate
from sim.verilated.objects import (
    compile_units,
    model_headers,
    model_units,
    recipe_text,
    run_tool,
    runtime_objects,
    shared_objects,
)
from sim.verilated.toolchain import SPLIT_FLAGS, Toolchain

__all__ = ["build_library", "build_model"]

_CPP = pathlib.Path(__file__).resolve().parent / "cpp"
_GLUE = ("export.hpp", "model.cpp", "model.hpp", "pool.cpp", "pool.hpp")
_LIBRARY = "model.so"
_TOP_NAME = "model"

_FILE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_MODULE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
_PORT = re.compile(r"^ *VL_(IN|OUT)(?:8|16|64|W)?\(&(\w+),(\d+),(\d+)(?:,\d+)?\);$", re.MULTILINE)
_INOUT = re.compile(r"^ *VL_INOUT\w*\(&(\w+),", re.MULTILINE)

_SHALLOW = ("--comp-limit-parens", "12")
"""Arguments for Verilator that split deeply nested expressions, for the fastest build.

When GCC combines bytes by ``|``, ``&`` or ``^``, it copies both operands, so its time and memory
grow with the square of the nesting. One OR of 120 bytes takes a quarter of a second and 0.16 GB.
"""

_VERSION_SCRIPT = "{ global: systolith_*; local: *; };\n"
"""Linker script: exports ``systolith_*`` only, so that models never share a Verilator class."""


def build_model(top: str, verilog: Mapping[str, str], *, cpp: Mapping[str, str] | None = None,
                hierarchical: Sequence[str] = (), waivers: str = "", optimise: bool | None = True,
                threads: int = 1, trace: bool = False) -> pathlib.Path:
    """Returns the shared library of module ``top``; builds it unless one of equal inputs exists.

    The inputs are the sources, the options, the versions of the tools and, if the compiler targets
    the machine that it runs on, that machine. Concurrent callers, in this process or others, wait
    for each other. A build that was killed is repeated by the next call.

    Parameters
    ----------
    top : str
        Name of the top module.
    verilog : mapping of str to str
        Sources by file name, or by module name (to which ``.v`` is added).
    cpp : mapping of str to str
        C++ files of the library by file name; files that end in ``.cpp`` are compiled. They can
        include each other, and three headers. ``Vmodel__Dpi.h`` declares the functions that the
        Verilog imports. ``Vmodel.h`` declares the verilated class, and ``model.hpp`` what exported
        functions need to use the model. All instances of the model share the files' static
        variables. A file that includes none of the three headers is compiled without the model's
        macros, and once for all models that contain it. The others are compiled together as one
        file, so no two of them may define the same C++ name.
    hierarchical : sequence of str
        Modules to verilate separately, once for all instances. A module that contains another one
        comes after it.
    waivers : str
        Statements of a Verilator configuration file. All warnings are errors, except those that a
        ``lint_off`` here names.
    optimise : bool or None
        True for a fast model, False for a faster build. None for the fastest build of the verilated
        class, if the model will run for only a few thousand cycles. Files of ``cpp`` that include
        none of the three headers are as fast with None as with True: tests of kernels then compile
        little else, but test the kernels' optimised code.
    threads : int
        Number of threads of the verilated class.
    trace : bool
        Whether the model can write waveforms.

    Returns
    -------
    pathlib.Path
        The library, for `sim.verilated.model.Model`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.
    RuntimeError
        If a tool is missing or rejects a source; the message has the last lines of its output.
    """
    recipe = _Recipe(top, {name if name.endswith((".v", ".sv")) else f"{name}.v": text
                           for name, text in verilog.items()},
                     dict(cpp or {}), hierarchical, waivers, optimise, threads, trace)
    recipe.check()
    tools = Toolchain.find()
    folder = keep("models", top, recipe.key(tools), lambda folder: _build(folder, tools, recipe))
    return folder / _LIBRARY


def build_library(name: str, cpp: Mapping[str, str]) -> pathlib.Path:
    """Returns a shared library of C++ files; builds it unless one of equal inputs exists.

    Parameters
    ----------
    name : str
        Name of the library: letters, digits, ``_`` and ``.``, the first a letter or ``_``.
    cpp : mapping of str to str
        Contents of files by file name, which has the same characters as ``name``. Files whose names
        end in ``.cpp`` are compiled. Functions whose names begin with ``systolith_`` are exported.

    Raises
    ------
    ValueError
        If a name is not as described.
    RuntimeError
        If a tool is missing or rejects a source; the message has the last lines of its output.
    """
    for given in (name, *cpp):
        if not _FILE_NAME.fullmatch(given):
            raise ValueError(f"library or source must have a plain file name, not {given!r}")
    tools = Toolchain.find()

    def make(folder: pathlib.Path) -> None:
        folder.mkdir()
        for file, text in cpp.items():
            (folder / file).write_text(text)
        (folder / "exports.map").write_text(_VERSION_SCRIPT)
        run_tool([*tools.cxx, *tools.cxx_flags, "-shared", "-o", f"{name}.so",
                  *(file for file in cpp if file.endswith(".cpp")),
                  "-Wl,--version-script=exports.map"], folder, tools.environment(),
                 folder / "build.log")

    key = digest([name, dict(cpp), recipe_text(), tools.identity()])
    return keep("libraries", name, key, make) / f"{name}.so"


@dataclass(frozen=True)
class _Recipe:
    """The arguments of `build_model`; ``verilog`` has file names only, no module names."""

    top: str
    verilog: dict[str, str]
    cpp: dict[str, str]
    hierarchical: Sequence[str]
    waivers: str
    optimise: bool | None
    threads: int
    trace: bool

    def check(self) -> None:
        """Checks the types and values of all fields."""
        for name in (self.top, *self.hierarchical):
            if not isinstance(name, str) or not _MODULE_NAME.fullmatch(name):
                raise ValueError(f"module must be a Verilog identifier, not {name!r}")
        if isinstance(self.hierarchical, str):
            raise TypeError("hierarchical must be a sequence of modules, not "
                            f"{self.hierarchical!r}")
        if _TOP_NAME in self.hierarchical:
            raise ValueError("hierarchical module must have another name, not "
                             f"{_TOP_NAME!r}: the top module's class has that name")
        if self.top in self.hierarchical:
            raise ValueError(f"hierarchical module must be below the top module {self.top!r}")
        if not isinstance(self.waivers, str):
            raise TypeError(f"waivers must be text, not {self.waivers!r}")
        integer("threads", self.threads, 1)
        self._check_files()

    def _check_files(self) -> None:
        for name, text in (*self.verilog.items(), *self.cpp.items()):
            if not _FILE_NAME.fullmatch(name):
                raise ValueError(f"source must have a plain file name, not {name!r}")
            if not isinstance(text, str):
                raise TypeError(f"source {name} must be text, not {text!r}")
        for name in self.cpp:
            if not name.endswith((".cpp", ".hpp", ".h")) or name in _GLUE:
                raise ValueError("C++ file must end in .cpp, .hpp or .h and not be one of the "
                                 f"model's own, not {name!r}")

    @property
    def all_cpp(self) -> dict[str, str]:
        """All C++ files, the model's own included."""
        return {name: (_CPP / name).read_text() for name in _GLUE} | self.cpp

    def key(self, tools: Toolchain) -> str:
        """A digest of everything that the library depends on."""
        # A list, because the order of the sources matters to Verilator.
        content = asdict(self) | {"verilog": list(self.verilog.items()), "cpp": self.all_cpp}
        return digest([content, recipe_text(), tools.identity(),
                       tools.class_optimisation(self.optimise)])


def _build(folder: pathlib.Path, tools: Toolchain, recipe: _Recipe) -> None:
    """Builds a model in the new ``folder``, and leaves its sources, log and library there."""
    folder.mkdir()
    cpp = recipe.all_cpp
    for name, text in (*recipe.verilog.items(), *cpp.items()):
        (folder / name).write_text(text)
    (folder / "exports.map").write_text(_VERSION_SCRIPT)
    obj, log = folder / "obj", folder / "build.log"
    (folder / "model.vlt").write_text("\n".join([
        "`verilator_config", *(f'hier_block -module "{name}"' for name in recipe.hierarchical),
        recipe.waivers, ""]))
    verilate(folder, recipe.top, "Vmodel", recipe.hierarchical, [
        "-Wall", *tools.verilator_flags, *(_SHALLOW if recipe.optimise is None else ()),
        *(SPLIT_FLAGS if recipe.optimise is not True else ()),
        *(["--trace-vcd"] if recipe.trace else [])], ["model.vlt", *recipe.verilog], tools,
        top_flags=["--threads", str(recipe.threads)])
    (folder / "ports.inc").write_text(_ports((obj / "Vmodel.h").read_text()))

    traced = int(recipe.trace)
    defines = [*MACROS, f"-DVM_TRACE={traced}", f"-DVM_TRACE_VCD={traced}"]
    classes = Classes(obj, "Vmodel", recipe.optimise)
    units = [name for name in cpp if name.endswith(".cpp")]
    parts = classes.parts(model_units(units, cpp))
    flags = {part: [*tools.flags, *defines, *tools.class_optimisation(
        recipe.optimise if part == "fast" else None)] for part in ("fast", "slow")}
    # Only in builds without full optimisation does reading the headers take a large part of the
    # time. Another machine would need precompiled headers of its own, which few models would use.
    precompile = recipe.optimise is not True and tools.march == "native"
    headers = {part: model_headers(flags[part], tools, log) if precompile else ()
               for part in parts}
    joined = [(joined_file(obj / f"{part}.cpp", names), obj / f"{part}.o",
               [*flags[part], f"-DSYSTOLITH_THREADS={recipe.threads}", *headers[part],
                *tools.include_flags, f"-I{folder}", f"-I{obj}"])
              for part, names in parts.items()]

    def compile_block(name: str) -> list[pathlib.Path]:
        block = Classes(obj / f"V{name}", f"V{name}", recipe.optimise)
        return [block.compile(part, names, flags[part], headers[part], tools, log)
                for part, names in block.parts([f"{name}.cpp"]).items()]

    # The class of a large model takes as long as everything else, so it begins first.
    with ThreadPoolExecutor(1) as pool:
        compiled = pool.submit(compile_units, joined, tools, log)
        blocks = [target for name in recipe.hierarchical for target in compile_block(name)]
        light = recipe.cpp if recipe.optimise is False else ()
        shared = shared_objects(units, cpp, tools, log, light)
        # A model spends hardly any time in them: what it often calls is in Verilator's headers.
        runtime = runtime_objects(classes.listed("GLOBAL_FAST", "GLOBAL_SLOW"),
                                  [*tools.flags, "-Og", *MACROS], tools, log)
        compiled.result()
    objects = [*(target for _, target, _ in joined), *blocks, *shared.values(), *runtime]
    run_tool([*tools.cxx, "-shared", "-pthread", "-o", _LIBRARY, *map(str, objects),
              "-Wl,--version-script=exports.map", "-Wl,-Bsymbolic", "-Wl,-z,defs"],
             folder, tools.environment(), log)
    shutil.rmtree(obj)


def _ports(header: str) -> str:
    """C++ text with a line ``PORT(...)`` for each port that the class in ``header`` declares.

    Raises
    ------
    RuntimeError
        If a port is bidirectional.
    """
    for name in _INOUT.findall(header):
        raise RuntimeError(f"port {_plain_name(name)} must be an input or an output, not inout")
    return "".join(
        f'PORT({json.dumps(_plain_name(name))}, {name}, {int(high) - int(low) + 1}, '
        f"{int(direction == 'IN')})\n"
        for direction, name, high, low in _PORT.findall(header))


def _plain_name(name: str) -> str:
    """The Verilog name of a member of a verilated class.

    Verilator replaces each character that C++ does not allow, and the second of two underscores, by
    ``__0`` and two hexadecimal digits. It puts ``__SYM__`` before a C++ keyword.
    """
    return re.sub("__0([0-9A-Fa-f]{2})", lambda match: chr(int(match[1], 16)),
                  name.removeprefix("__SYM__"))
