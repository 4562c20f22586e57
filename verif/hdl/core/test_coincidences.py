"""Events in one cycle: faults, starts, writes of registers, and the host's requests."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from amaranth import Signal
from amaranth.sim._async import SimulatorContext

from hdl.config import Config
from hdl.core.fetch import Examination, ProgramControl
from hdl.core.interface import REQUEST_WORD_BITS, Space
from hdl.core.scoreboard import Scoreboard
from hdl.core.sequencer import Sequencer
from hdl.encoding import bundle_words
from hdl.isa import Fault
from sim.asm.assembler import Assembler
from sim.asm.operands import s, sem, v
from verif.hdl.simulation.simulator import simulate

CONFIG = Config(array=4, sublanes=2, vmem_bytes=32 * 8, smem_words=16, imem_bundles=4,
                hbm_bytes=4096, hbm_channels=1)


async def pulse(ctx: SimulatorContext, *signals: Signal) -> None:
    for signal in signals:
        ctx.set(signal, 1)
    await ctx.tick()
    for signal in signals:
        ctx.set(signal, 0)


@pytest.mark.parametrize(("cause", "fault"), [
    ("interrupt", Fault.SEMAPHORE), ("bus_error", Fault.BUS_ERROR)])
@pytest.mark.parametrize("earlier", [Fault.NONE, Fault.SEMAPHORE, Fault.BUS_ERROR])
def test_a_fault_in_the_cycle_of_a_start_stops_the_core(cause: str, fault: Fault,
                                                        earlier: Fault) -> None:
    """A start clears an earlier fault, but not a fault of the same cycle."""
    dut = ProgramControl(CONFIG)

    async def process(ctx: SimulatorContext) -> None:
        if earlier != Fault.NONE:
            await pulse(ctx, dut.interrupt if earlier == Fault.SEMAPHORE else dut.bus_error)
            assert ctx.get(dut.fault) == earlier
        await pulse(ctx, dut.start, getattr(dut, cause))
        assert not ctx.get(dut.running)
        assert ctx.get(dut.fault) == fault
        await pulse(ctx, dut.start)
        assert ctx.get(dut.running)
        assert ctx.get(dut.fault) == Fault.NONE

    simulate(dut, process)


def test_of_a_stopped_core_the_first_fault_is_kept() -> None:
    dut = ProgramControl(CONFIG)

    async def process(ctx: SimulatorContext) -> None:
        await pulse(ctx, dut.bus_error)
        await pulse(ctx, dut.interrupt)
        assert ctx.get(dut.fault) == Fault.BUS_ERROR

    simulate(dut, process)


CAUSES = (Fault.SEMAPHORE, Fault.WATCHDOG, Fault.BUS_ERROR)


@pytest.mark.parametrize("given", [
    (Fault.WATCHDOG, Fault.BUS_ERROR), (Fault.SEMAPHORE, Fault.WATCHDOG),
    (Fault.SEMAPHORE, Fault.BUS_ERROR), CAUSES, *((cause,) for cause in CAUSES)])
def test_of_faults_in_one_cycle_the_least_number_is_reported(given: Sequence[Fault]) -> None:
    limit = 5
    dut = ProgramControl(CONFIG)

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.watchdog, limit if Fault.WATCHDOG in given else 0)
        await pulse(ctx, dut.start)
        for _ in range(limit):
            assert ctx.get(dut.running)
            await ctx.tick()
        # In this cycle the watchdog expires, and the others happen.
        ctx.set(dut.interrupt, int(Fault.SEMAPHORE in given))
        ctx.set(dut.bus_error, int(Fault.BUS_ERROR in given))
        await ctx.tick()
        assert not ctx.get(dut.running)
        assert ctx.get(dut.fault) == min(given)

    simulate(dut, process)


class Host:
    """The host's port of a `Sequencer`."""

    def __init__(self, ctx: SimulatorContext, dut: Sequencer) -> None:
        self._ctx = ctx
        self._dut = dut

    def offer(self, write: int, space: Space, address: int, data: int = 0) -> None:
        request = self._dut.request
        for name, value in (("write", write), ("space", space.value), ("address", address),
                            ("data", data)):
            self._ctx.set(request.payload[name], value)
        self._ctx.set(request.valid, 1)

    async def complete(self) -> int:
        """Waits until the offer is taken, and returns the data of the response."""
        ctx, dut = self._ctx, self._dut
        for _ in range(50):
            taken = ctx.get(dut.request.ready)
            await ctx.tick()
            if taken:
                break
        else:
            raise AssertionError("the request was not taken")
        ctx.set(dut.request.valid, 0)
        assert ctx.get(dut.response.valid)
        assert not ctx.get(dut.response.error)
        return ctx.get(dut.response.data)

    async def access(self, write: int, space: Space, address: int, data: int = 0) -> int:
        self.offer(write, space, address, data)
        return await self.complete()


