"""The wiring of a node, among stubs of its core, DMA engine and HBM port, and that of the chip."""

import itertools
from collections.abc import Awaitable, Callable, Container

import pytest
from amaranth import Value
from amaranth.lib.wiring import Out
from amaranth.sim._async import SimulatorContext

from hdl.chip import chip as chip_module
from hdl.chip import node as node_module
from hdl.chip.chip import Chip
from hdl.chip.node import _SETTLE_CYCLES, RESET_CYCLES, CoreNode, CoreReset
from hdl.chip.registers import CORE_REGISTERS
from hdl.config import Config
from hdl.link.eject import ArrivalPort
from verif.hdl.simulation.simulator import simulate
from verif.hdl.stubs import Stub, stub_out

Process = Callable[[SimulatorContext, CoreNode, Stub, Stub, Stub], Awaitable[None]]
"""A test process; its arguments are the context, the node, and the stubs of core, engine and
port."""
Run = Callable[[Process], None]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Run:
    """A function that runs a `Process` on a node whose core, engine and port are stubs."""
    return runner(monkeypatch, Config.preset("tiny"))


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> Run:
    """As `node`, for a node of a chip with links."""
    return runner(monkeypatch, Config.preset("tiny", link_bytes=8))


def runner(monkeypatch: pytest.MonkeyPatch, config: Config) -> Run:
    placed = stub_out(monkeypatch, node_module, "Core", "DmaEngine", "HbmPort")
    dut = CoreNode(config)

    def run(process: Process) -> None:
        simulate(dut, lambda ctx: process(ctx, dut, *(stubs[0] for stubs in placed.values())))

    return run


def test_a_core_is_stopped_while_it_is_being_reset(node: Run) -> None:
    """From the request of the reset on, the core's program runs no bundle and signals nothing."""
    async def process(ctx: SimulatorContext, dut: CoreNode, core: Stub, engine: Stub,
                      port: Stub) -> None:
        for drain in (0, 1, 30):
            assert not ctx.get(core.stop)
            assert not ctx.get(engine.abort)
            ctx.set(engine.busy, 1)
            ctx.set(dut.control.reset_request, 1)
            await ctx.tick()
            ctx.set(dut.control.reset_request, 0)
            cycles = 0
            while ctx.get(dut.control.resetting):
                assert ctx.get(core.stop), f"cycle {cycles} of the reset"
                assert ctx.get(engine.abort), f"cycle {cycles} of the reset"
                ctx.set(engine.busy, int(cycles < drain))
                cycles += 1
                assert cycles < 100
                await ctx.tick()
            assert cycles > drain + RESET_CYCLES
        # The host's own stop, too.
        ctx.set(dut.control.stop, 1)
        assert ctx.get(core.stop)

    node(process)


def test_a_reset_waits_for_engine_and_port(node: Run) -> None:
    async def process(ctx: SimulatorContext, dut: CoreNode, core: Stub, engine: Stub,
                      port: Stub) -> None:
        for busy in (engine.busy, port.busy):
            ctx.set(busy, 1)
            ctx.set(dut.control.reset_request, 1)
            await ctx.tick()
            ctx.set(dut.control.reset_request, 0)
            for _ in range(40):
                await ctx.tick()
                assert ctx.get(dut.control.resetting)
            ctx.set(busy, 0)
            for _ in range(RESET_CYCLES + 2):
                await ctx.tick()
            assert not ctx.get(dut.control.resetting)

    node(process)


def reset_of(requests: Container[int], busy: Container[int], cycles: int = 60) -> tuple[
        list[int], list[int]]:
    """The cycles in which `CoreReset` is ``resetting``, and those of ``reset``.

    ``requests`` are the cycles of requests; in those of ``busy``, accesses are in progress.
    """
    dut = CoreReset()
    resetting, reset = [], []

    async def process(ctx: SimulatorContext) -> None:
        for cycle in range(cycles):
            ctx.set(dut.request, cycle in requests)
            ctx.set(dut.at_rest, cycle not in busy)
            if ctx.get(dut.resetting):
                resetting.append(cycle)
            if ctx.get(dut.reset):
                reset.append(cycle)
            await ctx.tick()

    simulate(dut, process)
    return resetting, reset


@pytest.mark.parametrize("request_at", [0, 5])
def test_a_reset_settles_waits_for_rest_and_resets_for_the_given_cycles(request_at: int) -> None:
    settled = request_at + 1 + _SETTLE_CYCLES
    # From the cycle in which it settles, it waits as long as accesses are in progress.
    for last in (request_at, settled - 1, settled, settled + 1, settled + 7):
        begin = max(last + 1, settled) + 1
        end = begin + RESET_CYCLES
        assert reset_of({request_at}, range(last + 1)) == (
            list(range(request_at + 1, end)), list(range(begin, end))), last


def test_a_request_before_the_core_is_reset_changes_nothing() -> None:
    for again in range(1, 1 + _SETTLE_CYCLES + 1):
        assert reset_of({0, again}, ()) == reset_of({0}, ()), again


def test_a_request_while_the_core_is_reset_begins_again() -> None:
    begin = 1 + _SETTLE_CYCLES + 1
    for again in range(begin, begin + RESET_CYCLES):
        second = again + 1 + _SETTLE_CYCLES + 1
        end = second + RESET_CYCLES
        assert reset_of({0, again}, ()) == (
            list(range(1, end)), [*range(begin, again + 1), *range(second, end)]), again


