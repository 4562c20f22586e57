"""Feeders and collectors: rows in order without gaps; registers read and written in time."""

from collections import deque
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from amaranth.lib.wiring import Component
from amaranth.sim import Simulator, SimulatorContext

from hdl.config import Config
from hdl.core.feeder import RowCollector, RowFeeder


def config_with(sublanes: int) -> Config:
    return Config(array=2 * sublanes, sublanes=sublanes, vmem_bytes=8 * sublanes * sublanes)


def simulate(dut: Component,
             process: Callable[[SimulatorContext], Awaitable[None]]) -> None:
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()


class ReadChain:
    """The vector unit's chain of rows, as its control signals change it."""

    def __init__(self, rows: int) -> None:
        self.rows: list = [None] * rows  # the southmost first

    def load(self, rows: list) -> None:
        self.rows = list(rows)

    def shift(self, row: int | None = None) -> None:
        self.rows = [*self.rows[1:], row]


@pytest.mark.parametrize("sublanes", [1, 2, 4, 8])
@pytest.mark.parametrize(("push", "ready"), [(1, 1), (0.3, 1), (1, 0.4), (0.5, 0.5), (0.05, 0.9)])
def test_feeder_gives_every_pushed_register_s_rows_in_order(sublanes: int, push: float,
                                                            ready: float) -> None:
    rng = np.random.default_rng([1, sublanes, int(100 * push), int(100 * ready)])
    dut = RowFeeder(config_with(sublanes))
    cycles = 800

    async def process(ctx: SimulatorContext) -> None:
        chain = ReadChain(sublanes)
        registers = [0] * 32  # how often each has been written
        issued = [0] * 32  # how often bundles that have issued write each
        wanted: deque = deque()
        pushed: deque = deque()  # registers to load, with their contents
        writes: deque = deque()  # cycles at whose ends registers are written
        taken = pushes = gaps = overwritten = 0
        must_load = False
        for cycle in range(cycles):
            victim = int(rng.integers(4))
            can_push = ctx.get(dut.ready)
            free = ctx.get(dut.free)
            assert can_push or not free
            wants = can_push and rng.random() < push
            source, flag = int(rng.integers(4)), int(rng.integers(2))
            ctx.set(dut.push.valid, int(wants))
            ctx.set(dut.push.source, source)
            ctx.set(dut.push.flag, flag)
            ctx.set(dut.row_ready, int(rng.random() < ready))
            # The stream's readiness of this cycle decides, too.
            if wants and not ctx.get(dut.ready):
                wants = False
                ctx.set(dut.push.valid, 0)
            free = ctx.get(dut.free)
            pending = ctx.get(dut.pending.valid), ctx.get(dut.pending.d)
            load = ctx.get(dut.chain.load)
            assert load or not must_load
            must_load = bool(wants and free)
            # Pending is exactly what is not read in this cycle or before.
            later = list(pushed)[1:] if load else list(pushed)
            assert pending[0] == bool(later)
            assert not later or pending[1] == later[0][0]
            valid = ctx.get(dut.row_valid)
            assert ctx.get(dut.idle) == (not wanted)
            if not valid and len(wanted) > sublanes:
                gaps += 1
            if valid and ctx.get(dut.row_ready):
                row, first, own_flag = wanted.popleft()
                assert chain.rows[0] == row, cycle
                assert ctx.get(dut.row_first) == first
                assert ctx.get(dut.row_flag) == own_flag
                taken += 1
            if load:
                register, value = pushed.popleft()
                assert ctx.get(dut.chain.source) == register
                # The register holds the value that the bundles before the push wrote.
                assert registers[register] == value
                chain.load([(register, value, row) for row in range(sublanes)])
            elif ctx.get(dut.chain.shift):
                chain.shift()
            if wants:
                pushes += 1
                value = issued[source]
                pushed.append((source, value))
                wanted.extend(((source, value, row), row == 0, flag) for row in range(sublanes))
            # A bundle that issues in this cycle overwrites the register, at the earliest in the
            # next; with the push itself in the bundle, only if it is loaded then.
            if not (pending[0] and pending[1] == victim) and not (
                    wants and source == victim and not free) and rng.random() < 0.3:
                issued[victim] += 1
                overwritten += 1
                writes.append((cycle + 1, victim))
            await ctx.tick()
            while writes and writes[0][0] <= cycle:
                registers[writes.popleft()[1]] += 1
        assert gaps == 0
        assert pushes > 20
        assert overwritten > 20
        assert taken >= sublanes * (pushes - 3)
        if push == ready == 1:
            assert taken >= cycles - 3

    simulate(dut, process)


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
