"""The matrix unit's control, at every depth of the cell, with streams that stall in every way.

A stub stands in for the cell's arithmetic: integers modulo 2^32, as deep as the real pipeline. The
Python simulator then runs many sizes and depths in seconds, and an error in any weight, activation
or partial sum changes the result, which rounding could hide.
"""


import numpy as np
import pytest
from amaranth import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.sim import SimulatorContext

from hdl.config import Config
from hdl.mxu.cell import MacCell
from hdl.mxu.mxu import Mxu
from verif.hdl.simulation.simulator import fast_simulator

pytestmark = pytest.mark.slow

LOADS = 14
TIMEOUT = 20_000
WILLINGNESS = ((1, 1, 1), (0.5, 0.7, 0.6), (1, 0.3, 1), (0.2, 1, 1), (1, 1, 0.15), (0.9, 0.9, 0.9))
"""Probabilities in a cycle that x offers a new row, that w does, and that y takes a row."""


def delayed(m: Module, name: str, value: Value, valid: Value,
            cycles: int) -> tuple[Value, Value]:
    for stage in range(cycles):
        later = Signal(32, name=f"{name}_{stage}")
        later_valid = Signal(name=f"{name}_{stage}_valid")
        m.d.sync += later_valid.eq(valid)
        with m.If(valid):
            m.d.sync += later.eq(value)
        value, valid = later, later_valid
    return value, valid


