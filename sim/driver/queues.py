"""The host's part of infeed and outfeed: writes batches, and reads results, while a loop runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.compiler.executable import Executable
from sim.compiler.program.arrays import Ring
from sim.compiler.program.code.reserved import FED
from sim.compiler.program.code.scalars import ScalarMemory
from sim.driver.backend import Backend

__all__ = ["Batches", "Outfeed", "QueueHost", "check_array"]

Array = npt.NDArray[Any]
Batches = Iterable[Sequence[Array]]
"""Batches for the infeed. Each batch is a sequence with an array for each input in the infeed."""
Outfeed = Callable[[int, Sequence[Array | None]], object]
"""Function that is called as ``outfeed(n, arrays)`` for each iteration ``n`` of a loop, from 0 on.
``arrays`` has one entry for each output of the executable: the array that this iteration wrote, or
None if the output is not in the outfeed."""


class QueueHost:
    """Fills the infeed and empties the outfeed of an executable while it runs (docs/compiler.md).

    Parameters
    ----------
    executable : Executable
        The executable; its ``queues`` are not None.
    backend : Backend
        The chip.
    addresses : mapping of str to int
        Byte address of each of the executable's buffers in HBM, by name.
    cores : sequence of int
        The cores that run the executable.
    batches : iterable, optional
        Batches for the infeed.
    outfeed : callable, optional
        Called once for each iteration of the executable's loop, in order.
    """

    def __init__(self, executable: Executable, backend: Backend,
                 addresses: Mapping[str, int], cores: Sequence[int],
                 batches: Batches | None, outfeed: Outfeed | None) -> None:
        assert executable.queues is not None
        self._queues, self._infeed = executable.queues, executable.infeed
        self._outputs = [(spec, number in self._queues.outputs)
                         for number, spec in enumerate(executable.outputs)]
        self._name = executable.name
        self._backend, self._cores = backend, cores
        self._first = {name: address // executable.config.row_bytes
                       for name, address in addresses.items()}
        self._batches = iter(() if batches is None else batches)
        self._outfeed = outfeed
        self._word = ScalarMemory(executable.config).iterations
        self._written = self._read = 0
        for core in cores:
            backend.write_smem(core, self._word, np.zeros(1, np.uint32))

    def work(self) -> bool:
        """Pass on the results of new iterations, then write batches to the free slots of HBM.

        Return whether a batch was written.

        Raises
        ------
        TypeError, ValueError
            If a batch has arrays of wrong shapes or types, or there are too few batches.
        """
        done = min(int(self._backend.read_smem(core, self._word, 1)[0]) for core in self._cores)
        self._show(done)
        first = self._written
        if self._infeed:
            while self._written < min(done + self._queues.slots, self._queues.steps):
                self._write(next(self._batches, None))
        return self._written > first

    def finish(self) -> None:
        """Pass on the results of the last iterations, after the program has ended."""
        self._show(self._queues.steps)

    def _show(self, done: int) -> None:
        """Call the outfeed's function for each iteration below ``done`` that is not shown yet."""
        if self._outfeed is None or done == self._read:
            return
        arrays = [spec.layout.unpack(self._backend.read_hbm(
            self._first[spec.name], spec.layout.rows)) if stacked else None
            for spec, stacked in self._outputs]
        while self._read < done:
            step, self._read = self._read, self._read + 1
            self._outfeed(step, [None if array is None else np.array(array[step])
                                 for array in arrays])

    def _write(self, batch: Sequence[Array] | None) -> None:
        """Write a batch to its slot of HBM, and add 1 to the cores' semaphore for batches.

        ``batch`` is None if the infeed has no more batches, which is an error.
        """
        if batch is None:
            raise ValueError(f"infeed of {self._name} must have {self._queues.steps} batches, not "
                             f"{self._written}")
        if len(batch) != len(self._infeed):
            raise ValueError(f"a batch of {self._name} must be {len(self._infeed)} arrays, not "
                             f"{len(batch)}")
        for spec, array in zip(self._infeed, batch, strict=True):
            assert isinstance(spec.layout, Ring)
            check_array(spec.name, array, spec.layout.batch.shape, spec.layout.dtype)
        for spec, array in zip(self._infeed, batch, strict=True):
            assert isinstance(spec.layout, Ring)
            slot, first = self._written % self._queues.slots, self._first[spec.name]
            for place, rows in spec.layout.parts(array, slot):
                with self._backend.write_hbm(first + place, len(rows)) as memory:
                    memory[:] = rows
        self._written += 1
        for core in self._cores:
            self._backend.signal(core, FED, 1)


def check_array(name: str, array: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Check the type and shape of an array for the buffer ``name``.

    Raises
    ------
    TypeError, ValueError
        If the type or the shape is wrong.
    """
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a numpy array, not {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must be of dtype {dtype}, not {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} must be of shape {shape!r}, not {array.shape!r}")
