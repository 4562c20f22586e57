"""Facts about a program's kernels, for reports, with the predicted cycles of their waits."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from hdl.config import Config
from sim.compiler.program.code.segments import Load
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.places.clock import Clock, Event

__all__ = ["Records"]


class Records:
    """Collects a `KernelRecord` of each kernel, for reports, in the order of the code.

    Neither the code nor its schedule depends on it.

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
        first one ends before the wait, it counts for no kernel, because it occurs less often.

        Parameters
        ----------
        linear : Linear
            The code.
        loads : sequence of Load
            Loads of its segments. A load within a kernel is predicted to start after the same
            fraction of the kernel's cycles as of its bundles.
        """
        clock = Clock(self._config)
        found: list[Load | Event] = [*loads, *self._events]
        coming = deque(sorted(found, key=lambda event: event.bundle))
        waits, number = [0] * len(self._records), -1
        ends = self._ends(linear)

        def account(end: int) -> None:
            """Account for loads and events up to bundle ``end``; charge waits to a kernel."""
            while coming and coming[0].bundle <= end:
                event, before = coming.popleft(), clock.lost
                _account(clock, event)
                if number >= 0 and event.bundle <= ends[number]:
                    waits[number] += clock.lost - before

        for first, record in self._records:
            account(first)
            number, done, last = number + 1, 0, first + record.bundles
            while coming and coming[0].bundle <= last:
                at = record.cycles * (coming[0].bundle - first) // max(record.bundles, 1)
                clock.run(at - done)
                done = at
                account(coming[0].bundle)
            clock.run(record.cycles - done)
        account(len(linear.words))
        return tuple(replace(record, waits=wait) for (_, record), wait in zip(
            self._records, waits, strict=True))

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
    elif event.number:
        clock.wait(event.number)
    else:
        clock.start(event.rows, event.transfers)
