"""The order in which a core works on the blocks of a sum of values in vector memory.

A core goes through *ticks*. In a tick, it works on a block of each quarter of its half, or of only
one quarter, piece by piece. All cores go through the same ticks.

**No deadlock.** A core waits for another one in three cases, each of which ends:

- Before its first transfer, it waits for signals from its next chips and from the other core of its
  chip. These send the signals before they wait for anything.
- It waits for a piece or a block. The sender works on it in an earlier tick or, if the sender is
  the other core of the chip, perhaps before the first tick. Suppose that some cores waited forever.
  Take one whose tick is the earliest: it waits for what a core sends in a still earlier tick. But
  no core waits forever in such a tick, which is a contradiction.
- It waits for room in a queue of transfers. Each transfer in a queue ends, because it never waits
  until its destination is free. Two transfers have the same destination only in one case: the
  first brings a partial sum, which leaves before the second brings the complete piece.

**Order.** A core sends only one of its quarters in each direction. The receiving core waits for
blocks and pieces in the order in which they are sent. So one semaphore for each direction counts
all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import dropwhile, groupby, pairwise
from typing import TypeAlias

from sim.compiler.collectives.shares import Quarter

__all__ = ["Event", "Goes", "Tick", "last_ticks", "ticks"]


class Goes(Enum):
    """Where a core sends a block whose sum it has computed."""

    FIRST = "first"
    """To the next chip along the first axis, as a whole."""
    SECOND = "second"
    """To the next chip along the second axis, piece by piece."""
    COMPLETE = "complete"
    """Piece by piece to the next chips along both axes, and to the other core."""


@dataclass(frozen=True)
class Event:
    """What a core does with a block of one quarter in a tick.

    Attributes
    ----------
    arrives : tuple of int
        Axes along which the block arrives: 0 is the quarter's first axis.
    goes : Goes or None
        If given, the core adds its own numbers, those of the other core, and what arrives, and
        sends the sum. Otherwise, a complete block arrives, which goes to the other core.
    on : tuple of int
        Axes along which the core sends a complete block that arrives.
    late : bool
        Whether the event is one of the last phase, and this phase runs one tick behind the phase
        before it (`_gather`).
    """

    arrives: tuple[int, ...]
    goes: Goes | None = None
    on: tuple[int, ...] = ()
    late: bool = False


@dataclass(frozen=True)
class Tick:
    """What a core does in a tick.

    Attributes
    ----------
    events : tuple of (int, Event)
        Pairs, in order: the number of a quarter, and what the core does with a block of this
        quarter. A quarter has at most one event that is not late.
    pairs : tuple of int
        Numbers of quarters of the other core's half, in order. For each of them, this core sends to
        the other core its elements of the block that the other core adds in the next tick.
    """

    events: tuple[tuple[int, Event], ...]
    pairs: tuple[int, ...] = ()


def ticks(quarters: tuple[Quarter, Quarter]) -> Iterator[tuple[int, Tick]]:
    """Yield all ticks of a core, each with the number of times that it repeats.

    Both quarters begin and end each phase at about the same time, so the links along both axes are
    busy. If the torus is not square, one quarter has more ticks in a phase than the other. In some
    ticks of this phase, the core works only on the quarter that has more. Measurements decided
    where in the phase these ticks are.
    """
    made = list[Tick]()
    for phase, joint in ((_first, None), (_second, 1), (_gather, 3)):
        one, other = (list(phase(*quarter.sides)) for quarter in quarters)
        made += (Tick(tuple((number, event) for number, events in enumerate(both)
                            for event in events)) for both in _together(one, other, joint))
    paired = [replace(tick, pairs=tuple(number for number, event in following.events if event.goes))
              for tick, following in pairwise(made)]
    for tick, same in groupby([*paired, made[-1]]):
        yield len(list(same)), tick


def last_ticks(quarters: tuple[Quarter, Quarter]) -> list[tuple[int, Tick, range]]:
    """Return the last steps of a core, from the tick in which it completes its own blocks on.

    For each step, there are the tick's number from 0, the tick, and the numbers of the pieces on
    which the core works. The last tick has a step for each piece, any other tick has one step. All
    blocks on which the core works in these ticks are complete afterwards.
    """
    whole = range(quarters[0].pieces)
    every = (tick for count, tick in ticks(quarters) for _ in range(count))
    *most, last = enumerate(dropwhile(
        lambda tick: all(event.goes is not Goes.COMPLETE for _, event in tick.events), every))
    return [(number, tick, whole) for number, tick in most] + [
        (*last, range(piece, piece + 1)) for piece in whole]


_Events: TypeAlias = tuple[Event, ...]


def _together(one: Sequence[_Events], other: Sequence[_Events], joint: int | None
              ) -> Iterator[tuple[_Events, _Events]]:
    """Yield what a core does with its quarters in each tick of a phase.

    If one quarter has more ticks than the other, it has some of them alone. These come after
    ``joint`` ticks with both quarters; if ``joint`` is None, at the end of the phase.
    """
    both = min(len(one), len(other))
    begins = both if joint is None else min(joint, both)
    alone = max(len(one), len(other)) - both
    yield from zip(one[:begins], other[:begins], strict=True)
    for step in range(begins, begins + alone):
        yield (one[step], ()) if len(one) > both else ((), other[step])
    yield from zip(one[len(one) - both + begins:], other[len(other) - both + begins:], strict=True)


def _first(first: int, second: int) -> Iterator[_Events]:
    """Yield the events of a quarter in the first phase."""
    for step in range((first - 1) * second):
        yield Event((0,) if step >= second else (), Goes.FIRST),


def _second(first: int, second: int) -> Iterator[_Events]:
    """Yield the events of a quarter in the second phase."""
    for step in range(second):
        yield Event((0, 1) if step else (0,),
                    Goes.SECOND if step < second - 1 else Goes.COMPLETE),


def _gather(first: int, second: int) -> Iterator[_Events]:
    """Yield the events of a quarter in the last two phases.

    If the ring along the first axis has two chips, nothing that arrives in the last phase goes on
    to other chips. The last phase then runs one tick behind the phase before it, so that the core
    does not wait at the end.
    """
    along = [Event((1,), on=(1, 0) if step < second - 2 else (0,)) for step in range(second - 1)]
    if first == 2 and second > 1:
        late = Event((0,), late=True)
        yield from ((event, late) for event in along)
        yield late,
        return
    yield from ((event,) for event in along)
    for step in range((first - 1) * second):
        yield Event((0,), on=(0,) if step < (first - 2) * second else ()),
