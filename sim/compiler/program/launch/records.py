"""Records of a program's kernels, with the waits between them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hdl.config import Config
from sim.compiler.program.code.segments import Load
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.places.clock import Clock, Event

__all__ = ["Records"]


class Records:
    """Collects the records of kernels, in the order of the code.

    Parameters
    ----------
    config : Config
    events : list of Event
        Starts of transfers and waits for them, which other writers of the code append.
    """

    def __init__(self, config: Config, events: list[Event]) -> None:
        self._config = config
        self._events = events
        self._records: list[tuple[int, KernelRecord]] = []

    def add(self, record: KernelRecord, first: int) -> None:
        """Append the record of a kernel whose code begins at bundle ``first``."""
        self._records.append((first, record))

    def finish(self, loads: Sequence[Load]) -> tuple[KernelRecord, ...]:
        """Return the records of all kernels, with the waits that a `Clock` predicts.

        ``loads`` are those of the code's segments. A load within a kernel is predicted to start at
        the same part of its cycles as of its bundles.
        """
        clock = Clock(self._config)
        found: list[Load | Event] = [*loads, *self._events]
        coming = deque(sorted(found, key=lambda event: event.bundle))
        lost = []
        for first, record in self._records:
            while coming and coming[0].bundle <= first:
                _account(clock, coming.popleft())
            lost.append(clock.lost)
            done = 0
            while coming and coming[0].bundle <= first + record.bundles:
                event = coming.popleft()
                at = record.cycles * (event.bundle - first) // max(record.bundles, 1)
                clock.run(at - done)
                done = at
                _account(clock, event)
            clock.run(record.cycles - done)
        while coming:
            _account(clock, coming.popleft())
        return tuple(replace(record, waits=after - before) for (_, record), (before, after) in zip(
            self._records, pairwise([*lost, clock.lost]), strict=True))


def _account(clock: Clock, event: Load | Event) -> None:
    if isinstance(event, Load):
        clock.load(event.rows, ahead=event.ahead)
    elif event.number:
        clock.wait(event.number)
    else:
        clock.start(event.rows, event.transfers)
