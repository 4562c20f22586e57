"""What the result of a test depends on: files of the checkout, installed software, the machine.

The inputs of a test file are the modules that it imports, directly or indirectly, and the data
files in their folders. If one of these modules starts programs or opens files elsewhere, its code
does not tell its inputs: all files of the checkout are inputs then, unless `REVIEWED` lists fewer.
"""

import ast
import contextlib
import fnmatch
import functools
import hashlib
import inspect
import json
import os
import pathlib
import platform
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from importlib import metadata

from hdl.store import digest, keep_text, kept_text
from sim.verilated.cache import imported_names
from sim.verilated.toolchain import Toolchain

__all__ = ["CODE", "ENVIRONMENT", "HARMLESS", "REACHES", "REVIEWED", "ROOT", "Project",
           "features", "surroundings"]

ROOT = pathlib.Path(__file__).resolve().parents[1]

CODE = ("golden/*", "hdl/*", "sim/*", "systolith/*", "tools/*", "verif/*", "pyproject.toml")
"""Patterns of all files that a Python process of the project may import or compile."""

_CPP = ("sim/models/cpp/*",)
_COMPILER = ("sim/compiler/*", "sim/asm/*", "golden/*", "hdl/*")

REVIEWED: Mapping[str, tuple[str, ...]] = {
    # Runs Yosys in a folder of its own.
    "hdl/yosys.py": (),
    "sim/models/chip/library.py": _CPP,
    "sim/models/core/library.py": _CPP,
    "sim/models/ranks/lifeline.py": ("sim/models/ranks/*",),
    "sim/verilated/build.py": ("sim/verilated/*",),
    "sim/verilated/objects.py": ("sim/verilated/*",),
    # Only reads modules that are imported.
    "sim/verilated/cache.py": (),
    # Only asks whether the file exists.
    "sim/verilated/toolchain.py": ("pyproject.toml",),
    "sim/compiler/program/cache.py": _COMPILER,
    "sim/compiler/program/launch/kernel.py": ("sim/compiler/kernels/*",),
    # Only the names of their own files.
    "sim/jit/function.py": (),
    "verif/sim/compiler/importer/test_locations.py": (),
    "verif/sim/compiler/importer/test_refusals.py": (),
    # Digests of files, as here.
    "verif/inputs.py": (),
    # Modules from elsewhere.
    "sim/serial/spi.py": (),
    # Scripts of its callers.
    "systolith/__main__.py": (),
    # Runs git, for the commits that were measured.
    "tools/forecast/measure.py": (),
    # Programs from elsewhere, in folders of their own.
    "tools/bench/cell.py": (),
    "tools/fpga/flow.py": (),
    "tools/verilog.py": (),
    "verif/sim/kernel/test_aarch64.py": ("sim/kernel/*", "sim/verilated/*"),
    "verif/sim/kernel/test_backends.py": ("sim/kernel/*",),
    "verif/sim/kernel/test_threads.py": ("sim/verilated/*",),
    "verif/sim/pjrt/test_api.py": ("sim/pjrt/*",),
    "verif/sim/pjrt/test_queue.py": ("sim/pjrt/*",),
    # Processes that start with the modules of this one.
    "verif/system/exhaustive.py": (),
    # Python processes of the project.
    "tools/jax_table/run.py": CODE,
    "tools/jax_table/worker.py": CODE,
    "verif/benches/runner.py": CODE,
    "verif/hdl/elaboration/test_netlist.py": ("hdl/*",),
    "verif/hdl/test_store.py": CODE,
    "verif/hdl/test_yosys.py": ("hdl/*",),
    "verif/sim/apps/test_command.py": CODE,
    "verif/sim/apps/test_examples.py": (*CODE, "examples/*"),
    "verif/sim/apps/test_training_checkpoint.py": CODE,
    "verif/sim/compiler/importer/sharding/test_partition.py": CODE,
    "verif/sim/compiler/program/test_cache.py": CODE,
    "verif/sim/driver/ranks/test_ranks.py": CODE,
    "verif/sim/driver/test_serial.py": (*CODE, "README.md"),
    "verif/sim/pjrt/process.py": CODE,
    "verif/sim/trace/test_trace.py": CODE,
    "verif/sim/verilated/test_build.py": CODE,
    "verif/sim/verilated/test_cache.py": CODE,
    "verif/sim/verilated/test_objects.py": CODE,
    "verif/tools/test_verilog.py": CODE,
    # Modules whose names are constants in it.
    "verif/sim/compiler/kernels/products/test_dot.py": (),
    "verif/sim/compiler/program/test_devices.py": (),
    # Files in folders next to it.
    "verif/hdl/link/test_proofs.py": ("verif/hdl/link/*",),
    "verif/hdl/link/torus.py": ("verif/hdl/link/*", *_CPP),
    # Pages, pictures, and generated code.
    "tools/forecast/__main__.py": ("docs/scaling.*",),
    "tools/docs/isa.py": ("docs/isa.md",),
    "tools/docs/registers.py": ("docs/registers.md",),
    "tools/docs/slots.py": ("sim/asm/slots.py",),
    "tools/docs/timing.py": ("docs/core.md",),
    "tools/pictures/diagram.py": ("docs/block_diagram.svg",),
    "tools/pictures/wavefront.py": ("docs/wavefront.svg",),
    "verif/accuracy/test_elementwise.py": ("docs/accuracy.md",),
    "verif/golden/test_numerics.py": ("docs/numerics.md",),
    "verif/golden/test_vpu.py": ("docs/numerics.md",),
    "verif/hdl/vpu/test_transcendental.py": ("docs/transcendentals.md",),
    "verif/system/test_exhaustive.py": ("docs/verification.md",),
    "verif/tools/test_jax_table.py": ("docs/jax-api.md",),
}
"""Path patterns of the files that a file may open or execute, for each file whose code matches
`REACHES`. The modules that it imports are inputs, too, but are found from its code."""