def test_a_bus_error_of_the_engine_reaches_the_core(node: Run) -> None:
    async def process(ctx: SimulatorContext, dut: CoreNode, core: Stub, engine: Stub,
                      port: Stub) -> None:
        for value in (1, 0, 1):
            ctx.set(engine.bus_error, value)
            assert ctx.get(core.bus_error) == value

    node(process)


def test_an_error_of_a_link_during_a_reset_is_kept_until_the_reset_has_ended(linked: Run) -> None:
    """A core that is reset forgets the fault, so it must see the error in the cycle after."""
    length = _SETTLE_CYCLES + 1 + RESET_CYCLES

    async def process(ctx: SimulatorContext, dut: CoreNode, core: Stub, engine: Stub,
                      port: Stub) -> None:
        for at in (None, *range(length), None):
            for value in (0, 1, 0, 0):  # without a reset, in the same cycle
                ctx.set(dut.link_error, value)
                assert ctx.get(core.link_error) == value
                await ctx.tick()
            ctx.set(dut.control.reset_request, 1)
            await ctx.tick()
            ctx.set(dut.control.reset_request, 0)
            cycles = 0
            while ctx.get(dut.control.resetting):
                ctx.set(dut.link_error, cycles == at)
                assert ctx.get(core.link_error) == (at is not None and cycles >= at), at
                cycles += 1
                assert cycles <= length
                await ctx.tick()
            ctx.set(dut.link_error, 0)
            assert cycles == length
            assert ctx.get(core.link_error) == (at is not None), at
            await ctx.tick()
            assert not ctx.get(core.link_error)

    linked(process)


def test_each_side_sees_whether_a_register_is_still_to_be_written(node: Run) -> None:
    """A transfer's signal waits until the register is written, on either core."""
    async def process(ctx: SimulatorContext, dut: CoreNode, core: Stub, engine: Stub,
                      port: Stub) -> None:
        for ready, peer in itertools.product((0, 1), repeat=2):
            ctx.set(core.host_write.ready, ready)
            ctx.set(dut.peer.busy, peer)
            assert ctx.get(dut.guest.busy) == (not ready)
            assert ctx.get(engine.vmem_busy) == (not ready)
            assert ctx.get(engine.other_busy) == peer

    node(process)


def test_a_packet_s_signal_reaches_the_core_only_when_its_vector_is_written(linked: Run) -> None:
    async def process(ctx: SimulatorContext, dut: CoreNode, core: Stub, engine: Stub,
                      port: Stub) -> None:
        packet, row = ArrivalPort.streams(dut.arrivals)[0]
        for field, value in (("vector", 1), ("signal", 1), ("semaphore", 5), ("amount", 1)):
            ctx.set(packet.payload[field], value)
        for delay in range(4):
            ctx.set(packet.valid, 1)
            ctx.set(row.valid, 1)
            ctx.set(core.host_write.ready, 1)
            for _ in range(20):
                if taken := ctx.get(packet.ready):
                    break
                await ctx.tick()
            assert taken
            await ctx.tick()
            ctx.set(packet.valid, 0)
            ctx.set(row.valid, 0)
            signals = []
            for cycle in range(12):
                # The core has all rows, and writes them in the cycle ``delay``.
                ctx.set(core.host_write.ready, cycle >= delay)
                if ctx.get(core.signal.valid):
                    assert ctx.get(core.signal.index) == 5
                    signals.append(cycle)
                await ctx.tick()
            assert len(signals) == 1
            assert signals[0] > delay, delay

    linked(process)


def test_a_chip_connects_its_cores_and_shows_their_status(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = stub_out(monkeypatch, chip_module, "ControlSlave", "CoreNode")
    dut = Chip(Config.preset("tiny"), status=True)
    async def process(ctx: SimulatorContext) -> None:
        [control], nodes = placed["ControlSlave"], placed["CoreNode"]
        for value in (1, 0):
            ctx.set(control.interrupt, value)
            assert ctx.get(dut.interrupt) == value
        for node, other in (nodes, nodes[::-1]):
            guest = {path: Value.cast(signal)
                     for path, _, signal in other.guest.signature.flatten(other.guest)}
            for path, member, signal in node.peer.signature.flatten(node.peer):
                ends = [Value.cast(signal), guest[path]]
                source, sink = ends if member.flow is Out else reversed(ends)
                for value in ((1 << len(source)) - 1, 0):
                    ctx.set(source, value)
                    assert ctx.get(sink) == value, path
        for number, node in enumerate(nodes):
            for field in CORE_REGISTERS["STATUS"].fields:
                signal = getattr(node.control, field.name.lower())
                # Only the cores of a chip with links have faults of all bits.
                value = (1 << len(signal)) - 1
                assert len(signal) == field.width - (field.name == "FAULT")
                ctx.set(signal, value)
                status = ctx.get(getattr(dut, f"status_{number}"))
                assert status == value << field.low, field.name
                ctx.set(signal, 0)
            ctx.set(node.control.pc, 7 + number)
            assert ctx.get(getattr(dut, f"pc_{number}")) == 7 + number

    simulate(dut, process, clock=False)
