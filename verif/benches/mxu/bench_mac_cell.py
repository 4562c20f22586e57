"""Benches of the array's cell; all compare, in every cycle, every output that is defined."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject

from golden.stimulus import mac_operands
from verif.benches.mxu.mac_cell import CellBench, CellInputs

bench_test = cocotb.test(timeout_time=200, timeout_unit="us")

ONE, TWO, THREE, FOUR = 0x3F80, 0x4000, 0x4040, 0x4080

SUMS = {
    # p, x, w, and p + x * w, as docs/numerics.md has them.
    "plain": (0x3F800000, 0x4000, 0x4040, 0x40E00000),
    "all sixteen bits of a product": (0x00000000, 0x3FFF, 0x3FFF, 0x407E0100),
    "cancelled": (0xC0C00000, 0x4000, 0x4040, 0x00000000),
    "cancelled, the other sign": (0x40C00000, 0xC000, 0x4040, 0x00000000),
    "cancelled to the last place": (0x3F800001, 0x3F80, 0xBF80, 0x34000000),
    "a borrow of one place": (0x3F800000, 0x3980, 0xB980, 0x3F7FFFFF),
    "zeros, both negative": (0x80000000, 0x8000, 0x3F80, 0x80000000),
    "zeros of two signs": (0x80000000, 0x0000, 0x3F80, 0x00000000),
    "subnormal sum operand": (0x807FFFFF, 0x8000, 0x3F80, 0x80000000),
    "subnormal factor": (0x3F800000, 0x007F, 0x7F7F, 0x3F800000),
    "product below the range": (0x00000000, 0x2000, 0x1F80, 0x00000000),
    "sum below the range": (0x00C00000, 0x2000, 0xA000, 0x00000000),
    "negative sum below the range": (0x80C00000, 0x2000, 0x2000, 0x80000000),
    "product above the range": (0xFF7FFFFF, 0x5F80, 0x5F80, 0x7F800000),
    "sum that ties to infinity": (0x7F7FFFFF, 0x5900, 0x5980, 0x7F800000),
    "sum that rounds to the largest": (0x7F7FFFFF, 0x5900, 0x5900, 0x7F7FFFFF),
    "infinity stays": (0x7F800000, 0x3F80, 0x3F80, 0x7F800000),
    "infinite product": (0x3F800000, 0xFF80, 0x3F80, 0xFF800000),
    "difference of infinities": (0xFF800000, 0x7F80, 0x3F80, 0x7FC00000),
    "zero times infinity": (0x3F800000, 0x0000, 0xFF80, 0x7FC00000),
    "subnormal times infinity": (0x3F800000, 0x0001, 0x7F80, 0x7FC00000),
    "NaN factor": (0x3F800000, 0xFFFF, 0x3F80, 0x7FC00000),
    "NaN sum operand": (0xFF800001, 0x3F80, 0x3F80, 0x7FC00000),
    "tie to even, down": (0x3F800000, 0x3980, 0x3980, 0x3F800000),
    "tie to even, up": (0x3F800001, 0x3980, 0x3980, 0x3F800002),
    "just above a tie": (0x3F800000, 0x3980, 0x3981, 0x3F800001),
    "tie of a difference": (0x3F800000, 0x3980, 0xB900, 0x3F800000),
    "tie in the sum operand": (0x33800000, 0x3F80, 0x3F80, 0x3F800000),
}


def one_weight_each(operands: Iterator[tuple[int, int, int]]) -> Iterator[CellInputs]:
    """Inputs with a new weight for each x.

    An x comes two cycles after its weight. It comes once more a cycle later, together with the swap
    to the next weight.
    """
    yield CellInputs()
    before: tuple[int, int] | None = None
    for acc, x, w in operands:
        again = {} if before is None else {"p": before[0] ^ 0x80000000, "x": before[1]}
        loaded = CellInputs(w_north=w, w_north_valid=1)
        if before is not None:
            loaded = replace(loaded, p=before[0], x=before[1], x_valid=1)
        yield loaded
        yield CellInputs(swap=1, x_valid=int(before is not None), **again)
        before = acc, x
    if before is not None:
        yield CellInputs(p=before[0], x=before[1], x_valid=1)


class CellTraffic:
    """Random inputs that keep to the cell's protocol.

    Parameters
    ----------
    activation, weight, swap : float
        Probability of each input in a cycle in which the protocol permits it.
    """

    def __init__(self, activation: float, weight: float, swap: float) -> None:
        self._probability = activation, weight, swap
        self._filled = self._ready = False
        self._rng = random.Random(cocotb.RANDOM_SEED)
        self._numbers = np.random.default_rng(cocotb.RANDOM_SEED)

    def reset(self) -> CellInputs:
        """A cycle of reset with all valid bits set: the reset must win."""
        self._filled = self._ready = False
        noise = next(self.idle(1))
        return replace(noise, rst=1, x_valid=1, swap=1, w_north_valid=1)

    def idle(self, cycles: int) -> Iterator[CellInputs]:
        """Cycles with data that change, but no valid bit."""
        acc, x, w = (word.tolist() for word in mac_operands(self._numbers, cycles))
        for cycle in range(cycles):
            yield CellInputs(p=acc[cycle], x=x[cycle], w_north=w[cycle], w_west=w[-cycle])

    def cycles(self, count: int) -> Iterator[CellInputs]:
        """Inputs of ``count`` cycles of this traffic."""
        activation, weight, swap = self._probability
        for noise in self.idle(count):
            swaps = self._filled and self._rng.random() < swap
            arrives = self._rng.random() < weight
            west = self._rng.random() < 0.5
            yield replace(
                noise, swap=int(swaps),
                x_valid=int(self._ready and self._rng.random() < activation),
                w_north_valid=int(arrives and not west), w_west_valid=int(arrives and west))
            self._filled = (self._filled or arrives) and not swaps
            self._ready = self._ready or swaps


def activations(inputs: list[CellInputs]) -> int:
    """The number of results that these inputs must give."""
    return sum(one.x_valid for one in inputs)


@bench_test
async def directed_sums(dut: HierarchyObject) -> None:
    """Sums with special values, cancellation, ties and extreme results, against a list."""
    bench = CellBench(dut)
    await bench.run(one_weight_each(iter([operands[:3] for operands in SUMS.values()])))
    for (name, (*_, expected)), result in zip(SUMS.items(), bench.results[::2], strict=True):
        assert result == expected, f"{name}: {result:#010x}, not {expected:#010x}"
    bench.finish(2 * len(SUMS) - 1)


@bench_test
async def random_sums(dut: HierarchyObject) -> None:
    """Operands of all classes at full rate, a new weight every other cycle."""
    bench = CellBench(dut)
    count = 2500
    operands = mac_operands(np.random.default_rng(cocotb.RANDOM_SEED), count)
    await bench.run(one_weight_each(zip(*(words.tolist() for words in operands), strict=True)))
    bench.finish(2 * count - 1)


@bench_test
async def random_traffic(dut: HierarchyObject) -> None:
    """Activations, weights from both sides and swaps with random bubbles."""
    bench = CellBench(dut)
    results = 0
    for probabilities in ((0.9, 0.9, 0.5), (0.5, 0.3, 0.1), (0.1, 0.1, 0.5), (1.0, 1.0, 1.0)):
        inputs = list(CellTraffic(*probabilities).cycles(1000))
        results += activations(inputs)
        # Each traffic starts with an empty cell.
        await bench.run([CellInputs(rst=1), *inputs])
    bench.finish(results)


@bench_test
@cocotb.parametrize(side=["north", "west"])
async def keeps_one_weight_and_passes_on_the_rest(dut: HierarchyObject, side: str) -> None:
    """The cell keeps the first weight; after each swap, it keeps the first of the next ones."""
    bench = CellBench(dut)

    def weight(pattern: int, **more: int) -> CellInputs:
        return replace(CellInputs(**more), **{f"w_{side}": pattern, f"w_{side}_valid": 1})

    activation = CellInputs(x=ONE, x_valid=1)
    await bench.run([
        weight(TWO), weight(THREE), CellInputs(), weight(FOUR), CellInputs(swap=1), activation,
        weight(THREE), activation, weight(ONE, swap=1), activation, weight(FOUR), activation,
        CellInputs(swap=1), activation])
    assert bench.results == [pattern << 16 for pattern in (TWO, TWO, THREE, THREE, FOUR)]
    bench.finish(5)


@bench_test
async def swaps_while_streaming(dut: HierarchyObject) -> None:
    """While activations stream, a swap changes the weight from the next activation on."""
    bench = CellBench(dut)
    weights = list(range(0x3F80, 0x4080))
    rng = random.Random(cocotb.RANDOM_SEED)
    inputs = [CellInputs(w_north=weights[0], w_north_valid=1), CellInputs(swap=1)]
    expected = []
    for now, following in pairwise(weights):
        length = rng.randint(2, 6)
        tile = [CellInputs(x=ONE, x_valid=1)] * length
        arrival = rng.randrange(length - 1)
        tile[arrival] = replace(tile[arrival], w_west=following, w_west_valid=1)
        tile[-1] = replace(tile[-1], swap=1)
        inputs += tile
        expected += [now << 16] * length
    await bench.run(inputs)
    assert bench.results == expected
    bench.finish(len(expected))


@bench_test
async def holds_while_idle(dut: HierarchyObject) -> None:
    """Once the pipeline is empty, changing data inputs change no output."""
    bench = CellBench(dut)
    traffic = CellTraffic(0.7, 0.5, 0.3)
    bursts = [list(traffic.cycles(20)) for _ in range(50)]
    for burst in bursts:
        await bench.run([*burst, *traffic.idle(bench.config.mac_latency + 10)])
    bench.finish(sum(map(activations, bursts)))
    assert bench.held >= 50 * 8


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """A reset at every distance after traffic drops the next weight and the whole pipeline."""
    bench = CellBench(dut)
    traffic = CellTraffic(0.9, 0.5, 0.3)
    await bench.run(traffic.cycles(30))
    await bench.run(
        one for length in range(2, 80)
        for one in (*[traffic.reset()] * (1 + length % 3), *traffic.cycles(length)))
    assert len(bench.results) > 400
    bench.finish(len(bench.results))
