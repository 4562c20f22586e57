"""Disk cache of compiled programs; a key is a digest of the graph and of the compiler's sources."""

import functools
import hashlib
import pathlib
import shutil
from collections.abc import Callable, Collection
from dataclasses import asdict
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from hdl import store
from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import Graph, Value
from sim.compiler.passes import dump_folder
from sim.compiler.pod import PodExecutable
from sim.compiler.program.compiled import compiled_of, load, save
from sim.compiler.program.driver import compile_graph, compile_pod, pod_arrays
from sim.verilated.cache import code_digest

__all__ = ["compile_cached", "compile_pod_cached", "digest", "source_digest"]

_Made = TypeVar("_Made")

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_SOURCES = ("sim/compiler", "sim/asm", "golden", "hdl/checks.py", "hdl/config.py",
            "hdl/core/counters.py", "hdl/core/interface.py", "hdl/dma/format.py",
            "hdl/dma/interface.py", "hdl/encoding.py", "hdl/isa.py", "hdl/link/format.py")
"""Files and folders of sources on which compiled programs depend."""


def compile_cached(graph: Graph, config: Config, *, name: str | None = None,
                   standard_inputs: bool = False, fed: Collection[int] = (),
                   outfeed: bool = False) -> Executable:
    """Compile a graph, or load the program to which an equal graph was compiled before.

    Several processes may use the cache at the same time, and may be killed while they do. If
    ``SYSTOLITH_DUMP`` is set, the graph is always compiled, so that its stages are written.

    Parameters
    ----------
    graph : Graph
        The computation; compilation changes the graph, a cache hit does not.
    config : Config
        The chip.
    name : str, optional
        Name of the program in messages; by default the graph's name.
    standard_inputs, fed, outfeed : bool, collection of int, bool
        As for `compile_graph`.

    Raises
    ------
    MemoryError
        If the program does not fit the chip's memories.
    UnsupportedError
        If operations have no kernel, or no loop can have the infeed and outfeed.
    ValueError
        If the chip has too few cores.
    """
    def compile() -> Executable:
        return compile_graph(graph, config, name=name, standard_inputs=standard_inputs, fed=fed,
                             outfeed=outfeed)

    key = digest(graph, config, name, standard_inputs, sorted(fed), outfeed)
    return _cached("program.npz", key, compile, lambda made, path: save(compiled_of(made), path),
                   lambda path: load(path).executable())


def compile_pod_cached(graph: Graph, config: Config, *, name: str | None = None,
                       standard_inputs: bool = False) -> PodExecutable:
    """Compile a graph for a pod, or load the executable of an equal graph compiled before.

    The parameters and errors are those of `compile_pod`; the cache is that of `compile_cached`.
    """
    if graph.sharding is None or graph.sharding.pod is None:
        return compile_pod(graph, config, name=name)  # raises the error

    def compile() -> PodExecutable:
        return compile_pod(graph, config, name=name, standard_inputs=standard_inputs)

    torus, title, arrays = graph.sharding.torus, name or graph.name, pod_arrays(graph)

    def write(made: PodExecutable, folder: pathlib.Path) -> None:
        folder.mkdir()
        for number, chip in enumerate(made.chips):
            save(compiled_of(chip), folder / f"chip{number}.npz")

    def read(folder: pathlib.Path) -> PodExecutable:
        chips = tuple(load(folder / f"chip{number}.npz").executable()
                      for number in range(torus.chips))
        return PodExecutable(config, title, torus, chips, *arrays)

    return _cached("pod", digest(graph, config, name, standard_inputs), compile, write, read)


def _cached(name: str, key: str, compile: Callable[[], _Made],
            write: Callable[[_Made, pathlib.Path], None],
            read: Callable[[pathlib.Path], _Made]) -> _Made:
    """Return what ``compile`` returns, or what it returned before for the same ``key``.

    ``name`` is the name of the cache's entry; ``write`` writes the entry, and ``read`` reads it.
    """
    if dump_folder() is not None:
        return compile()
    made, began = list[_Made](), False

    def make(path: pathlib.Path) -> None:
        nonlocal began
        began = True
        made.append(compile())
        write(made[0], path)

    try:
        with store.entry("programs", name, key, make) as path:
            if made:
                return made[0]
            try:
                return read(path)
            except ValueError:
                # Without this entry, a later run compiles the program again.
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
                raise
    except (OSError, ValueError):
        # A full or read-only disk, or a damaged file, must not prevent the run.
        if made:
            return made[0]
        if began:
            raise
        return compile()


def digest(graph: Graph, config: Config, name: str | None = None, *options: object) -> str:
    """Return a hexadecimal digest of everything that a compiled program depends on.

    ``name`` is the program's name, and ``options`` are the other arguments of `compile_graph`.
    """
    state = hashlib.sha256(source_digest())
    state.update(repr((asdict(config), name, graph.name, options)).encode())
    state.update(repr(graph.sharding).encode())
    _Content(state).graph(graph)
    return state.hexdigest()[:32]


@functools.cache
def source_digest(*more: str) -> bytes:
    """Return a digest of the compiler's code and of ``more``: project files or folders.

    Comments and docstrings do not change it.
    """
    state = hashlib.sha256()
    for source in (*_SOURCES, *more):
        path = _ROOT / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            state.update(f"{file.relative_to(_ROOT)} {code_digest(file)}\n".encode())
    return state.digest()


class _Content:
    """Adds a graph to a digest; values are numbered in the order of their definition."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._numbers: dict[Value, int] = {}

    def graph(self, graph: Graph) -> None:
        """Add a graph, with the regions of its operations, to the digest."""
        self._define(graph.inputs)
        for operation in graph.operations:
            self._add((operation.kind, [self._numbers[value] for value in operation.operands],
                       operation.location))
            for name, value in sorted(operation.attributes.items()):
                self._add(name)
                self._attribute(value)
            for region in operation.regions:
                self.graph(region)
            self._define(operation.results)
        self._add([self._numbers[value] for value in graph.outputs])

    def _define(self, values: Any) -> None:
        for value in values:
            self._numbers[value] = len(self._numbers)
            self._add((value.shape, value.dtype.value))

    def _attribute(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self._add((str(value.dtype), value.shape))
            self._state.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, Enum):
            self._add((type(value).__name__, value.name))
        else:
            self._add(value)

    def _add(self, value: object) -> None:
        self._state.update(repr(value).encode() + b"\0")