@pytest.mark.parametrize("issue_cycles", [1, 3])
def test_a_signal_from_outside_counts_before_or_after_a_bundle(issue_cycles: int) -> None:
    """The signal arrives in each cycle around a bundle's addition; the second one overflows."""
    config = replace(CONFIG, issue_cycles=issue_cycles)
    asm = Assembler(config)
    with asm.bundle() as b:
        b.misc.signal(sem[3], 1)
    with asm.bundle() as b:
        b.s1.halt()
    bundles = asm.assemble().bundles
    full = 0xFFFF_FFFF
    dut = Sequencer(config)
    stopped_at = []

    async def process(ctx: SimulatorContext) -> None:
        host = Host(ctx, dut)
        for at, bundle in enumerate(bundles):
            for number, word in enumerate(bundle_words(bundle)):
                await host.access(1, Space.IMEM, at << REQUEST_WORD_BITS | number, word)
        ctx.set(dut.signal.index, 3)
        ctx.set(dut.signal.amount, 1)
        for arrives in range(8):
            await host.access(1, Space.SEMAPHORE, 3, full - 1)
            await pulse(ctx, dut.start)
            for cycle in range(12):
                ctx.set(dut.signal.valid, cycle == arrives)
                await ctx.tick()
            assert not ctx.get(dut.running)
            assert ctx.get(dut.fault) == Fault.SEMAPHORE, arrives
            assert await host.access(0, Space.SEMAPHORE, 3) == full, arrives
            stopped_at.append(ctx.get(dut.pc))

    simulate(dut, process)
    # A signal that comes first makes the bundle fault; one that comes later, the core.
    assert stopped_at == sorted(stopped_at)
    assert stopped_at[:issue_cycles] == [0] * issue_cycles
    assert stopped_at[-1] == 1


@pytest.mark.parametrize("issue_cycles", [1, 3])
def test_a_stop_in_any_cycle_executes_no_bundle_twice(issue_cycles: int) -> None:
    """No bundle issues after the stop, and the program goes on where it was."""
    config = replace(CONFIG, issue_cycles=issue_cycles)
    asm = Assembler(config)
    for _ in range(3):
        with asm.bundle() as b:
            b.s0.add(s[1], s[1], 1)
            b.misc.signal(sem[3], 1)
    with asm.bundle() as b:
        b.s1.halt()
    bundles = asm.assemble().bundles
    dut = Sequencer(config)
    stopped_at = set()

    async def process(ctx: SimulatorContext) -> None:
        host = Host(ctx, dut)
        for at, bundle in enumerate(bundles):
            for number, word in enumerate(bundle_words(bundle)):
                await host.access(1, Space.IMEM, at << REQUEST_WORD_BITS | number, word)
        for arrives in range(3 * issue_cycles + 1):
            await host.access(1, Space.SCALAR, 1, 0)
            await host.access(1, Space.SEMAPHORE, 3, 0)
            ctx.set(dut.start_pc, 0)
            await pulse(ctx, dut.start)
            for _ in range(arrives):
                await ctx.tick()
            await pulse(ctx, dut.stop)
            assert not ctx.get(dut.running)
            await ctx.tick().repeat(4)
            count = ctx.get(dut.pc)
            stopped_at.add(count)
            assert await host.access(0, Space.SCALAR, 1) == count, arrives
            ctx.set(dut.start_pc, count)
            await pulse(ctx, dut.start)
            await ctx.tick().repeat(15)
            assert not ctx.get(dut.running)
            assert await host.access(0, Space.SCALAR, 1) == 3, arrives
            assert await host.access(0, Space.SEMAPHORE, 3) == 3, arrives

    simulate(dut, process)
    assert stopped_at == {0, 1, 2, 3}


def test_a_signal_to_another_chip_waits_with_its_bundle_and_other_bundles_send_none() -> None:
    config = replace(CONFIG, link_bytes=4)
    port_is_free = 15
    asm = Assembler(config)
    with asm.bundle() as b:
        b.s0.add(s[1], s[0], 1)
    with asm.bundle() as b:
        b.ld.load(v[1], s[0], 0)
        b.misc.signal_remote(sem[3], s[1], 1)
    with asm.bundle() as b:
        b.s1.halt()
    dut = Sequencer(config)
    offered = []

    async def process(ctx: SimulatorContext) -> None:
        host = Host(ctx, dut)
        for at, bundle in enumerate(asm.assemble().bundles):
            for number, word in enumerate(bundle_words(bundle)):
                await host.access(1, Space.IMEM, at << REQUEST_WORD_BITS | number, word)
        ctx.set(dut.remote.ready, 1)
        await pulse(ctx, dut.start)
        for cycle in range(2 * port_is_free):
            ctx.set(dut.urgent_read, cycle < port_is_free)  # the load waits, with its bundle
            if ctx.get(dut.remote.valid):
                offered.append(cycle)
            await ctx.tick()
        assert ctx.get(dut.pc) == 2
        assert not ctx.get(dut.running)

    simulate(dut, process)
    assert offered == [port_is_free]


