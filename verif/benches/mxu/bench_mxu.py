"""Benches of the matrix unit. Each compares every row of results with the golden model's."""

import random
from itertools import pairwise

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject
from numpy.typing import NDArray

from golden.numerics import F32_INF, F32_NAN, from_bits
from verif.benches.mxu.mxu import MxuBench, Tile
from verif.benches.rows import unpack_row

bench_test = cocotb.test(timeout_time=1000, timeout_unit="us")

SPECIALS = np.array([sign | magnitude for sign in (0, 0x80000000) for magnitude in (
    0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0x3F808000, 0x7F7F7FFF, 0x7F7F8000,
    0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF)], np.uint32)


class Tiles:
    """Random tiles.

    Parameters
    ----------
    size : int
        Rows of the array.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rng = np.random.default_rng(cocotb.RANDOM_SEED)

    def matrix(self, rows: int, specials: float = 0.0) -> NDArray[np.float32]:
        """A matrix of numbers whose sums round and cancel, because their exponents are close.

        ``specials`` is the share of NaNs, infinities, zeros and the like among them.
        """
        shape = rows, self._size
        numbers = self._rng.standard_normal(shape) * np.exp2(self._rng.integers(-9, 9, shape))
        words = numbers.astype(np.float32).view(np.uint32)
        picked = self._rng.choice(SPECIALS, shape)
        return from_bits(np.where(self._rng.random(shape) < specials, picked, words))

    def tile(self, rows: int, transpose: bool = False, specials: float = 0.0) -> Tile:
        """A tile with ``rows`` activation rows."""
        return Tile(self.matrix(self._size, specials), self.matrix(rows, specials), transpose)

    def any_tile(self, specials: float = 0.0) -> Tile:
        """A tile with 1 to 3 * ``size`` activation rows and straight or transposed weights."""
        return self.tile(int(self._rng.integers(1, 3 * self._size + 1)),
                         bool(self._rng.integers(2)), specials)


async def started(dut: HierarchyObject) -> tuple[MxuBench, Tiles]:
    bench = await MxuBench.started(dut)
    return bench, Tiles(bench.config.array)


def shake(bench: MxuBench, rng: random.Random) -> None:
    """Chooses the share of gaps of each input and of back-pressure of the output: 0, 0.3 or 0.9."""
    bench.w_source.gap, bench.x_source.gap, bench.y_sink.stall = (
        rng.choice([0.0, 0.3, 0.9]) for _ in range(3))


def steps(cycles: list[int]) -> set[int]:
    """All differences between successive numbers of cycles."""
    return {after - before for before, after in pairwise(cycles)}


@bench_test
async def random_tiles(dut: HierarchyObject) -> None:
    """Tiles of any length, both ways to load, random gaps and back-pressure on all streams."""
    bench, tiles = await started(dut)
    sent = [tiles.any_tile() for _ in range(120)]
    bench.send(sent)
    while not bench.x_source.idle:
        shake(bench, bench.rng)
        await bench.domain.cycles(bench.rng.randint(1, 60))
    bench.y_sink.stall = 0.5
    await bench.finish()
    assert bench.checked == sum(len(tile.activations) for tile in sent)


@bench_test
async def special_values(dut: HierarchyObject) -> None:
    """NaN, infinities, zeros and subnormals through the whole array, NaN in the last row too."""
    bench, tiles = await started(dut)
    size = bench.config.array
    # One special value a row and all else one: the result shows it, whichever row it is.
    ones = np.ones((size, size), np.float32)
    for pattern in (F32_INF, F32_NAN, 0x7F800001, 0xFFFFFFFF):
        one_each = ones.copy()
        np.fill_diagonal(one_each, from_bits(np.array(pattern, np.uint32)))
        bench.send([Tile(ones, one_each), Tile(one_each, ones, transpose=True)])
    for _ in range(40):
        bench.send([tiles.any_tile(0.5 / size)])
    await bench.finish()
    words = np.array([unpack_row(row, size)[0] for row in bench.results])
    assert np.all(words[:2 * size] == F32_INF)
    assert np.all(words[2 * size:8 * size] == F32_NAN)
    magnitude = words[8 * size:] & 0x7FFFFFFF
    for kind in (magnitude < F32_INF, magnitude == F32_INF, words[8 * size:] == F32_NAN):
        assert kind.sum() > 10
    assert not np.any((magnitude > F32_INF) & (words[8 * size:] != F32_NAN))


@bench_test
@cocotb.parametrize(transpose=[False, True])
async def full_rate(dut: HierarchyObject, transpose: bool) -> None:
    """A row enters and a row leaves in every cycle, if tiles are just long enough to hide loads.

    A load starts right after the previous swap and takes ``array`` cycles; its own swap follows
    one cycle later. Weights that are not transposed must also wait for the wavefront of the
    previous swap, which is slow if ``row_skew`` is above 1.
    """
    bench, tiles = await started(dut)
    size, skew = bench.config.array, bench.config.row_skew
    rows = size + 1 if transpose else max(size + 1, 2 + (skew - 1) * (size - 1))
    count = 20
    bench.send(tiles.tile(rows, transpose) for _ in range(count))
    await bench.finish()
    assert len(bench.x.transfers) == len(bench.y.transfers) == count * rows
    assert steps(bench.x.transfers) == {1}, f"bubbles in x: {bench.x.transfers}"
    assert steps(bench.y.transfers) == {1}, f"bubbles in y: {bench.y.transfers}"
    assert bench.x.transfers[0] == bench.w.transfers[0] + size


@bench_test
async def loads_back_to_back(dut: HierarchyObject) -> None:
    """With blocks of one row, a weight tile takes a cycle for each row, and one for the swap."""
    bench, tiles = await started(dut)
    size = bench.config.array
    bench.send(tiles.tile(1, transpose=True) for _ in range(8))
    await bench.finish()
    assert steps(bench.x.transfers) == {size + 1}, f"swaps at {bench.x.transfers}"
    assert steps(bench.w.transfers) == {1, 2}


@bench_test
async def latency_is_as_configured(dut: HierarchyObject) -> None:
    """A row in a stream or alone takes ``array_latency`` cycles, from entering to its result."""
    bench, tiles = await started(dut)
    bench.send([tiles.tile(1)])
    await bench.drain()
    bench.x_source.gap = 0.5
    bench.send(tiles.any_tile() for _ in range(10))
    await bench.finish()
    latencies = {leaves - enters
                 for enters, leaves in zip(bench.x.transfers, bench.y.transfers, strict=True)}
    assert latencies == {bench.config.array_latency}


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """A reset at any moment drops rows and partial loads, and clears the counters."""
    bench, tiles = await started(dut)
    for _ in range(60):
        shake(bench, bench.rng)
        bench.send(tiles.any_tile() for _ in range(3))
        await bench.domain.cycles(bench.rng.randint(1, 2 * bench.config.array_latency))
        await bench.reset(bench.rng.randint(1, 3))
    bench.w_source.gap = bench.x_source.gap = bench.y_sink.stall = 0.0
    before = bench.checked
    sent = [tiles.any_tile() for _ in range(2)]
    bench.send(sent)
    await bench.finish()
    assert bench.checked - before == sum(len(tile.activations) for tile in sent)


@bench_test
async def long_stall_loses_nothing(dut: HierarchyObject) -> None:
    """With ``y`` blocked the unit takes exactly as many rows as it can store."""
    bench, tiles = await started(dut)
    depth = bench.config.result_depth
    sent = [tiles.tile(3 * depth), tiles.tile(5)]
    bench.send(sent)
    bench.y_sink.stall = 1.0
    await bench.domain.cycles(2 * depth + bench.config.array_latency)
    taken = len(bench.x.transfers)
    await bench.domain.cycles(200)
    assert len(bench.x.transfers) == taken
    assert bench.config.array_latency <= taken <= depth + 1
    assert not bench.y.transfers
    for _ in range(5):
        bench.y_sink.stall = 0.0
        await bench.domain.cycles(bench.rng.randint(1, depth))
        bench.y_sink.stall = 1.0
        await bench.domain.cycles(2 * depth)
    bench.y_sink.stall = 0.0
    await bench.finish()
    assert bench.checked == sum(len(tile.activations) for tile in sent)


@bench_test
async def streams_wait_for_each_other(dut: HierarchyObject) -> None:
    """A swap waits for its whole load; a second load waits for the swap of the first."""
    bench, tiles = await started(dut)
    size = bench.config.array
    first, second = tiles.tile(3), tiles.tile(2, transpose=True)
    bench.x_source.send(first.activation_payloads())
    weights = list(first.weight_payloads(bench.rng))
    bench.w_source.send(weights[:-1])
    await bench.domain.cycles(50)
    assert (len(bench.w.transfers), len(bench.x.transfers)) == (size - 1, 0)
    bench.w_source.send(weights[-1:])
    await bench.drain()
    assert bench.checked == 3
    for tile in (second, first):
        bench.w_source.send(tile.weight_payloads(bench.rng))
    await bench.domain.cycles(50)
    assert (len(bench.w.transfers), len(bench.x.transfers)) == (2 * size, 3)
    for tile in (second, first):
        bench.x_source.send(tile.activation_payloads())
    await bench.finish()
    assert bench.checked == 3 + 2 + 3


@bench_test
async def counters_add_up(dut: HierarchyObject) -> None:
    """The cycle counters are right at many moments, and across a reset."""
    bench, tiles = await started(dut)
    for _ in range(4):
        bench.send(tiles.any_tile() for _ in range(12))
        for _ in range(100):
            shake(bench, bench.rng)
            await bench.domain.cycles(bench.rng.randint(1, 9))
            bench.check_counters()
        await bench.reset()
    bench.send([tiles.any_tile()])
    bench.w_source.gap = bench.x_source.gap = bench.y_sink.stall = 0.0
    await bench.finish()


