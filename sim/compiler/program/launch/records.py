"""Records of a program's kernels, with the waits between them."""

from dataclasses import replace
from itertools import pairwise

from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.places.clock import Clock

__all__ = ["Records"]


class Records:
    """Collects the records of kernels, in the order of the code.

    Parameters
    ----------
    clock : Clock
        Predicts the cycles that the core loses between two kernels.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: list[KernelRecord] = []
        self._lost: list[int] = []

    def add(self, record: KernelRecord) -> None:
        """Append the record of a kernel whose code is written now."""
        self._records.append(record)
        self._lost.append(self._clock.lost)

    def finish(self) -> tuple[KernelRecord, ...]:
        """Return the records of all kernels, with the predicted waits after each."""
        return tuple(replace(record, waits=after - before) for record, (before, after) in zip(
            self._records, pairwise([*self._lost, self._clock.lost]), strict=True))
