"""Predicts a core's waits for transfers, and how they change if the load of a segment moves."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from hdl.config import Config
from sim.compiler.program.code.segments import Load
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.places.clock import Clock, Event

__all__ = ["Timeline"]

_Key = tuple[int, int, int]
"""Bundle of an event, one of the kinds below, and the event's number among those of its kind.

The order of the keys is the order in which a core comes to the events."""

_ARRIVAL, _LOAD, _EVENT = range(3)


class Timeline:
    """The loads of a program's segments, and its other events, in order, with their waits.

    Parameters
    ----------
    config : Config
        The chip.
    kernels : sequence of (int, KernelRecord)
        The program's kernels, in order. The number is that of a kernel's first bundle.
    events : sequence of Event
        Starts of transfers, and waits for them.
    loads : list of Load
        Loads of segments.
    """

    def __init__(self, config: Config, kernels: Sequence[tuple[int, KernelRecord]],
                 events: Sequence[Event], loads: list[Load]) -> None:
        self.loads = loads
        self._kernels = kernels
        self._events = events
        self._lasts = list(accumulate((first + record.bundles for first, record in kernels), max))
        self._cycles = list(accumulate((record.cycles for _, record in kernels), initial=0))
        self._keys: list[_Key] = sorted([
            *((load.end, _ARRIVAL, number) for number, load in enumerate(loads) if load.ahead),
            *((load.bundle, _LOAD, number) for number, load in enumerate(loads)),
            *((event.bundle, _EVENT, number) for number, event in enumerate(events))])
        # The clock before the first events. More follow when they are needed.
        self._clocks = [Clock(config)]

    def waits(self) -> Iterator[tuple[int, int, int]]:
        """Yield each event's bundle, the number of the kernel before it or -1, and its wait."""
        for number, (bundle, _, _) in enumerate(self._keys):
            wait = self._clock(number + 1).lost - self._clock(number).lost
            yield bundle, self._place(bundle)[0], wait

    def move(self, number: int, place: int) -> None:
        """Let load ``number`` start before bundle ``place``."""
        old, new = ((bundle, _LOAD, number) for bundle in (self.loads[number].bundle, place))
        self.loads[number] = replace(self.loads[number], bundle=place)
        del self._clocks[bisect_left(self._keys, min(old, new)) + 1:]
        del self._keys[bisect_left(self._keys, old)]
        insort(self._keys, new)

    def added(self, number: int, place: int | None) -> int:
        """Return for how many more cycles the core waits if load ``number`` starts elsewhere.

        ``place`` is the number of the bundle before which it starts; if that is None, there is no
        such load.
        """
        load = self.loads[number]
        gone = [(load.bundle, _LOAD, number)]
        if place is None:
            gone.append((load.end, _ARRIVAL, number))
        new = [] if place is None else [(place, _LOAD, number)]
        first, last = min(gone + new), max(gone + new)
        start = bisect_left(self._keys, first)
        clock = self._clock(start).copy()
        for at in range(start, len(self._keys)):
            key = self._keys[at]
            if new and new[0] < key:
                self._account(clock, new.pop())
            if key in gone:
                continue
            self._account(clock, key)
            # From here on, both wait for the same numbers of cycles.
            if key > last and clock.is_like(self._clock(at + 1)):
                return clock.lost - self._clock(at + 1).lost
        for key in new:
            self._account(clock, key)
        return clock.lost - self._clock(len(self._keys)).lost

    def _clock(self, number: int) -> Clock:
        """Return the clock before event ``number``."""
        for key in self._keys[len(self._clocks) - 1:number]:
            self._clocks.append(self._clocks[-1].copy())
            self._account(self._clocks[-1], key)
        return self._clocks[number]

    def _account(self, clock: Clock, key: _Key) -> None:
        bundle, kind, number = key
        clock.run_to(self._place(bundle)[1])
        if kind == _ARRIVAL:
            clock.arrive()
        elif kind == _LOAD:
            clock.load(self.loads[number].rows, ahead=self.loads[number].ahead)
        elif self._events[number].number:
            clock.wait(self._events[number].number)
        else:
            clock.start(self._events[number].rows, self._events[number].transfers)

    def _place(self, bundle: int) -> tuple[int, int]:
        """Return the number of the kernel before a bundle or -1, and when the bundle runs.

        The time is the number of cycles that a core would need to get there if it never waited.
        """
        number = bisect_left(self._lasts, bundle)
        if number == len(self._kernels):
            return number - 1, self._cycles[-1]
        first, record = self._kernels[number]
        if bundle <= first:
            return number - 1, self._cycles[number]
        return number, (self._cycles[number]
                        + record.cycles * (bundle - first) // max(record.bundles, 1))
