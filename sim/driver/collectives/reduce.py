"""The sum of arrays over all chips of a pod, at the rate of the links."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from golden.torus.pod import Place
from hdl.checks import instance, integer
from sim.closing import Closeable
from sim.compiler.collectives.plan import RingPlan
from sim.compiler.collectives.program import reduce_program, scalar_memory
from sim.driver.heap import Buffer
from sim.driver.pod import Pod

__all__ = ["AllReduce"]

Float32 = npt.NDArray[np.float32]


class AllReduce(Closeable):
    """Sums of arrays of fp32 over all chips of a pod, from HBM to HBM.

        with AllReduce(pod, gradient.size) as reduction:
            for x, y in numpy.ndindex(pod.shape):
                reduction.write((x, y), gradients[x, y])
            reduction.run()
            total = reduction.read((0, 0))

    Each chip gets the sum. The bits of the sum depend only on the arrays, the torus and the sizes
    of ``plan`` (`golden.torus.reduce`).

    Parameters
    ----------
    pod : Pod
        At least two chips of two cores.
    elements : int
        Number of elements of each array.
    arrays : int
        1: a chip has one array. 2: it has two, such as one for each core. The chip first adds its
        two arrays; at the end, the sum over all chips replaces both.

    Attributes
    ----------
    plan : RingPlan
        How the array is divided.
    programs : mapping of int to Program
        The program of each core, for all chips.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range, or the pod's chips do not have two
        cores.
    MemoryError
        If vector memory or HBM is too small.
    """

    def __init__(self, pod: Pod, elements: int, arrays: int = 1) -> None:
        instance("pod", pod, Pod)
        self._pod = pod
        self._elements = integer("elements", elements, 1)
        self.plan = RingPlan.of(pod.config, pod.shape, 4 * elements, arrays)
        self.programs: Mapping[int, Any] = {
            core: reduce_program(self.plan, core) for core in range(pod.config.cores)}
        self._buffers: dict[tuple[int, int], list[Buffer]] = {}
        try:
            for place in np.ndindex(pod.shape):
                self._buffers[place] = held = []
                for _ in range(arrays):
                    held.append(pod[place].allocate(self.plan.bytes))
        except BaseException:
            self.close()
            raise

    def write(self, place: Sequence[int], values: Float32, number: int = 0) -> None:
        """Write array ``number``, counted from 0, of the chip at coordinates ``place``, (x, y).

        Raises
        ------
        TypeError, ValueError
            If ``values`` is not an array of float32, or does not have ``elements`` elements; if
            ``place`` is not a pair of integers; if there is no such array.
        IndexError
            If there is no such chip.
        RuntimeError
            If the reduction or the pod is closed.
        """
        if not isinstance(values, np.ndarray) or values.dtype != np.float32:
            raise TypeError(f"values must be an array of float32, not {values!r}")
        if values.size != self._elements:
            raise ValueError(f"values must have {self._elements} elements, not {values.size}")
        found = self._place(place)
        self._pod[found].copy_in(self._buffer(found, number), values)

    def read(self, place: Sequence[int], number: int = 0) -> Float32:
        """Return array ``number`` of the chip at coordinates ``place``, of shape (elements,).

        Raises
        ------
        TypeError, ValueError, IndexError, RuntimeError
            As `write`.
        """
        found = self._place(place)
        return self._pod[found].copy_out(self._buffer(found, number), np.float32,
                                         self._elements)

    def run(self, *, cycles: int | None = None, seconds: float | None = None,
            ) -> dict[Place, dict[str, int]]:
        """Replace all arrays by their sum; return the counters of all cores, as `Pod.run`.

        The program needs semaphores that are zero, so the pod is reset first if other programs or
        signals may have changed them. It overwrites vector memory, and scalar memory from address 0
        on.

        Raises
        ------
        TypeError, ValueError, CoreFaultError, DeviceTimeoutError
            As `Pod.run`. The pod has been reset, and the arrays are undefined.
        RuntimeError
            If a program is running, or the reduction or the pod is closed. Nothing is changed.
        """
        self._prepare()
        try:
            self._write_scalars()
            return self._pod.run(self.programs, cycles=cycles, seconds=seconds)
        except BaseException:
            # Programs that go on would write HBM that `close` frees.
            self._pod.reset()
            raise

    def load(self) -> None:
        """Write scalar memory and the programs, for callers that start the programs themselves.

        As `run`, it resets the pod first if programs or signals may have changed semaphores. Close
        the reduction only after the programs have ended.

        Raises
        ------
        RuntimeError
            As `run`.
        """
        self._prepare()
        self._write_scalars()
        for place in self._buffers:
            for core, program in self.programs.items():
                self._pod[place].load(core, program)

    def _prepare(self) -> None:
        if not any(self._buffers.values()):
            raise RuntimeError("the reduction is closed")
        self._pod.prepare()

    def _write_scalars(self) -> None:
        for place, buffers in self._buffers.items():
            addresses = [buffer.address for buffer in buffers]
            for core in self.programs:
                self._pod[place].write_smem(core, 0, np.array(scalar_memory(
                    self.plan, core, place, addresses, addresses), np.uint32))

    def close(self) -> None:
        """Free the arrays; closing twice, or after the pod, does nothing."""
        for place, buffers in self._buffers.items():
            while buffers:
                buffer = buffers.pop()
                with contextlib.suppress(RuntimeError):  # the pod is closed
                    self._pod[place].free(buffer)

    def _place(self, place: Sequence[int]) -> tuple[int, int]:
        """Return the coordinates ``place`` of a chip as a tuple."""
        try:
            x, y = place
            found = integer("x", x), integer("y", y)
        except (TypeError, ValueError):
            raise TypeError(f"place must be a pair of integers, not {place!r}") from None
        if found not in self._buffers:
            raise IndexError(f"chip must be within {self._pod.shape[0]} x {self._pod.shape[1]}, "
                             f"not at {found!r}")
        return found

    def _buffer(self, place: tuple[int, int], number: int) -> Buffer:
        buffers = self._buffers[place]
        if not buffers:
            raise RuntimeError("the reduction is closed")
        return buffers[integer("number", number, 0, len(buffers) - 1)]
