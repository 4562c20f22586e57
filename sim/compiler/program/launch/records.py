"""Facts about a program's kernels, for reports, with the predicted cycles of their waits."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hdl.config import Config
from sim.compiler.program.code.segments import Load
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.places.clock import Clock, Event

__all__ = ["Records"]

_LOADED = -1
"""In an `Event`, stands for the number of the latest load of a segment."""


class Records:
    """Collects a `KernelRecord` of each kernel, for reports, in the order of the code.

    Neither the code nor its schedule depends on these records.

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

    def finish(self, linear: Linear, loads: Sequence[Load]) -> tuple[KernelRecord, ...]:
        """Return the records of all kernels, with the waits that a `Clock` predicts.

        A wait between two kernels counts for the first of them. If the innermost loop around the
        first one ends before the wait, the wait counts for no kernel, because it occurs less often
        than that kernel.

        Parameters
        ----------
        linear : Linear
            The code.
        loads : sequence of Load
            Loads of its segments. If a load follows some fraction of a kernel's bundles, it is
            predicted to start after the same fraction of the kernel's cycles.
        """
        waits, ends = [0] * len(self._records), self._ends(linear)
        for event, number, lost in self._waits(loads):
            if number >= 0 and event.bundle <= ends[number]:
                waits[number] += lost
        return tuple(replace(record, waits=wait) for (_, record), wait in zip(
            self._records, waits, strict=True))

    def lost(self, loads: Sequence[Load]) -> int:
        """Return for how many cycles the core waits with these loads, as a `Clock` predicts."""
        return sum(lost for _, _, lost in self._waits(loads))

    def _waits(self, loads: Sequence[Load]
               ) -> Iterator[tuple[Load | Event, int, int]]:
        """Yield each load and event, the number of the kernel before it or -1, and its wait."""
        clock = Clock(self._config)
        arrivals = [Event(load.end, number=_LOADED) for load in loads if load.ahead]
        found: list[Load | Event] = [*arrivals, *loads, *self._events]
        coming = deque(sorted(found, key=lambda event: event.bundle))

        def account(number: int, end: float) -> Iterator[tuple[Load | Event, int, int]]:
            while coming and coming[0].bundle <= end:
                event, before = coming.popleft(), clock.lost
                _account(clock, event)
                yield event, number, clock.lost - before

        for number, (first, record) in enumerate(self._records):
            yield from account(number - 1, first)
            done, last = 0, first + record.bundles
            while coming and coming[0].bundle <= last:
                at = record.cycles * (coming[0].bundle - first) // max(record.bundles, 1)
                clock.run(at - done)
                done = at
                yield from account(number, coming[0].bundle)
            clock.run(record.cycles - done)
        yield from account(len(self._records) - 1, math.inf)

    def _ends(self, linear: Linear) -> list[int]:
        """Return, for each kernel, the number of the last bundle of the innermost loop around it.

        For a kernel outside of all loops, it is ``len(linear.words)``.
        """
        sources, targets = linear.branches[:, 0], linear.branches[:, 2]
        return [int(sources[(targets <= first) & (sources > first + record.bundles)].min(
            initial=len(linear.words))) for first, record in self._records]


def _account(clock: Clock, event: Load | Event) -> None:
    if isinstance(event, Load):
        clock.load(event.rows, ahead=event.ahead)
    elif event.number == _LOADED:
        clock.arrive()
    elif event.number:
        clock.wait(event.number)
    else:
        clock.start(event.rows, event.transfers)
