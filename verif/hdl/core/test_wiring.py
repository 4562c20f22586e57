"""The logic of `Core` itself: stubs replace all units, and tests set and read the stubs' ports."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from amaranth import Value
from amaranth.sim._async import SimulatorContext

from hdl.config import Config
from hdl.core import core as core_module
from hdl.core.core import Core
from hdl.vpu.interface import V1_DELAY
from verif.hdl.simulation.simulator import simulate
from verif.hdl.stubs import Stub, stub_out

TINY = Config.preset("tiny")
STAGED = replace(TINY, issue_cycles=3)
UNITS = ("Sequencer", "Vpu", "Mxu", "Xlu", "RowFeeder", "RowCollector", "CoreCounters")


Units = dict[str, list[Stub]]
Put = Callable[[Value, int], None]
Get = Callable[[Value], int]
Check = Callable[[Core, Units, Put, Get], None]
Run = Callable[[Check], None]


@pytest.fixture(params=[TINY, STAGED], ids=["one stage", "three stages"])
def wiring(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Run:
    """A function that runs a check of a core whose units are stubs."""
    return runner(monkeypatch, request.param)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Run:
    """As `wiring`, for a core with ``issue_cycles`` 3."""
    return runner(monkeypatch, STAGED)


def runner(monkeypatch: pytest.MonkeyPatch, config: Config) -> Run:
    placed = stub_out(monkeypatch, core_module, *UNITS)
    dut = Core(config)

    def run(check: Check) -> None:
        async def process(ctx: SimulatorContext) -> None:
            check(dut, placed, ctx.set, ctx.get)

        simulate(dut, process, clock=config.issue_cycles > 1)

    return run


def test_a_core_is_idle_only_if_every_unit_is(wiring: Run) -> None:
    def check(dut: Core, units: Units, put: Put, get: Get) -> None:
        feeders, (collector,) = units["RowFeeder"], units["RowCollector"]
        assert len(feeders) == 2
        idle = [*(feeder.idle for feeder in feeders), collector.idle]
        busy = [units[name][0].busy for name in ("Xlu", "Vpu", "Sequencer")]
        for values in itertools.product((0, 1), repeat=len(idle) + len(busy)):
            for signal, value in zip((*idle, *busy), values, strict=True):
                put(signal, value)
            wanted = all(values[:len(idle)]) and not any(values[len(idle):])
            assert get(dut.idle) == wanted, dict(zip(
                ("feeder_x idle", "feeder_w idle", "collector idle", "xlu busy", "vpu busy",
                 "sequencer busy"), values, strict=True))

    wiring(check)


def test_only_the_first_row_of_a_push_with_a_swap_swaps_the_weights(wiring: Run) -> None:
    def check(dut: Core, units: Units, put: Put, get: Get) -> None:
        x, w = units["RowFeeder"]
        (mxu,) = units["Mxu"]
        for x_flag, x_first, w_flag, w_first in itertools.product((0, 1), repeat=4):
            for signal, value in ((x.row_flag, x_flag), (x.row_first, x_first),
                                  (w.row_flag, w_flag), (w.row_first, w_first)):
                put(signal, value)
            assert get(mxu.x.payload.swap) == (x_flag and x_first), (x_flag, x_first)
            assert get(mxu.w.payload.transpose) == w_flag

    wiring(check)


def test_the_cross_lane_unit_writes_before_pops_which_wait(wiring: Run) -> None:
    def check(dut: Core, units: Units, put: Put, get: Get) -> None:
        (xlu,), (vpu,), (collector,) = (units[name] for name in ("Xlu", "Vpu", "RowCollector"))
        put(xlu.write.d, 5)
        put(collector.write.d, 9)
        for from_xlu, from_pop in itertools.product((0, 1), repeat=2):
            put(xlu.write.valid, from_xlu)
            put(collector.write.valid, from_pop)
            assert get(collector.grant) == (not from_xlu)
            assert get(vpu.chain_write.valid) == (from_xlu or from_pop)
            assert get(vpu.chain_write.from_xlu) == from_xlu
            if from_xlu or from_pop:
                assert get(vpu.chain_write.d) == (5 if from_xlu else 9)

    wiring(check)


def test_the_vector_unit_tells_the_host_and_the_sequencer_of_the_host_s_access(wiring: Run) -> None:
    def check(dut: Core, units: Units, put: Put, get: Get) -> None:
        (sequencer,), (vpu,) = units["Sequencer"], units["Vpu"]
        pairs = {"host_busy": (vpu.host_busy, dut.host_busy),
                 "urgent_read": (vpu.urgent_read, sequencer.urgent_read),
                 "urgent_write": (vpu.urgent_write, sequencer.urgent_write)}
        for chosen in (None, *pairs):
            for name, (source, _) in pairs.items():
                put(source, name == chosen)
            for name, (_, sink) in pairs.items():
                assert get(sink) == (name == chosen), f"{name} while {chosen} is set"

    wiring(check)


def test_the_sequencer_s_state_is_the_core_s(wiring: Run) -> None:
    def check(dut: Core, units: Units, put: Put, get: Get) -> None:
        (sequencer,) = units["Sequencer"]
        for value in (0, 1):
            put(sequencer.running, value)
            put(sequencer.waiting_semaphore, 1 - value)
            put(sequencer.fault, 3 + value)
            put(sequencer.pc, 5 + value)
            assert (get(dut.running), get(dut.waiting)) == (value, 1 - value)
            assert (get(dut.fault), get(dut.pc)) == (3 + value, 5 + value)

    wiring(check)


def test_in_three_stages_slots_read_before_chains_and_activations_before_weights(
        staged: Run) -> None:
    """Weights wait for the slots and for activations, all other chains for the slots only."""
    def check(dut: Core, units: Units, put: Put, get: Get) -> None:
        x, w = units["RowFeeder"]
        (xlu,), (vpu,), (sequencer,) = (units[name] for name in ("Xlu", "Vpu", "Sequencer"))
        for reading, loads, free, pending in itertools.product((0, 1), repeat=4):
            for signal, value in ((vpu.reading, reading), (x.chain.load, loads), (w.free, free),
                                  (x.pending.valid, pending)):
                put(signal, value)
            assert get(xlu.grant) == (not reading)
            assert get(x.grant) == (not reading)
            assert get(w.grant) == (not reading and not loads), (reading, loads)
            assert get(sequencer.w_free) == (free and not pending), (free, pending)

    staged(check)


def test_in_three_stages_a_pop_waits_for_loads_and_the_cross_lane_unit(staged: Run) -> None:
    def check(dut: Core, units: Units, put: Put, get: Get) -> None:
        (xlu,), (vpu,), (collector,) = (units[name] for name in ("Xlu", "Vpu", "RowCollector"))
        for load, from_xlu, from_pop in itertools.product((0, 1), repeat=3):
            put(vpu.load_waits, load)
            put(xlu.write.valid, from_xlu)
            put(collector.write.valid, from_pop)
            assert get(collector.grant) == (not load and not from_xlu), (load, from_xlu)
            assert get(vpu.chain_write.valid) == (from_xlu or (from_pop and not load)), (
                load, from_xlu, from_pop)

    staged(check)


def test_in_three_stages_a_pop_waits_until_the_bundle_has_read_its_registers(
        monkeypatch: pytest.MonkeyPatch) -> None:
    placed = stub_out(monkeypatch, core_module, *UNITS)
    dut = Core(STAGED)
    began: list[tuple[int, int]] = []
    ready: list[int] = []

    async def process(ctx: SimulatorContext) -> None:
        (sequencer,), (collector,) = placed["Sequencer"], placed["RowCollector"]
        ctx.set(collector.ready, 1)
        for cycle in range(12):
            pops = cycle in (2, 7)
            ctx.set(sequencer.pop.valid, pops)
            # Only in the cycle of the pop is this the register's number.
            ctx.set(sequencer.pop.d, 20 + cycle)
            if ctx.get(sequencer.pop_ready):
                ready.append(cycle)
            if ctx.get(collector.pop.valid):
                began.append((cycle, ctx.get(collector.pop.d)))
            await ctx.tick()
        ctx.set(collector.ready, 0)
        assert not ctx.get(sequencer.pop_ready)

    simulate(dut, process)
    assert began == [(2 + V1_DELAY, 22), (7 + V1_DELAY, 27)]
    assert ready == [cycle for cycle in range(12)
                     if not 2 < cycle <= 2 + V1_DELAY and not 7 < cycle <= 7 + V1_DELAY]
