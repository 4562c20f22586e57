"""Feeders and collectors: rows in order without gaps; registers read and written in time."""

from collections import deque

import numpy as np
import pytest
from amaranth.lib.wiring import Component
from amaranth.sim import SimulatorContext

from hdl.config import Config
from hdl.core.feeder import RowCollector, RowFeeder
from verif.hdl.simulation.simulator import simulate


def config_with(sublanes: int) -> Config:
    return Config(array=2 * sublanes, sublanes=sublanes, vmem_bytes=8 * sublanes * sublanes)


class ReadChain:
    """A model of the vector unit's chain of rows, which its control signals change."""

    def __init__(self, rows: int) -> None:
        self.rows: list = [None] * rows  # the southmost first

    def load(self, rows: list) -> None:
        self.rows = list(rows)

    def shift(self, row: int | None = None) -> None:
        self.rows = [*self.rows[1:], row]


class FeederTraffic:
    """Random pushes to a feeder, a random sink of its rows, and bundles that overwrite registers.

    Registers and rows carry the number of writes to their register, so that each read shows which
    bundles came before it.
    """

    def __init__(self, dut: RowFeeder, rng: np.random.Generator, sublanes: int, push: float,
                 ready: float) -> None:
        self._dut = dut
        self._rng = rng
        self._sublanes = sublanes
        self._push, self._ready = push, ready
        self._chain = ReadChain(sublanes)
        self._registers = [0] * 32  # how often each has been written
        self._issued = [0] * 32  # how often bundles that have issued write each
        self._wanted: deque = deque()
        self._pushed: deque = deque()  # registers to load, with their contents
        self._writes: deque = deque()  # cycles at whose ends registers are written
        self._must_load = False
        self.taken = self.pushes = self.gaps = self.overwritten = 0

    async def cycle(self, ctx: SimulatorContext, number: int) -> None:
        dut, rng = self._dut, self._rng
        victim = int(rng.integers(4))
        wants, source, flag = self._drive(ctx)
        free = ctx.get(dut.free)
        pending = ctx.get(dut.pending.valid), ctx.get(dut.pending.d)
        self._check_load(ctx, pending, wants and bool(free))
        self._check_row(ctx)
        self._follow_chain(ctx)
        if wants:
            self.pushes += 1
            value = self._issued[source]
            self._pushed.append((source, value))
            self._wanted.extend(((source, value, row), row == 0, flag)
                                for row in range(self._sublanes))
        # A bundle that issues in this cycle overwrites the register, at the earliest in the next;
        # with the push itself in the bundle, only if it is loaded then.
        if not (pending[0] and pending[1] == victim) and not (
                wants and source == victim and not free) and rng.random() < 0.3:
            self._issued[victim] += 1
            self.overwritten += 1
            self._writes.append((number + 1, victim))
        await ctx.tick()
        while self._writes and self._writes[0][0] <= number:
            self._registers[self._writes.popleft()[1]] += 1

    def _drive(self, ctx: SimulatorContext) -> tuple[bool, int, int]:
        """Drive the inputs; return whether there is a push, its register and its flag."""
        dut, rng = self._dut, self._rng
        can_push = ctx.get(dut.ready)
        assert can_push or not ctx.get(dut.free)
        wants = bool(can_push and rng.random() < self._push)
        source, flag = int(rng.integers(4)), int(rng.integers(2))
        ctx.set(dut.push.valid, int(wants))
        ctx.set(dut.push.source, source)
        ctx.set(dut.push.flag, flag)
        ctx.set(dut.row_ready, int(rng.random() < self._ready))
        # The stream's readiness of this cycle decides, too.
        if wants and not ctx.get(dut.ready):
            wants = False
            ctx.set(dut.push.valid, 0)
        return wants, source, flag

    def _check_load(self, ctx: SimulatorContext, pending: tuple[int, int],
                    next_loads: bool) -> None:
        load = ctx.get(self._dut.chain.load)
        assert load or not self._must_load
        self._must_load = next_loads
        # Pending is exactly what is not read in this cycle or before.
        later = list(self._pushed)[1:] if load else list(self._pushed)
        assert pending[0] == bool(later)
        assert not later or pending[1] == later[0][0]

    def _check_row(self, ctx: SimulatorContext) -> None:
        dut = self._dut
        valid = ctx.get(dut.row_valid)
        assert ctx.get(dut.idle) == (not self._wanted)
        if not valid and len(self._wanted) > self._sublanes:
            self.gaps += 1
        if valid and ctx.get(dut.row_ready):
            row, first, own_flag = self._wanted.popleft()
            assert self._chain.rows[0] == row
            assert ctx.get(dut.row_first) == first
            assert ctx.get(dut.row_flag) == own_flag
            self.taken += 1

    def _follow_chain(self, ctx: SimulatorContext) -> None:
        dut = self._dut
        if ctx.get(dut.chain.load):
            register, value = self._pushed.popleft()
            assert ctx.get(dut.chain.source) == register
            # The register holds the value that the bundles before the push wrote.
            assert self._registers[register] == value
            self._chain.load([(register, value, row) for row in range(self._sublanes)])
        elif ctx.get(dut.chain.shift):
            self._chain.shift()


