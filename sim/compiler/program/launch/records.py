"""Facts about a program's kernels, for reports, with the predicted cycles of their waits."""

from collections.abc import Sequence
from dataclasses import replace

from hdl.config import Config
from sim.compiler.program.code.segments import Load
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.launch.timeline import Timeline
from sim.compiler.program.places.clock import Event

__all__ = ["Records"]


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
        self._timeline: Timeline | None = None

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
        for bundle, number, lost in self._made(loads).waits():
            if number >= 0 and bundle <= ends[number]:
                waits[number] += lost
        return tuple(replace(record, waits=wait) for (_, record), wait in zip(
            self._records, waits, strict=True))

    def added(self, loads: Sequence[Load], number: int, place: int | None) -> int:
        """Return for how many more cycles the core waits if a load starts elsewhere.

        The number is negative if it waits for fewer cycles. Call this after all code is written.

        Parameters
        ----------
        loads : sequence of Load
            Loads of the segments.
        number : int
            Number of the load, in ``loads``, that is changed.
        place : int, optional
            The load starts before this bundle; without it, there is no such load.
        """
        return self._made(loads).added(number, place)

    def _made(self, loads: Sequence[Load]) -> Timeline:
        # From one call to the next, a few loads move.
        known = [] if self._timeline is None else self._timeline.loads
        moved = [] if known == loads else [
            number for number, (old, new) in enumerate(zip(known, loads, strict=False))
            if old != new]
        if self._timeline is None or len(known) != len(loads) or any(
                replace(known[number], bundle=loads[number].bundle) != loads[number]
                for number in moved):
            self._timeline = Timeline(self._config, self._records, self._events, list(loads))
        else:
            for number in moved:
                self._timeline.move(number, loads[number].bundle)
        return self._timeline

    def _ends(self, linear: Linear) -> list[int]:
        """Return, for each kernel, the number of the last bundle of the innermost loop around it.

        For a kernel outside of all loops, it is ``len(linear.words)``.
        """
        sources, targets = linear.branches[:, 0], linear.branches[:, 2]
        return [int(sources[(targets <= first) & (sources > first + record.bundles)].min(
            initial=len(linear.words))) for first, record in self._records]