@pytest.fixture
def integer_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that add integer products, with the timing of real cells."""

    def integer_datapath(self: MacCell, m: Module, platform: object, weight: Signal) -> None:
        until_p = self.latency - max(1, self.latency - 1)
        product = Signal(32)
        m.d.comb += product.eq(self.x * weight)
        value, valid = delayed(m, "product", product, self.x_valid, until_p)
        total = Signal(32)
        m.d.comb += total.eq(value + self.p)
        value, valid = delayed(m, "total", total, valid, self.latency - until_p)
        m.d.comb += [self.p_south.eq(value), self.p_valid.eq(valid)]

    monkeypatch.setattr(MacCell, "_elaborate_datapath", integer_datapath)


def packed(row: np.ndarray) -> int:
    """A row of bfloat16 patterns as the binary32 words of a stream."""
    return int.from_bytes((row << 16).astype("<u4").tobytes(), "little")


class Traffic:
    """Loads and activations as the streams carry them, and the expected result rows."""

    def __init__(self, rng: np.random.Generator, size: int) -> None:
        self.weights: list[tuple[int, int]] = []
        self.activations: list[tuple[int, int]] = []
        self.results: list[list[int]] = []

        def words(rows: int) -> np.ndarray:
            # No subnormals, infinities and NaNs, which the lanes' rounding would change.
            exponent = rng.integers(1, 255, (rows, size), dtype=np.uint32)
            return exponent << 7 | rng.integers(0, 1 << 16, exponent.shape, np.uint32) & 0x807F

        for _ in range(LOADS):
            w = words(size)
            transpose = int(rng.integers(2))
            for index, row in enumerate(w.T if transpose else w):
                # Only the first row's bit counts.
                self.weights.append((packed(row), int(rng.integers(2)) if index else transpose))
            x = words(rng.choice([1, 1, 1, 2, 3, size, 2 * size]))
            self.activations += [(packed(row), int(index == 0)) for index, row in enumerate(x)]
            self.results += (x @ w).tolist()


class RowSource:
    """Offers rows in order, each until it is taken; an idle payload is random."""

    def __init__(self, stream: wiring.PureInterface, flag: str, rows: list[tuple[int, int]],
                 rng: np.random.Generator) -> None:
        self.stream = stream
        self.flag = flag
        self.rows = rows
        self.rng = rng
        self.taken = 0
        self.offering = False

    def drive(self, ctx: SimulatorContext, willing: bool) -> None:
        self.offering = self.taken < len(self.rows) and (self.offering or willing)
        payload = self.stream.payload
        garbage = int.from_bytes(self.rng.bytes(len(payload.data) // 8)), int(self.rng.integers(2))
        data, flag = self.rows[self.taken] if self.offering else garbage
        ctx.set(self.stream.valid, int(self.offering))
        ctx.set(payload.data, data)
        ctx.set(payload[self.flag], flag)

    def note_transfer(self, ctx: SimulatorContext) -> None:
        if self.offering and ctx.get(self.stream.ready):
            self.taken += 1
            self.offering = False


@pytest.mark.parametrize("mac_latency", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("array", [2, 3, 4, 5, 7])
def test_any_traffic_gives_the_rows_in_order_and_no_more(integer_cells: None, array: int,
                                                         mac_latency: int) -> None:
    rng = np.random.default_rng([array, mac_latency])
    config = Config(array=array, sublanes=1, vmem_bytes=4 * array, mac_latency=mac_latency)
    mxu = Mxu(config)
    work = Traffic(rng, array)
    x = RowSource(mxu.x, "swap", work.activations, rng)
    w = RowSource(mxu.w, "transpose", work.weights, rng)
    got: list[list[int]] = []

    async def testbench(ctx: SimulatorContext) -> None:
        willingness = rng.choice(WILLINGNESS)
        waiting: list[int] | None = None
        quiet = 0
        for _ in range(TIMEOUT):
            if rng.random() < 0.02:
                willingness = rng.choice(WILLINGNESS)
            x_willing, w_willing, y_willing = rng.random(3) < willingness
            x.drive(ctx, x_willing)
            w.drive(ctx, w_willing)
            ctx.set(mxu.y.ready, int(y_willing))
            x.note_transfer(ctx)
            w.note_transfer(ctx)
            row = None
            if ctx.get(mxu.y.valid):
                text = ctx.get(mxu.y.payload).to_bytes(4 * array, "little")
                row = np.frombuffer(text, "<u4").tolist()
            if waiting is not None:
                assert row == waiting, f"row {len(got)} changed while it waited"
            waiting = None if y_willing else row
            if row is not None and y_willing:
                assert row == work.results[len(got)], f"row {len(got)}"
                got.append(row)
            if len(got) == len(work.results):
                quiet += 1
            if quiet > 2 * config.array_latency:
                break
            await ctx.tick()
        assert ctx.get(mxu.mxu_active_cycles) == len(work.activations)

    simulator = fast_simulator(mxu)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    assert got == work.results
    assert (x.taken, w.taken) == (len(work.activations), len(work.weights))


@pytest.mark.parametrize("mac_latency", [2, 3, 5])
@pytest.mark.parametrize("array", [2, 5])
def test_a_straight_load_waits_no_longer_than_it_must(integer_cells: None, array: int,
                                                      mac_latency: int) -> None:
    """It follows a load by as many cycles as the rows of the array are apart, and no more."""
    config = Config(array=array, sublanes=1, vmem_bytes=4 * array, mac_latency=mac_latency)
    mxu = Mxu(config)
    accepted: list[int] = []
    swaps: list[int] = []

    async def testbench(ctx: SimulatorContext) -> None:
        ctx.set(mxu.w.valid, 1)
        ctx.set(mxu.x.valid, 1)
        ctx.set(mxu.x.payload.swap, 1)
        ctx.set(mxu.y.ready, 1)
        for cycle in range(TIMEOUT):
            ctx.set(mxu.w.payload.transpose, transpose if len(accepted) < array else 0)
            ready = ctx.get(mxu.w.ready), ctx.get(mxu.x.ready)
            accepted.extend([cycle] * ready[0])
            swaps.extend([cycle] * ready[1])
            if len(accepted) == 2 * array:
                break
            await ctx.tick()

    simulator = fast_simulator(mxu)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    for transpose in range(2):
        if transpose:
            simulator.reset()
        accepted.clear()
        swaps.clear()
        simulator.run()
        first, second = accepted[:array], accepted[array:]
        assert first == list(range(first[0], first[0] + array)), f"transpose {transpose}"
        assert swaps[0] == first[-1] + 1, f"transpose {transpose}"
        lag = config.row_skew - 1
        expected: list[int] = []
        for row in range(array):
            after_transposed = first[-1] + 1 + lag * (array - 1) if transpose else 0
            after_previous = expected[-1] + 1 if expected else 0
            expected.append(max(swaps[0] + 1 + lag * row, after_transposed, after_previous))
        assert second == expected, f"transpose {transpose}"