HARMLESS = re.compile(r"Path\(__file__\)\.with_name\(|\{__file__\}")
"""Code that names its own folder, whose files are inputs anyway."""
REACHES = re.compile(
    r"__file__|__path__|\b(subprocess|multiprocessing|runpy|pkgutil|import_module|__import__|"
    r"spec_from_\w+|getcwd|chdir|posix_spawnp?|popen)\b|\bsys\.executable|\binspect\.get|"
    r"\bcwd\(\)|\bos\.(exec|spawn|system)")
"""Code by which a module may open files of the checkout that are not in the module's folder, or
start programs that do."""

_MODULE = re.compile(r"\b(?:golden|hdl|sim|systolith|tools|verif)(?:\.\w+)+")
_USERS_OF_JAX = {"jax", "optax", "equinox", "flax", "keras"}
_PLUGIN = "sim/pjrt/platform"
"""Module that JAX imports when it first looks for devices."""
_ALWAYS = ("pyproject.toml", "verif/conftest.py", "verif/unchanged.py")
_NO_INPUTS = ("verif/durations.json",)
"""Files that only decide in which order tests run."""

ENVIRONMENT = re.compile(
    "(SYSTOLITH|JAX|XLA|PYTHON|LD|YOWASP|COCOTB|VERILATOR|OMP|OPENBLAS|NPY|MPI|PMI|HYDRA|LC)_?.*|"
    "PATH|PYTEST_(ADDOPTS|PLUGINS|DISABLE_PLUGIN_AUTOLOAD|TIMEOUT)|LANG|TZ|CC|CXX|MPLBACKEND|"
    "YOSYS_.*|COLUMNS|NO_COLOR|FORCE_COLOR|SOURCE_DATE_EPOCH|FI_.*|C.*PATH|LIBRARY_PATH|.*FLAGS")
"""Environment variables that may change a result."""
_STORAGE = {"SYSTOLITH_BUILD", "SYSTOLITH_CACHE_GB", "PYTHONDONTWRITEBYTECODE", "MAKEFLAGS",
            "MFLAGS"}
"""Environment variables that change no result: where files are kept, how many jobs ``make`` has."""
_PROGRAMS = ("aarch64-linux-gnu-g++", "ar", "as", "bash", "g++", "git", "ld", "make", "nm", "perl",
             "qemu-aarch64", "sh")


