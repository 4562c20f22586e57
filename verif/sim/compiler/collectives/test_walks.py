"""Tests of the places of the blocks of sums in vector memory."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.collectives.plan import CORES
from sim.compiler.collectives.schedule import ticks
from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.walks import completed, table

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


@pytest.mark.parametrize("shape", [(2, 1), (1, 3), (2, 2), (4, 2), (3, 4)])
@pytest.mark.parametrize("left_out", [0, 1, 7])
def test_each_vector_of_a_half_is_complete_once(shape: tuple[int, int], left_out: int) -> None:
    """Padding is left out; of a block of padding, the vector that is complete first is left."""
    whole = SumShares(shape, 0, 2, (2, 3))
    shares = replace(whole, vectors=whole.padded - left_out)
    for place, core in product(np.ndindex(shape), range(CORES)):
        x, y = place
        steps, other = (completed(shares, core, at) for at in ((x, y), (0, 0)))
        assert [[most for _, most in step] for step in steps] == [
            [most for _, most in step] for step in other]
        parts = [part for step in steps for part, _ in step]
        assert all(0 < len(part) <= most for step in steps for part, most in step)
        found = [vector for part in parts for vector in part]
        half = range(shares.vectors)[shares.start(core):][:shares.half]
        assert {*found} == {*half}
        repeated = len(found) - len(half)
        assert found.count(parts[0][0]) == 1 + repeated
        assert repeated <= left_out if core else not repeated


def test_vectors_are_complete_block_by_block() -> None:
    """The last block arrives in the last tick, whose steps work on a piece each."""
    assert completed(SumShares((2, 1), 53, 2, (3, 4)), 1, (0, 0)) == [
        [(range(34, 40), 6), (range(48, 53), 8)],
        [(range(28, 31), 3), (range(40, 44), 4)], [(range(31, 34), 3), (range(44, 48), 4)]]
