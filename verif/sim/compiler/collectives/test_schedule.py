"""The order in which cores work on the blocks of a sum, on all chips of a torus, tick by tick."""

from collections import deque
from itertools import product

import pytest

from hdl.config import Config
from sim.compiler.collectives.schedule import Goes, Tick, ticks
from sim.compiler.collectives.shares import Quarter, SumShares

TINY = Config.preset("tiny", link_bytes=16)
Block = tuple[int, int]
Part = tuple[Block, frozenset[Block]]
"""A block, by its numbers along the two axes, and the chips whose numbers it is the sum of."""


class Chip:
    """A chip's work on one quarter, and what arrives there along each axis."""

    def __init__(self, place: Block, quarter: Quarter) -> None:
        self.place, self.quarter = place, quarter
        self.arrived: tuple[deque[Part], deque[Part]] = deque(), deque()
        self.near: deque[Block] = deque()
        self.complete: set[Block] = set()
        first, second = quarter.sides
        self.walk = [self.block(step // second, step % second) for step in range(first * second)]
        # Then the other blocks of the last segment, and all blocks of the other segments.
        self.walk += [self.block(first - 1, step) for step in range(second - 1)]
        self.late = [self.block(step // second, step % second + second - 1)
                     for step in range((first - 1) * second)]
        if first > 2 or second == 1:
            self.walk += self.late

    def block(self, segment: int, step: int) -> Block:
        """Return a block, by its distances from the segment and the block that leave first."""
        (one, two), (first, second), way = self.place, self.quarter.sides, self.quarter.way
        return (one - way * segment) % first, (two - way * step) % second


def run(tick: Tick, number: int, place: Block, chips: dict[Block, Chip]
        ) -> list[tuple[deque[Part], Part]]:
    """Do the work of a chip on quarter ``number`` in a tick; return what it sends, and to where."""
    chip, sent = chips[place], list[tuple[deque[Part], Part]]()
    (first, second), way = chip.quarter.sides, chip.quarter.way
    following = (chips[(place[0] + way) % first, place[1]],
                 chips[place[0], (place[1] + way) % second])
    for _, event in (each for each in tick.events if each[0] == number):
        block = (chip.late if event.late else chip.walk).pop(0)
        parts = [chip.arrived[axis].popleft() for axis in event.arrives]
        assert all(part[0] == block for part in parts), (tick, place)
        if event.goes:
            assert chip.near.popleft() == block
            chips_added = frozenset((place,)).union(*(part[1] for part in parts))
            # Nothing is added twice.
            assert len(chips_added) == 1 + sum(len(part[1]) for part in parts)
            axes = {Goes.FIRST: (0,), Goes.SECOND: (1,), Goes.COMPLETE: (0, 1)}[event.goes]
            parts = [(block, chips_added)]
        else:
            axes = event.on
        [part] = parts
        if event.goes in (None, Goes.COMPLETE):
            assert part[1] == set(chips)
            chip.complete.add(block)
        sent += [(following[axis].arrived[axis], part) for axis in axes
                 if chip.quarter.sides[axis] > 1]
    return sent


@pytest.mark.parametrize("shape", [
    (2, 1), (1, 3), (2, 2), (3, 2), (4, 2), (2, 4), (3, 4), (5, 3), (4, 4)])
def test_what_a_core_waits_for_was_sent_in_an_earlier_tick_and_is_the_next_to_arrive(
        shape: tuple[int, int]) -> None:
    """In the end, each chip has all blocks, with the numbers of all chips."""
    quarters = SumShares.of(TINY, shape, 4 * shape[0] * shape[1]).quarters(0)
    torus = [{(one, two): Chip((one, two), quarter)
              for one, two in product(*map(range, quarter.sides))} for quarter in quarters]
    # The first block of the other core's numbers is sent before the first tick.
    pairs = list(range(len(quarters)))
    sent_pairs = [0] * len(quarters)
    for count, tick in ticks(quarters):
        for _ in range(count):
            for number, chips in enumerate(torus):
                if number in pairs:
                    for chip in chips.values():
                        chip.near.append(chip.block(*divmod(
                            sent_pairs[number], chip.quarter.sides[1])))
                    sent_pairs[number] += 1
            assert pairs == [number for number, event in tick.events if event.goes]
            pairs = list(tick.pairs)
            sent = [each for number, chips in enumerate(torus)
                    for place in chips for each in run(tick, number, place, chips)]
            for queue, part in sent:
                queue.append(part)
    for chips in torus:
        for chip in chips.values():
            assert chip.complete == set(chips)
            assert not any(chip.arrived)
            assert not chip.near
