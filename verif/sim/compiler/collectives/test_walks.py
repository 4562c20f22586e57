"""Tests of the places of the blocks of sums in vector memory."""

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.collectives.plan import CORES
from sim.compiler.collectives.schedule import ticks
from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.walks import table

CONFIG = Config.preset("tiny", link_bytes=16)


@pytest.mark.parametrize("shape", [(2, 1), (1, 3), (2, 2), (4, 2), (3, 4)])
def test_each_core_gets_the_other_cores_numbers_of_the_blocks_that_it_adds(
        shape: tuple[int, int]) -> None:
    """A core sends them in the order in which the other one adds; each adds every block once."""
    shares = SumShares.of(CONFIG, shape, 100)
    lengths = set()
    for place in np.ndindex(shape):
        sent, added = {}, {}
        for core in range(CORES):
            x, y = place
            words = table(shares, core, (x, y))
            lengths.add(len(words))
            found = iter(words)
            sent[core] = [[next(found)] for _ in range(2)]
            added[core] = [list[int](), list[int]()]
            for count, tick in ticks(shares.quarters(core)):
                for _ in range(count):
                    for number, event in tick.events:
                        at = next(found)
                        if event.goes:
                            added[core][number].append(at)
                    for number in tick.pairs:
                        sent[core][number].append(next(found))
            assert next(found, None) is None
        for core in range(CORES):
            assert sent[1 - core] == added[core]
            for quarter, places in zip(shares.quarters(core), added[core], strict=True):
                blocks = range(quarter.start, quarter.start + quarter.vectors, quarter.block)
                assert sorted(places) == [*blocks]
    assert len(lengths) == 1


def test_pieces_with_the_same_number() -> None:
    """Together, they are the whole half of a core; those with number 0 begin the blocks."""
    shares = SumShares((2, 1), 56, 2, (3, 4))
    first, second = shares.numbered(1)
    assert first == [range(28, 31), range(34, 37), range(40, 44), range(48, 52)]
    assert second == [range(31, 34), range(37, 40), range(44, 48), range(52, 56)]
