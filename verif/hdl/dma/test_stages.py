"""The stages of the engine, one at a time: when each of them begins its next transfer."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pytest
from amaranth.sim import SimulatorContext

from golden.dma import Descriptor
from hdl.dma.descriptor import DescriptorFrontEnd
from hdl.dma.format import DmaSpace
from hdl.dma.interface import CheckTimes
from hdl.dma.reader import Collector, Reader
from hdl.dma.rows import WordGatherer
from hdl.dma.writer import BurstIssuer, Writer
from verif.hdl.dma.engine import CONFIG
from verif.hdl.simulation.simulator import simulate

ROWS = 4
"""Rows of each transfer, which are whole vectors; for the reader, its vectors."""


@dataclass(frozen=True)
class Stage:
    """A stage, the space of its transfers, and the inputs with which it never waits.

    ``moves`` names the signal that is set in each cycle in which the stage handles a row.
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


def offer(ctx: SimulatorContext, dut: Any, stage: Stage) -> None:
    """Offers transfers of `ROWS` rows. Their blocks are not adjacent, so a burst has one row."""
    blocks = ROWS // CONFIG.sublanes if isinstance(dut, Writer) else ROWS
    side = {"space": stage.space.value, "address": 0, "stride": 2, "run": 1, "blocks": blocks}
    ctx.set(dut.source if hasattr(dut, "source") else dut.destination, side)
    if hasattr(dut, "rows"):
        ctx.set(dut.rows, ROWS)
    ctx.set(dut.valid, 1)
    for name in stage.inputs:
        ctx.set(attrgetter(name)(dut), 1)


@pytest.mark.parametrize("name", STAGES)
def test_a_transfer_begins_in_the_cycle_in_which_the_one_before_ends(name: str) -> None:
    stage = STAGES[name]
    dut = stage.component(CONFIG)
    taken, moved = [], []

    async def process(ctx: SimulatorContext) -> None:
        offer(ctx, dut, stage)
        for cycle in range(4 * ROWS + 1):
            if ctx.get(dut.take):
                taken.append(cycle)
            if ctx.get(attrgetter(stage.moves)(dut)):
                moved.append(cycle)
            await ctx.tick()

    simulate(dut, process)
    assert taken == [0, ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS]
    assert moved == list(range(1, 4 * ROWS + 1))


@pytest.mark.parametrize("name", STAGES)
def test_no_transfer_begins_while_the_stage_must_stop(name: str) -> None:
    stage = STAGES[name]
    dut = stage.component(CONFIG)
    taken = []

    async def process(ctx: SimulatorContext) -> None:
        offer(ctx, dut, stage)
        ctx.set(dut.stop, 1)
        for cycle in range(2 * ROWS):
            if cycle == ROWS:
                ctx.set(dut.stop, 0)
            if ctx.get(dut.take):
                taken.append(cycle)
            await ctx.tick()

    simulate(dut, process)
    assert taken == [ROWS]


@pytest.mark.parametrize(("name", "offers"), [("reader", True), ("issuer", True),
                                              ("issuer", False)])
def test_a_stage_that_must_stop_keeps_an_offer_and_nothing_else(name: str, offers: bool) -> None:
    """The memory is not ready: an offer stays; a transfer without one is abandoned at once."""
    stage = STAGES[name]
    dut = stage.component(CONFIG)
    request = attrgetter(stage.inputs[0].partition(".")[0])(dut)
    checked = []

    async def process(ctx: SimulatorContext) -> None:
        offer(ctx, dut, stage)
        ctx.set(request.ready, 0)
        if not offers:
            ctx.set(dut.allow, 0)
        await ctx.tick()
        ctx.set(dut.valid, 0)
        await ctx.tick()
        assert not ctx.get(dut.idle)
        assert ctx.get(request.valid) == offers
        ctx.set(dut.stop, 1)
        for _ in range(5 if offers else 1):
            assert not ctx.get(dut.idle)
            assert ctx.get(request.valid) == offers
            await ctx.tick()
        if offers:
            ctx.set(request.ready, 1)
            await ctx.tick()
        assert ctx.get(dut.idle)
        assert not ctx.get(request.valid)
        checked.append(name)

    simulate(dut, process)
    assert checked


@pytest.mark.parametrize("stops", [False, True])
def test_gathering_is_busy_until_the_last_requested_word_has_arrived(stops: bool) -> None:
    """Each word is granted two cycles after its request. A stop leaves only the first request."""
    dut = WordGatherer(CONFIG)
    words = 1 if stops else ROWS * CONFIG.lanes
    checked = []

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.room, 1)
        ctx.set(dut.rows, ROWS)
        ctx.set(dut.start, 1)
        assert not ctx.get(dut.busy)
        await ctx.tick()
        ctx.set(dut.start, 0)
        for number in range(words):
            for granted in (0, 0, 1):
                ctx.set(dut.granted, granted)
                assert ctx.get(dut.ask)
                assert ctx.get(dut.busy), number
                await ctx.tick()
                ctx.set(dut.stop, stops)
        ctx.set(dut.granted, 0)
        for arrives in (True, False, False):
            assert not ctx.get(dut.ask)
            assert ctx.get(dut.busy) == arrives
            assert ctx.get(dut.row_valid) == (arrives and not stops)
            await ctx.tick()
            checked.append(arrives)

    simulate(dut, process)
    assert checked


def test_gathering_that_must_stop_asks_only_for_a_word_that_was_refused() -> None:
    """The stop begins in the cycle after the first word was granted, or else refused."""
    dut = WordGatherer(CONFIG)

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.room, 1)
        ctx.set(dut.rows, ROWS)
        for granted in (1, 0, 1):
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            ctx.set(dut.granted, granted)
            assert ctx.get(dut.ask)
            await ctx.tick()
            ctx.set(dut.stop, 1)
            assert ctx.get(dut.ask) == (not granted)
            ctx.set(dut.granted, not granted)
            await ctx.tick()
            ctx.set(dut.granted, 0)
            for _ in range(3):
                assert not ctx.get(dut.ask)
                await ctx.tick()
            assert not ctx.get(dut.busy)
            ctx.set(dut.stop, 0)

    simulate(dut, process)


def test_a_start_that_the_host_gives_up_in_its_last_cycle_starts_no_transfer() -> None:
    """The host's registers give up after a time, perhaps just when the queue has room again."""
    dut = DescriptorFrontEnd(CONFIG)
    descriptor = Descriptor(DmaSpace.HBM, DmaSpace.VMEM, ROWS)
    checked = []

    async def process(ctx: SimulatorContext) -> None:
        ctx.set(dut.host_descriptor, sum(
            word << 32 * number for number, word in enumerate(descriptor.pack())))
        for gives_up in (False, True, False):
            ctx.set(dut.host_valid, 1)
            for _ in range(CheckTimes.of(CONFIG).total() + 3):
                assert not ctx.get(dut.push)
                await ctx.tick()
            ctx.set(dut.room, 1)
            assert ctx.get(dut.host_ready)
            ctx.set(dut.host_valid, not gives_up)
            assert ctx.get(dut.push) == (not gives_up)
            await ctx.tick()
            ctx.set(dut.host_valid, 0)
            for _ in range(3):
                assert not ctx.get(dut.push)
                await ctx.tick()
            ctx.set(dut.room, 0)
            checked.append(gives_up)

    simulate(dut, process)
    assert checked