def features() -> list[str]:
    """Lines of Linux's description of this processor: its model, and its instruction set."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})


def surroundings() -> list[object]:
    """Everything besides the checkout on which results depend; JSON can represent it."""
    variables = {name: value for name, value in os.environ.items()
                 if ENVIRONMENT.fullmatch(name) and name not in _STORAGE}
    programs = {}
    for name in _PROGRAMS:
        if path := shutil.which(name):
            status = pathlib.Path(path).stat()
            programs[name] = path, status.st_size, status.st_mtime_ns
    packages = sorted(f"{found.name} {found.version}" for found in metadata.distributions())
    try:
        tools: object = Toolchain.find().identity()
    except RuntimeError as error:
        tools = str(error)  # the tests that need them will fail
    return [sys.version, sys.flags.optimize, platform.platform(), os.cpu_count(), features(),
            variables, programs, packages, tools]


class Project:
    """The files of a checkout, as they are when the object is created, and which tests use them.

    Parameters
    ----------
    root : path, optional
        The checkout's folder.
    outside : object, optional
        What results depend on besides the checkout, such as `surroundings()`; part of every key.
    """

    def __init__(self, root: pathlib.Path = ROOT, outside: object = None) -> None:
        self._root = root
        self._outside = outside
        self._digests = {path.relative_to(root).as_posix(): _content(path)
                         for path in _files(root)}
        self._followed: dict[str, tuple[Set[str], Set[str]] | None] = {}
        self._data: defaultdict[str, set[str]] = defaultdict(set)
        for name in self._digests:
            if not name.endswith(".py") or f"{_folder(name)}/__init__.py" not in self._digests:
                owner = _folder(name)
                while owner and f"{owner}/__init__.py" not in self._digests:
                    owner = _folder(owner)
                self._data[owner].add(name)

    @property
    def files(self) -> Set[str]:
        """Names of all files."""
        return self._digests.keys()

    @property
    def tests(self) -> list[str]:
        """Names of the test files."""
        return [name for name in self._digests if fnmatch.fnmatchcase(name, "verif/*/test_*.py")]

    def key(self, test: str) -> str:
        """Return a digest of all inputs of the test file ``test``."""
        names = sorted(self.inputs(test))
        return digest([self._outside, test, [[name, self._digests[name]] for name in names]])

    def inputs(self, test: str) -> Set[str]:
        """Return the names of the files that are inputs of the test file ``test``."""
        left = {test, *_ALWAYS, *(f"{folder}/conftest.py" for folder in _folders(test))}
        left &= self._digests.keys()
        found: set[str] = set()
        leaves: set[str] = set()
        while left:
            name = left.pop()
            found.add(name)
            if not name.endswith(".py"):
                continue
            if name not in self._followed:
                self._followed[name] = self._follow(name)
            more = self._followed[name]
            if more is None:
                return self._digests.keys()
            left |= more[0] - found
            leaves |= more[1]
        return found | leaves

    def _follow(self, name: str) -> tuple[Set[str], Set[str]] | None:
        """Inputs that the module ``name`` adds, as two sets; None if all files are inputs.

        Files of the first set may add inputs themselves; files of the second set add none.
        """
        names, reaches = _read(self._root / name, _folder(name), self._digests[name])
        patterns = REVIEWED.get(name, None if reaches else ())
        if patterns is None:
            return None
        added = {other for pattern in patterns for other in self._digests
                 if fnmatch.fnmatchcase(other, pattern)}
        if set(CODE) <= set(patterns):
            return set(), added
        for folder in _folders(name):
            added |= {f"{folder}/__init__.py"} & self._digests.keys()
        for module in names:
            added |= self._modules(module)
        return added, self._data[_folder(name)] if _folder(name) else set()

    def _modules(self, name: str) -> Set[str]:
        """Files of the module ``name`` and its packages; ``name`` may be an object in a module."""
        path = name.replace(".", "/")
        found = {f"{part}{end}" for part in (path, *_folders(path))
                 for end in (".py", "/__init__.py")}
        return found & self._digests.keys()


def _content(path: pathlib.Path) -> str:
    """Digest of a file's contents."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Files of the checkout ``root``, without those that tools write."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name == ".ci" or not (
            name.startswith(".") or name.endswith(".egg-info")
            or name in ("build", "__pycache__", "sim_build"))]
        for name in names:
            path = pathlib.Path(folder, name)
            if path.is_file() and path.relative_to(root).as_posix() not in _NO_INPUTS:
                yield path


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _folders(name: str) -> Iterator[str]:
    """Yield the folders that contain ``name``, from the innermost one."""
    while name := _folder(name):
        yield name


@functools.cache
def _read(path: pathlib.Path, folder: str, _digest: str) -> tuple[Set[str], bool]:
    """Modules that a module's code names, in strings too, and whether it matches `REACHES`.

    Calls are cached. ``_digest`` is that of the file's contents, and serves only as a cache key.
    """
    text = path.read_text(encoding="utf-8")
    key = digest([text, folder, _recipe()])
    kept = kept_text("code", "names.json", key)
    if kept is None:
        reaches = bool(REACHES.search(HARMLESS.sub("", text)))
        kept = json.dumps([sorted(_names(ast.parse(text), folder)), reaches])
        with contextlib.suppress(OSError):  # the cache may be read-only
            keep_text("code", "names.json", key, kept)
    names, reaches = json.loads(kept)
    return frozenset(names), reaches


@functools.cache
def _recipe() -> list[object]:
    return [inspect.getsource(_names), inspect.getsource(imported_names), sys.version_info[:2],
            _MODULE.pattern, HARMLESS.pattern, REACHES.pattern, sorted(_USERS_OF_JAX), _PLUGIN]


def _names(tree: ast.Module, folder: str) -> set[str]:
    nodes = [*ast.walk(tree)]
    names = set(imported_names(nodes, tuple(folder.split("/"))))
    if _USERS_OF_JAX & {name.partition(".")[0] for name in names}:
        names.add(_PLUGIN)
    documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if (isinstance(node, ast.Constant) and isinstance(node.value, str)
                and id(node) not in documents):
            names.update(_MODULE.findall(node.value))
    return names
