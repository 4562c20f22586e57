"""Runs the kernel of one operation alone, and checks that it leaves all else unchanged.

    [sum] = run(operation, [a, b])
    check(operation, [a, b])                    # against the reference semantics, exactly

Operands and results lie in vector memory, with unused vectors, the guards, between them. Padding
and all other words hold bit patterns of NaN. After the run, operands, constants and guards must be
unchanged, the array must be empty, and the semaphores must be zero.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from golden.core import GoldenCore
from golden.dma import Descriptor
from hdl.config import Config
from hdl.dma.format import DmaSpace
from hdl.isa import BUNDLE_WORDS, Fault, Slot
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.interpret import evaluate
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.kernels.lowering import Choice, Place, choose
from sim.compiler.machine import VmemBuffer, emit
from sim.compiler.machine.emit import Code
from sim.compiler.program.code.encode import FIRST_IMMEDIATE_WORD, encode
from sim.compiler.program.code.reserved import SCALAR_READ
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.launch.kernel import KernelLowering, lower
from sim.compiler.tiling import Tiling, standard
from sim.compiler.words import from_words, to_words
from systolith import Device

__all__ = ["CONFIG", "Kernel", "build", "build_as", "check", "execute", "run", "run_golden"]

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]

CONFIG = Config.preset("tiny", imem_bundles=8192, vmem_bytes=64 << 10, smem_words=1024)
"""`tiny`, with memories that are large enough for a kernel of any kind."""
LIMIT = 20_000_000
"""Maximum length of a kernel's run: bundles on the golden core, cycles on a device."""
_GUARD = 2
"""Number of vectors in the guard between two buffers."""
_PADDING = 0x7FC0BAD0
"""Word that fills padding: a bit pattern of NaN."""
_GARBAGE = 0xFFB00000
"""Bit pattern of a NaN. Before a run, words of vector memory without other contents hold this plus
their numbers."""


@dataclass
class Kernel:
    """A kernel and the contents of vector memory that it needs.

    Attributes
    ----------
    operation : Operation
    config : Config
    places : dict of Value to Place
        Buffers and tilings of operands and results.
    constants : list of (VmemBuffer, words)
        Constants that must be in vector memory.
    code : Code
        The code of the kernel, for its length and for listings.
    bundles : list of int
        The program: the code, then a halt.
    """

    operation: Operation
    config: Config
    places: dict[Value, Place] = field(default_factory=dict)
    constants: list[tuple[VmemBuffer, Words]] = field(default_factory=list)
    code: Code | None = None
    bundles: list[int] = field(default_factory=list)

    def memory(self, arrays: Sequence[Array]) -> tuple[Words, Words]:
        """Returns vector memory before a run, and which of its words the kernel may change."""
        config = self.config
        shape = (config.vmem_vectors, config.sublanes, config.lanes)
        words = (_GARBAGE + np.arange(np.prod(shape)) % 0xFFFF).astype(np.uint32).reshape(shape)
        free = np.zeros(shape, bool)
        free[self._end:] = True
        for value, array in zip(self.operation.operands, arrays, strict=True):
            self._put(words, self.places[value].buffer,
                      self.places[value].tiling.pack(to_words(array), _PADDING))
        for buffer, constant in self.constants:
            self._put(words, buffer, constant)
        for buffer in self._writable:
            free[buffer.address:buffer.address + buffer.vectors] = True
        return words, free

    def results(self, vmem: Words) -> list[Array]:
        """Reads the results from the contents of vector memory after a run."""
        found = []
        for value in self.operation.results:
            place = self.places[value]
            buffer = place.buffer
            vectors = vmem[buffer.address:buffer.address + buffer.vectors]
            _check_replication(place.tiling, vectors)
            found.append(from_words(place.tiling.unpack(vectors), array_dtype(value.dtype)))
        return found

    _end: int = _GUARD
    _writable: list[VmemBuffer] = field(default_factory=list)

    def allocate(self, name: str, vectors: int, writable: bool = True) -> VmemBuffer:
        """Allocates the next free vectors, and a guard after them."""
        if not self.is_free(vectors):
            raise MemoryError(f"{self.operation.kind} needs more than "
                              f"{self.config.vmem_vectors} vectors of vector memory")
        buffer = VmemBuffer(f"{name}{self._end}", self._end, vectors)
        self._end += vectors + _GUARD
        if writable:
            self._writable.append(buffer)
        return buffer

    def is_free(self, vectors: int) -> bool:
        """Whether this number of vectors can still be allocated."""
        return self._end + vectors + _GUARD <= self.config.vmem_vectors

    @staticmethod
    def _put(words: Words, buffer: VmemBuffer, data: Words) -> None:
        words[buffer.address:buffer.address + buffer.vectors] = data


