"""Walks through the blocks of a sum's quarters: where the block of each tick is.

The terms are those of `sim.compiler.collectives.shares`. A walk begins with the block that leaves
first, which depends on the chip. Code in loops goes on from block to block (`Walk`). Code that is
written tick by tick reads all places from a table (`Table`), which the host computes (`table`).
The host also computes which vectors are complete after each of the last steps (`completed`).
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

from sim.compiler.collectives.schedule import Goes, Tick, last_ticks, ticks
from sim.compiler.collectives.shares import Quarter, SumShares
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Index, SReg

__all__ = ["WALK_WORDS", "Table", "Walk", "begins", "completed", "table"]

WALK_WORDS = 2
"""Number of words that say where a walk begins (`begins`)."""


class Walk:
    """A walk through the blocks of a quarter, which begins with the block that leaves first.

    Parameters
    ----------
    b : Builder
        Receives the code.
    quarter : Quarter
    image : int
        Address of the words that say where the walk begins.
    """

    def __init__(self, b: Builder, quarter: Quarter, image: int) -> None:
        self._b, self._quarter = b, quarter
        self._segment = b.scalar_variable(b.smem_load(image))
        self._block = b.scalar_variable(b.smem_load(image + 1))
        self._left = b.scalar_variable(quarter.sides[1])

    def at(self) -> Index:
        """Return the first vector, in the workspace, of the current block."""
        return self._segment + self._block + self._quarter.start

    def next(self) -> None:
        """Go on to the next block; after the last one of a segment, to the next segment."""
        b, quarter = self._b, self._quarter
        self._advance(self._block, quarter.block, quarter.segment)
        if quarter.sides[1] == 1:
            self._next_segment()
            return
        self._add(self._left, -1)
        with b.when("eq", self._left, 0):
            self._next_segment()
            self._set(self._left, quarter.sides[1])

    def again(self) -> None:
        """Go back to the first block of this segment.

        The walk then goes through the segment once more, but without the segment's last block.
        """
        _, second = self._quarter.sides
        self._set(self._left, second)
        self.next()
        self._set(self._left, max(second - 1, 1))

    def following(self) -> "Walk":
        """Return another walk; it begins in the next segment, at the current block's position."""
        made = copy(self)
        made._segment, made._block, made._left = (self._b.scalar_variable(value) for value in (
            self._segment, self._block, self._quarter.sides[1]))
        made._next_segment()
        return made

    def _next_segment(self) -> None:
        self._advance(self._segment, self._quarter.segment, self._quarter.vectors)

    def _advance(self, at: SReg, step: int, size: int) -> None:
        if step == size:
            return
        way = self._quarter.way
        self._add(at, -way * step)
        with self._b.when("lt" if way > 0 else "ge", at, 0 if way > 0 else size):
            self._add(at, way * size)

    def _add(self, variable: SReg, value: int) -> None:
        self._b.assign(variable, variable + value)

    def _set(self, variable: SReg, value: int) -> None:
        self._b.assign(variable, self._b.value(value))


class Table:
    """Replaces all walks (`Walk`) of a sum whose code is written tick by tick.

    The code reads where each block is from a table, in the order in which it uses the blocks.

    Parameters
    ----------
    b : Builder
        Receives the code; may be replaced.
    words : range
        Addresses of the words of `table`.

    Attributes
    ----------
    count : int
        Number of words that the code has read.
    """

    def __init__(self, b: Builder, words: range) -> None:
        self.b, self.count, self._words = b, 0, words

    def at(self) -> SReg:
        """Return the first vector, in the workspace, of the next block."""
        self.count += 1
        return self.b.smem_load(self._words[self.count - 1])

    def next(self) -> None:
        """Do nothing: `at` steps through the blocks of all walks, in the order of their use."""

    again = next

    def following(self) -> "Table":
        """Return this table."""
        return self


@dataclass
class _Counted:
    """A walk as the host computes it; its methods are those of `Walk`."""

    quarter: Quarter
    segment: int
    block: int
    left: int

    def at(self) -> int:
        return self.quarter.start + self.segment + self.block

    def next(self) -> None:
        quarter = self.quarter
        self.block = (self.block - quarter.way * quarter.block) % quarter.segment
        self.left -= 1
        if not self.left:
            self.next_segment()

    def next_segment(self) -> None:
        quarter = self.quarter
        self.segment = (self.segment - quarter.way * quarter.segment) % quarter.vectors
        self.left = quarter.sides[1]

    def again(self) -> None:
        self.left = self.quarter.sides[1]
        self.next()
        self.left = max(self.quarter.sides[1] - 1, 1)

    def following(self) -> "_Counted":
        made = copy(self)
        made.next_segment()
        return made


def begins(quarter: Quarter, place: tuple[int, int]) -> tuple[int, int]:
    """Return the words that say where a walk begins on the chip with coordinates ``place``."""
    one, two = quarter.axes
    return place[one] * quarter.segment, place[two] * quarter.block


def table(shares: SumShares, core: int, place: tuple[int, int]) -> list[int]:
    """Return the places of all blocks, in the order in which the code of a core uses them.

    The table begins with the first blocks of the other core's quarters. For each tick, the blocks
    of its events follow, and then those of its `Tick.pairs`. The number of words is the same for
    all cores. ``place`` has the coordinates (x, y) of the chip of core number ``core``.
    """
    others = [_Counted(quarter, *begins(quarter, place), quarter.sides[1])
              for quarter in shares.quarters(1 - core)]
    found = [walk.at() for walk in others]
    for walk in others:
        walk.next()
    for tick, places in _visits(shares, core, place):
        found += places
        found += [others[number].at() for number in tick.pairs]
        for number in tick.pairs:
            others[number].next()
    return found


def completed(shares: SumShares, core: int, place: tuple[int, int]
              ) -> list[list[tuple[range, int]]]:
    """Return the vectors that are complete on a core after each of the last steps, but not before.

    The steps are those of `sim.compiler.collectives.schedule.last_ticks`. For each, there are
    pairs: vectors of the values, and the maximum number of such vectors on all chips. If there is
    only padding, the vector that is complete first takes its place. The padding must be smaller
    than the second quarter of core 1. ``place`` has the coordinates (x, y) of the chip of core
    number ``core``.
    """
    quarters, found = shares.quarters(core), list[list[tuple[range, int]]]()
    last = last_ticks(quarters)
    visits = list(_visits(shares, core, place))[-len({number for number, _, _ in last}):]
    for number, _, pieces in last:
        tick, places = visits[number]
        found.append([])
        for (quarter, _), at in zip(tick.events, places, strict=True):
            size = quarters[quarter].size
            vectors = range(at, at + quarters[quarter].block)[
                pieces.start * size:pieces.stop * size]
            inside = range(vectors.start, min(vectors.stop, shares.vectors))
            found[-1].append((inside or found[0][0][0][:1], len(vectors)))
    return found


def _visits(shares: SumShares, core: int, place: tuple[int, int]
            ) -> Iterator[tuple[Tick, list[int]]]:
    """Yield all ticks of a core, each with the places of its events' blocks."""
    own = [_Counted(quarter, *begins(quarter, place), quarter.sides[1])
           for quarter in shares.quarters(core)]
    late = dict[int, _Counted]()
    for count, tick in ticks(shares.quarters(core)):
        for _ in range(count):
            walks = [late[number] if event.late else own[number] for number, event in tick.events]
            yield tick, [walk.at() for walk in walks]
            for walk, (number, event) in zip(walks, tick.events, strict=True):
                if event.goes is Goes.COMPLETE:
                    late[number] = walk.following()
                    walk.again()
                else:
                    walk.next()
