"""A compiled program: everything that an executable is made from, as arrays and plain values."""

import errno
import json
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hdl.config import Config
from sim.asm.assembler import Program
from sim.compiler.executable import BufferSpec, Executable, Relocations, Role
from sim.compiler.graph.ir import DType, Location, Sharding, TensorType
from sim.compiler.program.arrays import RawRows, View, tiled
from sim.compiler.program.code.overlay import Overlays
from sim.compiler.program.code.transfers import CODE, SCRATCH

__all__ = ["Compiled", "CoreCode", "KernelRecord", "compiled_of", "load", "save"]

_FORMAT = 4
"""Version of saved files."""


@dataclass(frozen=True)
class KernelRecord:
    """A kernel of a program, for reports.

    Attributes
    ----------
    kind : str
        Kind of the operation.
    location : Location or None
        The user's source.
    bundles : int
        Length of its code.
    cycles : int
        Predicted cycles of an execution.
    rows : int
        Rows that transfers move for it: operands to vector memory, results to HBM.
    products : int
        Multiplications of an execution in the array that the operation asks for.
    vector_operations : int
        Operations of the vector unit in an execution; it does two in a cycle.
    """

    kind: str
    location: Location | None
    bundles: int
    cycles: int
    rows: int
    products: int
    vector_operations: int


@dataclass(frozen=True)
class CoreCode:
    """Code of a core.

    Attributes
    ----------
    overlays : Overlays
        Code and constants.
    scratch_rows : int
        Rows of HBM for values that do not stay in vector memory.
    kernels : tuple of KernelRecord
        Its kernels in the order of the code.
    """

    overlays: Overlays
    scratch_rows: int
    kernels: tuple[KernelRecord, ...]


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes
    ----------
    config : Config
        The chip that it is for.
    name : str
        What it computes, for messages.
    inputs, outputs : tuple of TensorType
        Types of its inputs and outputs, of the part of a core.
    sharding : Sharding
        How inputs and outputs are cut, if there are two cores.
    cores : tuple of CoreCode
        The code of core 0, and of core 1 if it takes part.
    views : tuple of View
        What the host does to each input before it is cut into vectors.
    """

    config: Config
    name: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    sharding: Sharding
    cores: tuple[CoreCode, ...]
    views: tuple[View, ...]

    @property
    def overlays(self) -> Overlays:
        """Code and constants of core 0."""
        return self.cores[0].overlays

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """Kernels of core 0."""
        return self.cores[0].kernels

    def stopping(self) -> "Compiled":
        """The same program, which stops before each kernel, for `Device.profile`.

        Raises
        ------
        ValueError
            If it runs on two cores, which wait for each other.
        """
        if len(self.cores) > 1:
            raise ValueError(f"a program that is profiled must run on one core; {self.name} runs "
                             f"on {len(self.cores)}")
        [code] = self.cores
        return replace(self, cores=(replace(code, overlays=code.overlays.stopping()),))

    def executable(self) -> Executable:
        """The executable: buffers, and what links them."""
        config, sharding = self.config, self.sharding
        plain: tuple[View, ...] = ((),) * len(self.outputs)
        specs = [BufferSpec(f"{role.value}{number}", role, tiled(kind, config, dimension, view))
                 for role, types, cuts, views in (
                     (Role.INPUT, self.inputs, sharding.inputs, self.views),
                     (Role.OUTPUT, self.outputs, sharding.outputs, plain))
                 for number, (kind, dimension, view) in enumerate(
                     zip(types, cuts, views, strict=True))]
        relocations: list[Relocations] = []
        for core, code in enumerate(self.cores):
            rows = code.overlays.rows
            specs.append(BufferSpec(_name(CODE, core), Role.CONSTANT,
                                    RawRows(len(rows), config.lanes), rows))
            if code.scratch_rows:
                specs.append(BufferSpec(_name(SCRATCH, core), Role.SCRATCH,
                                        RawRows(code.scratch_rows, config.lanes)))
            relocations += _relocations(code.overlays, core)
        return Executable(config, self.name, tuple(specs), _Link(self), 0, tuple(relocations))


def _name(buffer: str, core: int) -> str:
    """The name of a core's buffer; inputs and outputs have one for all cores."""
    return f"{buffer}{core}" if core and buffer in (CODE, SCRATCH) else buffer


class _Names(Mapping[str, int]):
    """The addresses of a core's buffers, by the names that its code uses."""

    def __init__(self, addresses: Mapping[str, int], core: int) -> None:
        self._addresses, self._core = addresses, core

    def __getitem__(self, buffer: str) -> int:
        return self._addresses[_name(buffer, self._core)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)