def _check_replication(tiling: Tiling, vectors: Words) -> None:
    """Check that all lanes have equal elements if the tiling has no dimension along the lanes.

    The same holds for sublanes.
    """
    rows = min(tiling.rows, tiling.sublanes)
    if tiling.lane_dimension is None:
        part = vectors[:, :rows] if tiling.row_tiles == 1 else vectors[:, :1]
        assert (part == part[:, :, :1]).all(), "lanes of a result must be equal"
    if tiling.sublane_dimension is None:
        columns = min(tiling.columns, tiling.lanes) if tiling.lane_tiles == 1 else 1
        part = vectors[:, :, :columns]
        assert (part == part[:, :1]).all(), "sublanes of a result must be equal"


def build(operation: Operation, config: Config = CONFIG,
          tilings: Sequence[Tiling] | None = None) -> Kernel:
    """Lower an operation and emit its code.

    Parameters
    ----------
    operation : Operation
        The operation to lower.
    config : Config
        The chip.
    tilings : sequence of Tiling, optional
        Tilings of the operands before the operation; the tilings that the rule chooses depend on
        them. By default the standard ones.
    """
    given = tuple(tilings) if tilings is not None else tuple(
        standard(value.shape, config) for value in operation.operands)
    return build_as(operation, choose(operation, given, config), config)


def build_as(operation: Operation, choice: Choice, config: Config = CONFIG) -> Kernel:
    """Like `build`, but with given tilings of operands and results."""
    kernel = Kernel(operation, config)
    for what, values, tilings in (("operand", operation.operands, choice.operands),
                                  ("result", operation.results, choice.results)):
        for value, tiling in zip(values, tilings, strict=True):
            if value in kernel.places:
                assert kernel.places[value].tiling == tiling
                continue
            buffer = kernel.allocate(what, tiling.vectors, what == "result")
            kernel.places[value] = Place(buffer, tiling)

    def allocate(name: str, vectors: int) -> VmemBuffer:
        return kernel.allocate(name, vectors, name != "constant")

    at = KernelLowering(config, kernel.places, allocate,
                        lambda buffer, words: kernel.constants.append((buffer, words)))
    at.is_free = kernel.is_free
    lower(operation, at)
    kernel.code = emit(at.builder.finish(), config)
    kernel.bundles = _bundles(kernel.code)
    return kernel


def _bundles(code: Code) -> list[int]:
    words, fixups = encode([*code.bundles, [(Slot.S1, "halt", ())]])
    for bundle, immediate, label in fixups:
        words[bundle, FIRST_IMMEDIATE_WORD + immediate] = code.labels[label]  # type: ignore[index]
    data, size = words.astype("<u4").tobytes(), 4 * BUNDLE_WORDS
    return [int.from_bytes(data[at:at + size], "little") for at in range(0, len(data), size)]


