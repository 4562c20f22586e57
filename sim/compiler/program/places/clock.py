"""Predicts the cycles at which transfers and kernels run, in code without branches."""

import sys
from collections import deque
from dataclasses import dataclass

from hdl.config import Config
from hdl.dma.interface import QUEUE_DEPTH, CheckTimes
from hdl.isa import BUNDLE_PITCH

__all__ = ["Clock", "Event"]

_LATENCY = 50
"""Cycles from a transfer's start to its first row."""


@dataclass(frozen=True)
class Event:
    """The start of transfers, or a wait for one.

    Attributes
    ----------
    bundle : int
        Number of the bundle that follows the code of the start or wait.
    rows, transfers : int
        Number of rows that are moved in all, and number of transfers that start.
    number : int
        Number of the transfer to wait for; 0 for a start.
    """

    bundle: int
    rows: int = 0
    transfers: int = 0
    number: int = 0


class Clock:
    """Predicts when transfers complete.

    The predictions affect the order of transfers, and are in reports (`KernelRecord.waits`).

    A transfer moves one row in each cycle, and begins when the transfer before it ends. The DMA
    engine's queue has room for `QUEUE_DEPTH` transfers; while it is full, an operation that starts
    another transfer holds the core.

    Attributes
    ----------
    lost : int
        Cycles so far in which the core waits for transfers, or is held by the start of one.
    """

    def __init__(self, config: Config) -> None:
        self._start = CheckTimes.of(config).total()
        self._row = max(1, config.lanes // BUNDLE_PITCH)
        self._now = self.lost = 0
        self._last = self._loaded = 0
        self._number = 0
        self._ends: deque[tuple[int, int]] = deque(maxlen=QUEUE_DEPTH)

    def copy(self) -> "Clock":
        """Return a clock that predicts the same, and that runs independently of this one."""
        made = Clock.__new__(Clock)
        made.__dict__.update(self.__dict__)
        made._ends = self._ends.copy()
        return made

    def is_like(self, other: "Clock") -> bool:
        """Return whether this clock will predict the same waits as ``other`` from now on.

        This holds as long as `run` gets no negative number, which would take a clock back.
        """
        return self._pending() == other._pending()

    def _pending(self) -> tuple[int, int, int, list[tuple[int, int]]]:
        """Return what predictions depend on, relative to the present."""
        now = self._now
        return (max(self._last - now, _LATENCY), max(self._loaded - now, 0), self._number,
                [(number, max(end - now, 0)) for number, end in self._ends])

    @property
    def hold(self) -> int:
        """Return for how many cycles the start of a transfer would hold the core now."""
        if len(self._ends) < QUEUE_DEPTH:
            return 0
        return max(0, self._ends[0][1] - self._now)

    def start(self, rows: int, transfers: int) -> None:
        """Account for the start of ``transfers`` transfers, which move ``rows`` rows in all."""
        for _ in range(transfers):
            self._lose(self.hold + self._start)
            self._last = max(self._last, self._now + _LATENCY) + rows // transfers
            self._number += 1
            self._ends.append((self._number, self._last))

    def load(self, rows: int, *, ahead: bool) -> None:
        """Account for the load of a segment: ``rows`` rows of code, and its scalar image, a row.

        In each cycle, as many words are written as a bundle has.

        If the segment is loaded ``ahead``, a call of `arrive` has to follow. If not, the core waits
        for the load.
        """
        for part in (rows, 1):
            self._lose(self.hold + self._start)
            self._last = max(self._last, self._now + _LATENCY) + part * self._row
            # No wait for a numbered transfer is for this one.
            self._ends.append((sys.maxsize, self._last))
        self._loaded = self._last
        if not ahead:
            self.arrive()

    def arrive(self) -> None:
        """Account for a wait for the latest load of a segment."""
        self._lose(max(0, self._loaded - self._now))

    def wait(self, number: int) -> None:
        """Account for a wait for transfer ``number``, counted from 1, and all before it."""
        ends = [end - self._now for at, end in self._ends if at <= number]
        self._lose(max(0, *ends, 0))

    def _lose(self, cycles: int) -> None:
        self._now += cycles
        self.lost += cycles

    def run(self, cycles: int) -> None:
        """Account for a kernel that takes ``cycles`` cycles.

        A negative number corrects what was accounted for before.
        """
        self._now += cycles

    def run_to(self, cycles: int) -> None:
        """Account for kernels until the core has run for ``cycles`` cycles in all.

        Cycles in which it waited are not among them.
        """
        self._now = cycles + self.lost
