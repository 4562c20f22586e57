"""Compiled programs: all data from which an executable is made, and the files that store it."""

import errno
import json
import os
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.asm.assembler import Program
from sim.compiler.executable import (
    BufferSpec,
    Executable,
    Layout,
    Queues,
    Relocations,
    Role,
)
from sim.compiler.graph.ir import STACKED, DType, Location, Sharding, TensorType
from sim.compiler.program.arrays import RawRows, Ring, View, tiled
from sim.compiler.program.code.overlay import Overlays
from sim.compiler.program.code.reuse import Times
from sim.compiler.program.code.transfers import CODE, SCRATCH

__all__ = ["Compiled", "CoreCode", "KernelRecord", "SumRecord", "compiled_of", "load",
           "save"]

_FORMAT = 8
"""Version of the format of saved files."""


@dataclass(frozen=True)
class KernelRecord:
    """Facts about one kernel of a program, for reports.

    Attributes
    ----------
    kind : str
        Kind of the operation that the kernel computes.
    location : Location or None
        The line of the user's source that the operation comes from, if known.
    bundles : int
        Length of the kernel's code.
    cycles : int
        Predicted cycles of one execution, without waits for transfers.
    rows : int
        HBM rows that transfers move for the kernel: operands to vector memory, results to HBM.
    products : int
        Multiplications of a product or convolution in one execution, by the operation's definition;
        0 for other operations.
    vector_operations : int
        Operations of the vector unit in one execution; the unit does two in a cycle.
    waits : int
        Predicted cycles from the end of one execution to the start of the next kernel: waits for
        transfers, and starts of transfers, which hold the core.
    """

    kind: str
    location: Location | None
    bundles: int
    cycles: int
    rows: int
    products: int
    vector_operations: int
    waits: int = 0

    @property
    def predicted(self) -> int:
        """Predicted cycles from the start of one execution to the start of the next kernel."""
        return self.cycles + self.waits


@dataclass(frozen=True)
class SumRecord:
    """Facts about a sum over all devices of a pod, from which its cycles can be predicted.

    Attributes
    ----------
    vectors : int
        Number of vectors of all values that are summed.
    kernels : int
        Estimated cycles of the operations that could run during the sum.
    apart : bool
        Whether they do: the sum is written in steps.
    leads : bool
        Whether the sum leads the program's last kernel (`sim.compiler.program.launch.led`).
    """

    vectors: int
    kernels: int
    apart: bool
    leads: bool


@dataclass(frozen=True)
class CoreCode:
    """The code of one core.

    Attributes
    ----------
    overlays : Overlays
        Code and constants, as the rows of a buffer in HBM.
    scratch_rows : int
        HBM rows of the buffer for values that do not stay in vector memory.
    kernels : tuple of KernelRecord
        The core's kernels, in the order of the code.
    times : Times
        When the core uses the program's inputs and outputs.
    sums : tuple of SumRecord
        The sums over all devices of a pod, in the order of the code.
    """

    overlays: Overlays
    scratch_rows: int
    kernels: tuple[KernelRecord, ...]
    times: Times
    sums: tuple[SumRecord, ...] = ()

    def with_constants(self, constants: npt.NDArray[np.uint32]) -> "CoreCode":
        """Return a copy whose `Overlays.rows` begin with ``constants``, shape (rows, lanes)."""
        rows = np.concatenate([constants, self.overlays.rows[len(constants):]])
        return replace(self, overlays=replace(self.overlays, rows=rows))


@dataclass(frozen=True)
class Compiled:
    """A compiled program.

    Attributes
    ----------
    config : Config
        The chip for which the program was compiled.
    name : str
        Name of the program in messages.
    inputs, outputs : tuple of TensorType
        Types of the inputs and outputs. For an array that is split, this is the type of one core's
        part; for an input in the infeed, the type of a batch.
    sharding : Sharding
        How each input and output is split between two cores; None for one that is not split.
    cores : tuple of CoreCode
        The code of core 0, followed by that of core 1 if the program uses two cores.
    views : tuple of View
        For each input, the reshapes and transposes that the host applies before it tiles the array.
    packed : tuple of bool
        For each input, whether the host stores two bf16 numbers in a word.
    queues : Queues, optional
        Infeed and outfeed of a loop.
    """

    config: Config
    name: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    sharding: Sharding
    cores: tuple[CoreCode, ...]
    views: tuple[View, ...]
    packed: tuple[bool, ...]
    queues: Queues | None = None

    @property
    def overlays(self) -> Overlays:
        """Code and constants of core 0."""
        return self.cores[0].overlays

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """Kernels of core 0."""
        return self.cores[0].kernels

    def may_reuse(self, number: int, output: int) -> bool:
        """Whether output ``output`` may lie in the memory of input ``number``.

        It may if they have the same layout, and each core has read the input before it begins to
        write the output. With two cores, input and output must also be stacked, so that no core
        reads what the other core overwrites.
        """
        apart = len(self.cores) == 1 or (
            self.sharding.inputs[number] == self.sharding.outputs[output] == STACKED)
        return (apart and self._input(number) == self._output(output)
                and all(core.times.read[number] <= core.times.written[output]
                        for core in self.cores))

    def stopping(self) -> "Compiled":
        """Return a copy of the program that halts before each kernel, for `Device.profile`.

        Raises
        ------
        ValueError
            If the program uses two cores: they wait for each other, so neither can halt alone.
        """
        if len(self.cores) > 1:
            raise ValueError(f"a program that is profiled must run on one core; {self.name} runs "
                             f"on {len(self.cores)}")
        [code] = self.cores
        return replace(self, cores=(replace(code, overlays=code.overlays.stopping()),))

    def executable(self) -> Executable:
        """Return the `Executable` of this program, which a device can load and run."""
        config = self.config
        specs = [BufferSpec(f"input{number}", Role.INPUT, self._input(number))
                 for number in range(len(self.inputs))]
        specs += [BufferSpec(f"output{number}", Role.OUTPUT, self._output(number))
                  for number in range(len(self.outputs))]
        relocations: list[Relocations] = []
        for core, code in enumerate(self.cores):
            rows = code.overlays.rows
            specs.append(BufferSpec(_name(CODE, core), Role.CONSTANT,
                                    RawRows(len(rows), config.lanes), rows))
            if code.scratch_rows:
                specs.append(BufferSpec(_name(SCRATCH, core), Role.SCRATCH,
                                        RawRows(code.scratch_rows, config.lanes)))
            relocations += _relocations(code.overlays, core)
        return Executable(config, self.name, tuple(specs), _Link(self), 0, tuple(relocations),
                          self.queues)

    def _output(self, number: int) -> Layout:
        """Return the layout of output ``number``."""
        return tiled(self.outputs[number], self.config, self.sharding.outputs[number])

    def _input(self, number: int) -> Layout:
        """Return the layout of input ``number``."""
        kind, cut, view = self.inputs[number], self.sharding.inputs[number], self.views[number]
        if self.queues is None or number not in self.queues.inputs:
            return tiled(kind, self.config, cut, view, self.packed[number])
        batch = tiled(kind, self.config, None if cut is None else cut - 1, view)
        return Ring(batch, self.queues.slots, self.config.lanes)