def run(operation: Operation, arrays: Sequence[Array], config: Config = CONFIG,
        tilings: Sequence[Tiling] | None = None, device: Device | None = None) -> list[Array]:
    """Lower an operation, run it, and return its results.

    Parameters
    ----------
    operation : Operation
        The operation to run.
    arrays : sequence of array
        Its operands.
    config, tilings
        As in `build`.
    device : Device, optional
        The device that runs the kernel, with the same configuration; by default the golden core.

    Raises
    ------
    AssertionError
        If the kernel has a fault, writes where it must not, or does not leave the array empty and
        the semaphores zero.
    """
    return execute(build(operation, config, tilings), arrays, device)


def execute(kernel: Kernel, arrays: Sequence[Array], device: Device | None = None) -> list[Array]:
    """Like `run`, for a kernel that `build` has returned."""
    before, free = kernel.memory(arrays)
    assert len(kernel.bundles) <= kernel.config.imem_bundles, "the kernel must fit"
    after = run_golden(kernel, before) if device is None else _on_device(kernel, before, device)
    changed = np.argwhere((before != after) & ~free)
    assert not len(changed), f"vectors {sorted(set(changed[:, 0].tolist()))} must not change"
    return kernel.results(after)


def _scalar_words(kernel: Kernel) -> Words:
    """Contents of scalar memory: the descriptor that loads elements of vectors, and garbage."""
    memory = ScalarMemory(kernel.config)
    words = np.full(kernel.config.smem_words, 0xDEADBEEF, np.uint32)
    words[memory.to_window:memory.first_pair] = Descriptor(
        DmaSpace.VMEM, DmaSpace.SMEM, kernel.config.sublanes,
        destination_address=memory.window.start, semaphore=SCALAR_READ, signal=True).pack()
    return words


def run_golden(kernel: Kernel, vmem: Words) -> Words:
    """Run a kernel on the golden core, with ``vmem`` in vector memory; return the new contents."""
    core = GoldenCore(kernel.config)
    core.vmem[:] = vmem
    core.smem[:] = _scalar_words(kernel)
    core.load_program(kernel.bundles)
    core.start()
    core.run(LIMIT)
    core.forget_bundles()
    assert core.fault is Fault.NONE, f"{core.fault!r} at bundle {core.pc}"
    assert not core.running, f"bundle {core.pc} must not wait" if core.waiting else "endless"
    assert (core.held, core.loaded) == (0, 0), "the array must be empty at the end"
    assert not core.semaphores.any(), "semaphores must be 0 at the end"
    return core.vmem.copy()


def _on_device(kernel: Kernel, vmem: Words, device: Device) -> Words:
    device.reset()
    device.write_vmem(0, 0, vmem)
    device.write_smem(0, 0, _scalar_words(kernel))
    device.run({0: kernel.bundles}, cycles=LIMIT)
    assert not device.read_semaphores(0).any(), "semaphores must be 0 at the end"
    return device.read_vmem(0, 0, len(vmem))


def check(operation: Operation, arrays: Sequence[Array], *,
          same: Callable[[Array, Array], bool] | None = None, **options: Any) -> list[Array]:
    """Run an operation and compare with `sim.compiler.graph.interpret`.

    Parameters
    ----------
    operation, arrays
        As in `run`.
    same : callable, optional
        Tells whether a result and its reference agree. By default, they must be equal, where all
        NaN are equal, and a subnormal equals a zero.
    options
        As in `run`.
    """
    results = run(operation, arrays, **options)
    for result, wanted in zip(results, evaluate(operation, list(arrays)), strict=True):
        assert result.shape == wanted.shape
        assert result.dtype == wanted.dtype
        agree = same or _equal
        assert agree(result, wanted), f"{operation.kind}: {result!r} must be {wanted!r}"
    return results


def _equal(result: Array, wanted: Array) -> bool:
    if result.dtype.kind in "iub":
        return bool(np.array_equal(result, wanted))
    got, want = result.astype(np.float64), wanted.astype(np.float64)
    tiny = float(np.finfo(np.float32).tiny)
    got, want = (np.where(np.abs(x) < tiny, 0.0, x) for x in (got, want))
    return bool(np.array_equal(got, want, equal_nan=True))