@pytest.mark.parametrize("issue_cycles", [1, 3])
@pytest.mark.parametrize("space", [Space.SMEM, Space.SEMAPHORE])
def test_a_request_right_after_a_halt_waits_for_the_last_scalar_result(
        space: Space, issue_cycles: int) -> None:
    """A late scalar result of the halting bundle uses the host's write port after the halt.

    The result of a scalar load is late; with ``issue_cycles`` 3, the value of a semaphore too.
    """
    config = replace(CONFIG, issue_cycles=issue_cycles)
    asm = Assembler(config)
    with asm.bundle() as b:
        if space == Space.SMEM:
            b.s0.load(s[20], s[0], 3)
        else:
            b.misc.read_semaphore(s[20], sem[3])
        b.s1.halt()
    bundles = asm.assemble().bundles
    loaded, written, before = 0x1234_5678, 0x9ABC_DEF0, 0x0BAD_0BAD
    dut = Sequencer(config)
    # A read and a write of the result's register, and of another one.
    requests = [(0, 20), (1, 20), (0, 21), (1, 21)]
    checked = []

    async def process(ctx: SimulatorContext) -> None:
        host = Host(ctx, dut)
        for at, bundle in enumerate(bundles):
            for number, word in enumerate(bundle_words(bundle)):
                await host.access(1, Space.IMEM, at << REQUEST_WORD_BITS | number, word)
        await host.access(1, space, 3, loaded)
        for write, register in requests:
            for number in (20, 21):
                await host.access(1, Space.SCALAR, number, before)
            await pulse(ctx, dut.start)
            assert ctx.get(dut.running)
            # It is on offer when the core stops, and taken as soon as that may be.
            host.offer(write, Space.SCALAR, register, written)
            read = await host.complete()
            assert not ctx.get(dut.running)
            wanted = {20: loaded, 21: before}
            if write:
                wanted[register] = written
            else:
                assert read == wanted[register], register
            for number, value in wanted.items():
                assert await host.access(0, Space.SCALAR, number) == value, (write, register)
            checked.append(register)

    simulate(dut, process)
    assert len(checked) == len(requests)


def test_an_examined_bundle_waits_only_for_the_port_of_memory_that_it_needs() -> None:
    """With ``issue_cycles`` 3, the host's urgent access is seen in the cycle of the issue."""
    dut = Examination()
    checked = []

    async def process(ctx: SimulatorContext) -> None:
        for loads, stores in itertools.product((0, 1), repeat=2):
            ctx.set(dut.valid, 0)
            ctx.set(dut.clear, 0)
            await ctx.tick()
            ctx.set(dut.loads, loads)
            ctx.set(dut.stores, stores)
            for stage in (dut.valid, dut.clear):
                ctx.set(stage, 1)
                assert not ctx.get(dut.ready)
                await ctx.tick()
            for urgent_read, urgent_write in itertools.product((0, 1), repeat=2):
                ctx.set(dut.urgent_read, urgent_read)
                ctx.set(dut.urgent_write, urgent_write)
                waits = (loads and urgent_read) or (stores and urgent_write)
                assert ctx.get(dut.ready) == (not waits), (loads, stores, urgent_read, urgent_write)
                checked.append(waits)
                await ctx.tick()

    simulate(dut, process)
    assert len(checked) == 16


@pytest.mark.parametrize("kind", ["vector", "mask"])
def test_the_scoreboard_is_busy_until_the_last_register_is_written(kind: str) -> None:
    dut = Scoreboard()
    asked, written = {"vector": (dut.vector_writes, dut.written.load),
                      "mask": (dut.mask_writes, dut.mask_written.v1)}[kind]
    last = len(asked) - 1
    checked = []

    async def process(ctx: SimulatorContext) -> None:
        for order in ((0, last), (last, 0)):
            assert not ctx.get(dut.busy)
            ctx.set(asked, 1 | 1 << last)
            await pulse(ctx, dut.issue)
            ctx.set(asked, 0)
            for number in order:
                for _ in range(2):
                    assert ctx.get(dut.busy)
                    await ctx.tick()
                ctx.set(written.d, number)
                assert ctx.get(dut.busy)
                await pulse(ctx, written.valid)
            assert not ctx.get(dut.busy)
            checked.append(order)

    simulate(dut, process)
    assert len(checked) == 2


def test_the_scoreboard_is_busy_until_a_scalar_load_is_written() -> None:
    dut = Scoreboard()

    async def process(ctx: SimulatorContext) -> None:
        for loads in (1, 0):
            ctx.set(dut.scalar_load, loads)
            ctx.set(dut.scalar_d, 1)
            assert not ctx.get(dut.busy)
            await pulse(ctx, dut.issue)
            assert ctx.get(dut.busy) == loads
            await ctx.tick()
            assert not ctx.get(dut.busy)

    simulate(dut, process)