def _name(buffer: str, core: int) -> str:
    """Return the executable's name for a core's buffer.

    Buffers of inputs and outputs, which the cores share, keep the name ``buffer``.
    """
    return f"{buffer}{core}" if core and buffer in (CODE, SCRATCH) else buffer


class _Names(Mapping[str, int]):
    """Maps the names that one core's code has for buffers to the buffers' byte addresses in HBM."""

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
    """Makes each core's resident program from the addresses of the buffers."""

    compiled: Compiled

    def __call__(self, addresses: Mapping[str, int]) -> Mapping[int, Program]:
        return {core: code.overlays.program(_Names(addresses, core))
                for core, code in enumerate(self.compiled.cores)}


def compiled_of(executable: Executable) -> Compiled:
    """Return the compiled program that an executable was made from.

    Raises
    ------
    TypeError
        If the executable was not made by `sim.compiler.program.driver.compile_graph` or
        `Compiled.executable`.
    """
    if not isinstance(executable.link, _Link):
        raise TypeError(f"executable must come from compile_graph, unlike {executable.name!r}")
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
    """Write a compiled program to a file; on failure, no partial file remains.

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
        "packed": compiled.packed,
        "queues": compiled.queues and asdict(compiled.queues),
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
        If the file is not a compiled program, or has another format version.
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
    queues = told["queues"] and Queues(
        told["queues"]["steps"], told["queues"]["slots"], tuple(told["queues"]["inputs"]),
        tuple(told["queues"]["outputs"]))
    return Compiled(Config(**told["config"]), told["name"], _read_types(told["inputs"]),
                    _read_types(told["outputs"]), Sharding(inputs, outputs), cores,
                    tuple(tuple((kind, tuple(numbers)) for kind, numbers in view)
                          for view in told["views"]), tuple(told["packed"]), queues)


def _describe(code: CoreCode) -> dict[str, Any]:
    overlays = code.overlays
    return {"relocations": overlays.relocations, "address": overlays.address,
            "segments": overlays.segments, "offset": overlays.offset, "stamps": overlays.stamps,
            "row_numbers": overlays.row_numbers, "scratch_rows": code.scratch_rows,
            "kernels": list(map(asdict, code.kernels)), "times": asdict(code.times),
            "sums": list(map(asdict, code.sums))}


def _read_core(told: dict[str, Any], rows: Any, start: Any) -> CoreCode:
    address = tuple((bundle, immediate) for bundle, immediate in told["address"])
    overlays = Overlays(rows, tuple((word, buffer) for word, buffer in told["relocations"]), start,
                        address, told["segments"], told["offset"], tuple(told["stamps"]),
                        tuple((word, buffer) for word, buffer in told["row_numbers"]))
    return CoreCode(overlays, told["scratch_rows"],
                    tuple(_read_kernel(kernel) for kernel in told["kernels"]),
                    Times(*(tuple(told["times"][name]) for name in ("read", "written"))),
                    tuple(SumRecord(**item) for item in told["sums"]))


def _types(types: Sequence[TensorType]) -> list[tuple[tuple[int, ...], str]]:
    return [(kind.shape, kind.dtype.value) for kind in types]


def _read_types(told: Sequence[tuple[Sequence[int], str]]) -> tuple[TensorType, ...]:
    return tuple(TensorType(tuple(shape), DType(dtype)) for shape, dtype in told)


def _read_kernel(told: dict[str, Any]) -> KernelRecord:
    location = told.pop("location")
    return KernelRecord(location=Location(**location) if location else None, **told)
