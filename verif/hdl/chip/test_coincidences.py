"""Events that meet in one cycle, and what a refused command or a reset leaves behind."""

import pytest
from amaranth.sim._async import SimulatorContext

from hdl.chip.arbiter import VectorPort
from hdl.chip.registers import (
    CORE_REGISTERS,
    GLOBAL_REGISTERS,
    Access,
    RegisterBlock,
    address,
)
from hdl.config import Config
from hdl.isa import Fault
from verif.hdl.chip.test_registers import RegistersBench
from verif.hdl.simulation.simulator import simulate


def test_an_event_in_the_very_cycle_of_its_clearing_is_kept() -> None:
    dut = RegisterBlock(GLOBAL_REGISTERS)
    register = GLOBAL_REGISTERS["INTERRUPT_STATUS"]
    assert register.access is Access.W1C

    async def process(ctx: SimulatorContext) -> None:
        access = dut.access
        ctx.set(access.address, register.offset)
        for before, cleared, event in ((0, 1, 1), (1, 1, 1), (1, 1, 0), (3, 1, 2), (2, 3, 1)):
            ctx.set(access.valid, 0)
            ctx.set(access.write, 1)
            ctx.set(dut.interrupt_status_set, before)
            await ctx.tick()
            ctx.set(access.valid, 1)
            ctx.set(access.data, cleared)
            ctx.set(dut.interrupt_status_set, event)
            await ctx.tick()
            ctx.set(dut.interrupt_status_set, 0)
            assert ctx.get(dut.interrupt_status) == before & ~cleared | event
            ctx.set(access.data, register.mask)
            await ctx.tick()
            assert ctx.get(dut.interrupt_status) == 0

    simulate(dut, process)


def test_a_transfer_that_is_given_up_leaves_no_older_fault_behind() -> None:
    """DMA_FAULT tells why the last start was refused, and does not keep an earlier reason."""
    bench = RegistersBench()
    given_up = CORE_REGISTERS["DMA_FAULT"].pack(BUSY=1)

    async def process(ctx: SimulatorContext) -> None:
        side = bench.sides[0]
        side.fault = Fault.DMA_RANGE
        assert (await bench.write(ctx, address("DMA_START", 0), 1)).refused
        assert await bench.get(ctx, "DMA_FAULT", 0) == Fault.DMA_RANGE
        ctx.set(bench.dut.core[0].resetting, 1)
        assert (await bench.write(ctx, address("DMA_START", 0), 1)).refused
        assert await bench.get(ctx, "DMA_FAULT", 0) == given_up
        ctx.set(bench.dut.core[0].resetting, 0)
        assert (await bench.write(ctx, address("DMA_START", 0), 1)).refused
        assert await bench.get(ctx, "DMA_FAULT", 0) == Fault.DMA_RANGE

    bench.run(process)


@pytest.mark.parametrize("sublanes", [1, 2, 4])
def test_a_reset_drops_the_register_that_was_begun_and_no_other(sublanes: int) -> None:
    """The remaining rows of that register are discarded; later registers are written as a whole."""
    config = Config(array=2 * sublanes, sublanes=sublanes,
                    vmem_bytes=8 * sublanes * sublanes * 8)
    dut = VectorPort(config, 2)

    async def process(ctx: SimulatorContext) -> None:
        written: list[int] = []

        async def cycle() -> None:
            if ctx.get(dut.host_write.valid) and ctx.get(dut.host_write.ready):
                written.append(ctx.get(dut.host_write.payload.data))
            await ctx.tick()

        async def give(client: int, rows: range) -> None:
            port = dut.write[client]
            for row in rows:
                ctx.set(port.valid, 1)
                ctx.set(port.payload.data, row)
                for _ in range(10):
                    taken = ctx.get(port.ready)
                    await cycle()
                    if taken:
                        break
                else:
                    raise AssertionError(f"row {row} was not taken")
            ctx.set(port.valid, 0)

        async def reset(cycles: int) -> None:
            ctx.set(dut.reset, 1)
            for _ in range(cycles):
                await cycle()
            ctx.set(dut.reset, 0)

        ctx.set(dut.host_write.ready, 1)
        for client in range(2):
            for begun in range(sublanes):
                for cycles in (1, 3):
                    await give(client, range(begun))
                    await reset(cycles)
                    written.clear()
                    if begun:
                        await give(client, range(begun, sublanes))
                        assert not written, "rows of a register that the core does not know"
                    for user in (client, 1 - client, client):
                        await give(user, range(100, 100 + sublanes))
                    assert written == 3 * list(range(100, 100 + sublanes)), (client, begun, cycles)

    simulate(dut, process)
