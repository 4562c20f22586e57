"""The host's access to vector memory: how long it waits for the core, and when it is busy."""

from dataclasses import replace

import pytest
from amaranth import Signal
from amaranth.lib import wiring
from amaranth.sim._async import SimulatorContext

from hdl.config import Config
from hdl.vpu.control import HostControl
from hdl.vpu.interface import HostSpace
from hdl.vpu.vpu import Vpu
from verif.hdl.simulation.simulator import simulate

CONFIG = Config(array=4, sublanes=2, vmem_bytes=32 * 8)
PATIENCE = 8
"""Cycles that an access of the host waits for a port before it becomes urgent, see docs/core.md."""


async def ask(ctx: SimulatorContext, dut: wiring.Component,
              space: HostSpace = HostSpace.VMEM) -> None:
    """Makes a request, which must be accepted in the current cycle."""
    ctx.set(dut.requests.valid, 1)
    ctx.set(dut.requests.payload.space, space)
    assert ctx.get(dut.requests.ready)
    await ctx.tick()
    ctx.set(dut.requests.valid, 0)


async def pulse(ctx: SimulatorContext, signal: Signal) -> None:
    ctx.set(signal, 1)
    await ctx.tick()
    ctx.set(signal, 0)


async def give(ctx: SimulatorContext, dut: wiring.Component, rows: int) -> None:
    for _ in range(rows):
        ctx.set(dut.write_valid, 1)
        assert ctx.get(dut.write_ready)
        await ctx.tick()
    ctx.set(dut.write_valid, 0)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_port_becomes_urgent_after_the_host_s_patience_and_not_before(kind: str) -> None:
    dut = HostControl(CONFIG)

    async def process(ctx: SimulatorContext) -> None:
        core_uses = dut.core_reads if kind == "read" else dut.core_writes
        urgent = dut.urgent_read if kind == "read" else dut.urgent_write
        other = dut.urgent_write if kind == "read" else dut.urgent_read
        done = dut.read if kind == "read" else dut.write
        ctx.set(dut.rows_ready, 1)
        for _ in range(2):
            ctx.set(core_uses, 1)
            await (ask(ctx, dut) if kind == "read" else give(ctx, dut, CONFIG.sublanes))
            for cycle in range(PATIENCE):
                assert not ctx.get(urgent), f"urgent after {cycle} cycles"
                assert not ctx.get(done)
                await ctx.tick()
            # It stays so until the port is the host's.
            for _ in range(3):
                assert ctx.get(urgent)
                assert not ctx.get(other)
                assert ctx.get(dut.busy)
                await ctx.tick()
            ctx.set(core_uses, 0)
            assert ctx.get(done)
            await ctx.tick()
            assert not ctx.get(urgent)
            for _ in range(CONFIG.sublanes + 2):
                await ctx.tick()
            assert not ctx.get(dut.busy)

    simulate(dut, process)


@pytest.mark.parametrize("space", HostSpace)
def test_the_host_is_busy_from_a_request_to_its_last_row(space: HostSpace) -> None:
    dut = HostControl(CONFIG)

    async def process(ctx: SimulatorContext) -> None:
        assert not ctx.get(dut.busy)
        await ask(ctx, dut, space)
        rows = waited = 0
        while rows < CONFIG.sublanes:
            assert ctx.get(dut.busy), f"{rows} rows given"
            ctx.set(dut.core_reads, int(waited < 5))  # the request waits for the port
            ctx.set(dut.rows_ready, waited % 2)
            rows += ctx.get(dut.rows_valid) and ctx.get(dut.rows_ready)
            waited += 1
            assert waited < 50
            await ctx.tick()
        assert not ctx.get(dut.busy)

    simulate(dut, process)


def test_the_host_is_busy_from_its_first_row_until_the_word_is_written() -> None:
    dut = HostControl(CONFIG)

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.core_writes, 1)
        for _ in range(CONFIG.sublanes):
            await give(ctx, dut, 1)
            assert ctx.get(dut.busy)
        for _ in range(4):
            await ctx.tick()
            assert ctx.get(dut.busy)
            assert not ctx.get(dut.write)
        ctx.set(dut.core_writes, 0)
        assert ctx.get(dut.write)
        await ctx.tick()
        assert not ctx.get(dut.busy)

    simulate(dut, process)


@pytest.mark.parametrize("space", [HostSpace.VREG, HostSpace.MASK])
def test_a_read_that_stores_delay_does_not_become_urgent(space: HostSpace) -> None:
    """The read must not hold the core up: it does not wait for the core's loads."""
    dut = HostControl(replace(CONFIG, issue_cycles=3))

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.rows_ready, 1)
        await ask(ctx, dut, space)
        ctx.set(dut.store_reads, 1)
        for _ in range(2 * PATIENCE):
            assert not ctx.get(dut.out_load)
            assert not ctx.get(dut.urgent_read)
            await ctx.tick()
        ctx.set(dut.store_reads, 0)
        assert ctx.get(dut.out_load)
        await ctx.tick()
        assert ctx.get(dut.rows_valid)
        assert not ctx.get(dut.urgent_read)

    simulate(dut, process)


def test_a_read_of_the_host_never_replaces_the_word_of_a_load_that_waits() -> None:
    """With ``issue_cycles`` 3, a load waits for the cross-lane unit with its word at the memory."""
    dut = Vpu(replace(CONFIG, sublanes=1, issue_cycles=3))
    row = {HostSpace.VMEM: 0x22222222, HostSpace.VREG: 0x11111111}

    async def read(ctx: SimulatorContext, space: HostSpace, address: int) -> None:
        ctx.set(dut.host_read.payload.space, space)
        ctx.set(dut.host_read.payload.address, address)
        await pulse(ctx, dut.host_read.valid)

    async def expect(ctx: SimulatorContext, space: HostSpace) -> None:
        ctx.set(dut.host_rows.ready, 1)
        while not ctx.get(dut.host_rows.valid):
            await ctx.tick()
        assert ctx.get(dut.host_rows.payload[:32]) == row[space]
        await ctx.tick()
        ctx.set(dut.host_rows.ready, 0)

    async def process(ctx: SimulatorContext) -> None:
        for address, word in enumerate((row[HostSpace.VREG], row[HostSpace.VMEM])):
            ctx.set(dut.host_write.payload.address, address)
            ctx.set(dut.host_write.payload.data, word)
            await pulse(ctx, dut.host_write.valid)
            await ctx.tick()
        ctx.set(dut.load.address, 0)
        ctx.set(dut.chain_write.d, 31)
        ctx.set(dut.chain_write.from_xlu, 1)
        for asks in range(7):  # cycles after the load's issue
            ctx.set(dut.load.d, asks)
            await pulse(ctx, dut.load.valid)
            for cycle in range(1, 9):
                ctx.set(dut.chain_write.valid, 3 <= cycle < 7)
                ctx.set(dut.host_read.valid, cycle == asks + 1)
                ctx.set(dut.host_read.payload.space, HostSpace.VMEM)
                ctx.set(dut.host_read.payload.address, 1)
                assert ctx.get(dut.urgent_read) == (3 <= cycle < 7)
                assert ctx.get(dut.written.load.valid) == (cycle == 7)
                await ctx.tick()
            ctx.set(dut.host_read.valid, 0)
            await expect(ctx, HostSpace.VMEM)
            await read(ctx, HostSpace.VREG, asks)
            await expect(ctx, HostSpace.VREG)

    simulate(dut, process)