@dataclass(frozen=True)
class _Link:
    """Makes the programs that load the first segments."""

    compiled: Compiled

    def __call__(self, addresses: Mapping[str, int]) -> Mapping[int, Program]:
        return {core: code.overlays.program(_Names(addresses, core))
                for core, code in enumerate(self.compiled.cores)}


def compiled_of(executable: Executable) -> Compiled:
    """The compiled program that an executable was made from.

    Raises
    ------
    TypeError
        If `compile_graph` did not make it.
    """
    if not isinstance(executable.link, _Link):
        raise TypeError(f"executable must come from compile_graph, not be {executable.name!r}")
    return executable.link.compiled


def _relocations(overlays: Overlays, core: int) -> list[Relocations]:
    words: dict[str, list[int]] = {}
    for word, buffer in overlays.relocations:
        words.setdefault(_name(buffer, core), []).append(word)
    found = [Relocations(_name(CODE, core), np.array(places, np.int64), buffer, core)
             for buffer, places in words.items()]
    if overlays.segments > 1:
        found += [Relocations(_name(CODE, core), np.array([word], np.int64), _name(buffer, core),
                              core, rows=True) for word, buffer in overlays.row_numbers]
    return found


def save(compiled: Compiled, path: pathlib.Path) -> None:
    """Write a compiled program to a file, as a whole or not at all.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    description = {
        "format": _FORMAT, "config": asdict(compiled.config), "name": compiled.name,
        "inputs": _types(compiled.inputs), "outputs": _types(compiled.outputs),
        "cuts": (compiled.sharding.inputs, compiled.sharding.outputs),
        "cores": [_describe(code) for code in compiled.cores], "views": compiled.views,
    }
    arrays = {f"{what}{core}": getattr(code.overlays, what)
              for core, code in enumerate(compiled.cores) for what in ("rows", "start")}
    text = np.frombuffer(json.dumps(description).encode(), np.uint8)
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "folder must exist", str(path.parent))
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with partial.open("wb") as file:
            np.savez(file, description=text, allow_pickle=False, **arrays)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: pathlib.Path) -> Compiled:
    """Read a compiled program from a file that `save` wrote.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it holds something else, or another version wrote it.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
            told = json.loads(parts["description"].tobytes())
            arrays = {name: parts[name] for name in parts.files if name != "description"}
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} must be a compiled program: {error}") from error
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        raise ValueError(f"{path} must be a compiled program of format {_FORMAT}")
    try:
        return _read(told, arrays)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} must be a compiled program: {error!r}") from error


def _read(told: dict[str, Any], arrays: Mapping[str, Any]) -> Compiled:
    inputs, outputs = map(tuple, told["cuts"])
    cores = tuple(_read_core(code, arrays[f"rows{core}"], arrays[f"start{core}"])
                  for core, code in enumerate(told["cores"]))
    return Compiled(Config(**told["config"]), told["name"], _read_types(told["inputs"]),
                    _read_types(told["outputs"]), Sharding(inputs, outputs), cores,
                    tuple(tuple((kind, tuple(numbers)) for kind, numbers in view)
                          for view in told["views"]))


def _describe(code: CoreCode) -> dict[str, Any]:
    overlays = code.overlays
    return {"relocations": overlays.relocations, "address": overlays.address,
            "segments": overlays.segments, "offset": overlays.offset, "stamps": overlays.stamps,
            "row_numbers": overlays.row_numbers, "scratch_rows": code.scratch_rows,
            "kernels": list(map(asdict, code.kernels))}


def _read_core(told: dict[str, Any], rows: Any, start: Any) -> CoreCode:
    address = tuple((bundle, immediate) for bundle, immediate in told["address"])
    overlays = Overlays(rows, tuple((word, buffer) for word, buffer in told["relocations"]), start,
                        address, told["segments"], told["offset"], tuple(told["stamps"]),
                        tuple((word, buffer) for word, buffer in told["row_numbers"]))
    return CoreCode(overlays, told["scratch_rows"],
                    tuple(_read_kernel(kernel) for kernel in told["kernels"]))


def _types(types: Sequence[TensorType]) -> list[tuple[tuple[int, ...], str]]:
    return [(kind.shape, kind.dtype.value) for kind in types]


def _read_types(told: Sequence[tuple[Sequence[int], str]]) -> tuple[TensorType, ...]:
    return tuple(TensorType(tuple(shape), DType(dtype)) for shape, dtype in told)


def _read_kernel(told: dict[str, Any]) -> KernelRecord:
    location = told.pop("location")
    return KernelRecord(location=Location(**location) if location else None, **told)