@pytest.mark.parametrize("sublanes", [1, 2, 4, 8])
@pytest.mark.parametrize(("push", "ready"), [(1, 1), (0.3, 1), (1, 0.4), (0.5, 0.5), (0.05, 0.9)])
def test_feeder_gives_every_pushed_register_s_rows_in_order(sublanes: int, push: float,
                                                            ready: float) -> None:
    rng = np.random.default_rng([1, sublanes, int(100 * push), int(100 * ready)])
    dut = RowFeeder(config_with(sublanes))
    traffic = FeederTraffic(dut, rng, sublanes, push, ready)
    cycles = 800

    async def process(ctx: SimulatorContext) -> None:
        for number in range(cycles):
            await traffic.cycle(ctx, number)

    simulate(dut, process)
    assert traffic.gaps == 0
    assert traffic.pushes > 20
    assert traffic.overwritten > 20
    assert traffic.taken >= sublanes * (traffic.pushes - 3)
    if push == ready == 1:
        assert traffic.taken >= cycles - 3


def test_feeder_loads_in_the_cycle_after_the_push() -> None:
    dut = RowFeeder(config_with(4))

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.row_ready, 1)
        assert ctx.get(dut.free)
        ctx.set(dut.push.valid, 1)
        ctx.set(dut.push.source, 9)
        await ctx.tick()
        ctx.set(dut.push.valid, 0)
        assert ctx.get(dut.chain.load)
        assert ctx.get(dut.chain.source) == 9
        assert not ctx.get(dut.row_valid)
        await ctx.tick()
        for _ in range(4):
            assert ctx.get(dut.row_valid)
            await ctx.tick()
        assert ctx.get(dut.idle)

    simulate(dut, process)


@pytest.mark.parametrize("sublanes", [1, 2, 4, 8])
@pytest.mark.parametrize(("pop", "row", "grant"), [
    (1, 1, 1), (0.2, 1, 1), (1, 0.4, 1), (1, 1, 0.3), (0.5, 0.5, 0.5), (0.05, 1, 0.9)])
def test_collector_writes_the_rows_of_each_pop_in_order(sublanes: int, pop: float, row: float,
                                                        grant: float) -> None:
    rng = np.random.default_rng([2, sublanes, int(100 * pop), int(100 * row), int(100 * grant)])
    dut = RowCollector(config_with(sublanes))
    cycles = 800

    async def process(ctx: SimulatorContext) -> None:
        chain = ReadChain(sublanes)
        waiting: deque = deque()
        came = writes = 0
        next_write = 0
        for cycle in range(cycles):
            ctx.set(dut.row_valid, int(rng.random() < row))
            ctx.set(dut.grant, int(rng.random() < grant))
            wants = ctx.get(dut.ready) and rng.random() < pop
            d = int(rng.integers(32))
            ctx.set(dut.pop.valid, int(wants))
            ctx.set(dut.pop.d, d)
            assert ctx.get(dut.idle) == (not waiting)
            assert len(waiting) <= 1
            if ctx.get(dut.write.valid):
                # The oldest pop, with the oldest rows, the first of them southmost.
                assert ctx.get(dut.write.d) == waiting[0]
                assert chain.rows == list(range(next_write, next_write + sublanes)), cycle
                if ctx.get(dut.grant):
                    waiting.popleft()
                    writes += 1
                    next_write += sublanes
            else:
                assert not (waiting and came - next_write >= sublanes)
            shift = ctx.get(dut.shift)
            assert shift == (ctx.get(dut.row_valid) & ctx.get(dut.row_ready))
            assert ctx.get(dut.row_ready) == (came - next_write < sublanes)
            if shift:
                chain.shift(came)
                came += 1
            if wants:
                waiting.append(d)
            await ctx.tick()
        assert writes > 10
        if pop == row == grant == 1:
            assert came >= cycles - 1

    simulate(dut, process)


@pytest.mark.parametrize("kind", [RowFeeder, RowCollector])
def test_a_config_of_another_type_is_refused(kind: type[Component]) -> None:
    with pytest.raises(TypeError, match="config must be a Config, not 4"):
        kind(4)
