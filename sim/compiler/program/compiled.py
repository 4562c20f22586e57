"""A compiled program: everything that an executable is made from, as arrays and plain values."""

import json
import os
import pathlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hdl.config import Config
from sim.asm.assembler import Program
from sim.compiler.executable import BufferSpec, Executable, Relocations, Role
from sim.compiler.graph.ir import DType, Location, TensorType
from sim.compiler.program.arrays import RawRows, tiled
from sim.compiler.program.overlay import CODE, Overlays
from sim.compiler.program.places import SCRATCH

__all__ = ["Compiled", "KernelRecord", "compiled_of", "load", "save"]

_FORMAT = 1
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
    """

    kind: str
    location: Location | None
    bundles: int
    cycles: int
    rows: int
    products: int


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
        Types of its inputs and outputs.
    overlays : Overlays
        Code and constants.
    scratch_rows : int
        Rows of HBM for values that do not stay in vector memory.
    kernels : tuple of KernelRecord
        Its kernels in the order of the code.
    """

    config: Config
    name: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    overlays: Overlays
    scratch_rows: int
    kernels: tuple[KernelRecord, ...]

    def stopping(self) -> "Compiled":
        """The same program, which stops before each kernel, for `Device.profile`."""
        return replace(self, overlays=self.overlays.stopping())

    def executable(self) -> Executable:
        """The executable: buffers, and what links them."""
        config = self.config
        specs = [BufferSpec(f"{role.value}{number}", role, tiled(kind, config))
                 for role, types in ((Role.INPUT, self.inputs), (Role.OUTPUT, self.outputs))
                 for number, kind in enumerate(types)]
        rows = self.overlays.rows
        specs.append(BufferSpec(CODE, Role.CONSTANT, RawRows(len(rows), config.lanes), rows))
        if self.scratch_rows:
            specs.append(BufferSpec(SCRATCH, Role.SCRATCH,
                                    RawRows(self.scratch_rows, config.lanes)))
        return Executable(config, self.name, tuple(specs), _Link(self), 0,
                          _relocations(self.overlays))


@dataclass(frozen=True)
class _Link:
    """Makes the program that loads the first segment."""

    compiled: Compiled

    def __call__(self, addresses: Mapping[str, int]) -> Mapping[int, Program]:
        return {0: self.compiled.overlays.program(addresses[CODE])}


def compiled_of(executable: Executable) -> Compiled:
    """What an executable was made from.

    Raises
    ------
    TypeError
        If `compile_graph` did not make it.
    """
    if not isinstance(executable.link, _Link):
        raise TypeError(f"executable must come from compile_graph, not be {executable.name!r}")
    return executable.link.compiled


def _relocations(overlays: Overlays) -> tuple[Relocations, ...]:
    words: dict[str, list[int]] = {}
    for word, buffer in overlays.relocations:
        words.setdefault(buffer, []).append(word)
    return tuple(Relocations(CODE, np.array(places, np.int64), buffer)
                 for buffer, places in words.items())


def save(compiled: Compiled, path: pathlib.Path) -> None:
    """Write a compiled program to a file, as a whole or not at all.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    overlays = compiled.overlays
    description = {
        "format": _FORMAT, "config": asdict(compiled.config), "name": compiled.name,
        "inputs": _types(compiled.inputs), "outputs": _types(compiled.outputs),
        "relocations": overlays.relocations, "address": overlays.address,
        "segments": overlays.segments, "offset": overlays.offset,
        "stamps": overlays.stamps,
        "scratch_rows": compiled.scratch_rows, "kernels": list(map(asdict, compiled.kernels)),
    }
    text = np.frombuffer(json.dumps(description).encode(), np.uint8)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with partial.open("wb") as file:
            np.savez(file, description=text, rows=overlays.rows, start=overlays.start)
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
            rows, start = parts["rows"], parts["start"]
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} must be a compiled program: {error}") from error
    if told.get("format") != _FORMAT:
        raise ValueError(f"{path} must be of format {_FORMAT}, not {told.get('format')!r}")
    low, high = (tuple(place) for place in told["address"])
    overlays = Overlays(rows, tuple((word, buffer) for word, buffer in told["relocations"]), start,
                        (low, high), told["segments"], told["offset"],
                        tuple(told["stamps"]))
    return Compiled(Config(**told["config"]), told["name"], _read_types(told["inputs"]),
                    _read_types(told["outputs"]), overlays, told["scratch_rows"],
                    tuple(_read_kernel(kernel) for kernel in told["kernels"]))


def _types(types: Sequence[TensorType]) -> list[tuple[tuple[int, ...], str]]:
    return [(kind.shape, kind.dtype.value) for kind in types]


def _read_types(told: Sequence[tuple[Sequence[int], str]]) -> tuple[TensorType, ...]:
    return tuple(TensorType(tuple(shape), DType(dtype)) for shape, dtype in told)


def _read_kernel(told: dict[str, Any]) -> KernelRecord:
    location = told.pop("location")
    return KernelRecord(location=Location(**location) if location else None, **told)
