"""The stages of the engine, one at a time: when each of them begins its next transfer."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from amaranth.lib.wiring import Component
from amaranth.sim import SimulatorContext

from hdl.dma.format import DmaSpace
from hdl.dma.reader import Collector, Reader
from hdl.dma.writer import _AHEAD, BurstIssuer, Writer
from verif.hdl.dma.engine import CONFIG
from verif.hdl.simulation.simulator import fast_simulator

BLOCKS = 3
"""Blocks of each transfer."""


@dataclass(frozen=True)
class Stage:
    """A stage, the space of its transfers, and the inputs with which it never waits.

    ``moves`` names the signal that is set in each cycle in which the stage handles a block.
    """

    component: Callable[..., Any]
    space: DmaSpace
    inputs: tuple[str, ...]
    moves: str


STAGES = {
    "reader": Stage(Reader, DmaSpace.VMEM, ("vmem_read.ready",), "vmem_read.valid"),
    "collector": Stage(Collector, DmaSpace.HBM, ("hbm_rows.valid", "output.ready"),
                       "hbm_rows.ready"),
    "issuer": Stage(BurstIssuer, DmaSpace.HBM, ("hbm_write.ready", "allow"), "issued"),
    "writer": Stage(Writer, DmaSpace.VMEM, ("row.valid", "vmem_write.ready"), "row.ready"),
}


def port(dut: Component, name: str) -> Any:
    """The port of ``dut`` with a dotted name."""
    found: Any = dut
    for part in name.split("."):
        found = getattr(found, part)
    return found


def offer(ctx: SimulatorContext, dut: Any, stage: Stage) -> None:
    """Offers transfers of `BLOCKS` blocks, which are not adjacent, so a burst has one row."""
    sides = {"space": stage.space.value, "address": 0, "stride": 2, "run": 1, "blocks": BLOCKS}
    ctx.set(dut.source if hasattr(dut, "source") else dut.destination, sides)
    if hasattr(dut, "rows"):
        ctx.set(dut.rows, BLOCKS)
    ctx.set(dut.valid, 1)
    for name in stage.inputs:
        ctx.set(port(dut, name), 1)


def simulate(dut: Component, process: Callable[[SimulatorContext], Awaitable[None]]) -> None:
    simulator = fast_simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()


@pytest.mark.parametrize("name", STAGES)
def test_a_transfer_begins_in_the_cycle_in_which_the_one_before_ends(name: str) -> None:
    stage = STAGES[name]
    dut = stage.component(CONFIG)
    taken, moved = [], []

    async def process(ctx: SimulatorContext) -> None:
        offer(ctx, dut, stage)
        for cycle in range(4 * BLOCKS + 1):
            if ctx.get(dut.take):
                taken.append(cycle)
            if ctx.get(port(dut, stage.moves)):
                moved.append(cycle)
            await ctx.tick()

    simulate(dut, process)
    assert taken == [0, BLOCKS, 2 * BLOCKS, 3 * BLOCKS, 4 * BLOCKS]
    assert moved == list(range(1, 4 * BLOCKS + 1))


@pytest.mark.parametrize("name", STAGES)
def test_no_transfer_begins_while_the_stage_must_stop(name: str) -> None:
    stage = STAGES[name]
    dut = stage.component(CONFIG)
    taken = []

    async def process(ctx: SimulatorContext) -> None:
        offer(ctx, dut, stage)
        ctx.set(dut.stop, 1)
        for cycle in range(2 * BLOCKS):
            if cycle == BLOCKS:
                ctx.set(dut.stop, 0)
            if ctx.get(dut.take):
                taken.append(cycle)
            await ctx.tick()

    simulate(dut, process)
    assert taken == [BLOCKS]


def test_few_rows_are_left_to_deliver_if_they_are_fewer_than_the_limit() -> None:
    """One row more, and the next burst must wait until a row is delivered."""
    dut = Writer(CONFIG)
    few = []

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.issued, 1)
        ctx.set(dut.issued_rows, 1)
        for _ in range(2 * _AHEAD):
            few.append(ctx.get(dut.few))
            await ctx.tick()

    simulate(dut, process)
    assert few == [1] * _AHEAD + [0] * _AHEAD
