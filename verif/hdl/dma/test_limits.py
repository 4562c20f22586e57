"""Limits of a transfer's sides, one at a time, and memory errors during an abort."""


import pytest
from amaranth.sim import SimulatorContext

from golden.dma import Descriptor, Side
from hdl.config import Config
from hdl.dma.descriptor import SideCheck
from hdl.dma.format import DMA_DESTINATIONS, DMA_MAX_ROWS, DmaSpace, pack_remote
from hdl.dma.interface import BLOCK_BITS, DIVISION_STEP_BITS, QUEUE_DEPTH, address_bits
from hdl.dma.remote import RemoteCheck
from hdl.dma.writer import _AHEAD, Completion, Writer
from hdl.isa import Fault
from verif.hdl.dma.engine import CONFIG, AgentTiming, VerilatedDma, open_engine
from verif.hdl.simulation.simulator import simulate

ROW = CONFIG.row_bytes


def check_sides(*sides: tuple[Side, int]) -> list[tuple[bool, int]]:
    """For each side and its rows: whether hardware finds it outside of its space; its run."""
    dut = SideCheck(CONFIG, DMA_DESTINATIONS)
    found: list[tuple[bool, int]] = []

    async def process(ctx: SimulatorContext) -> None:
        for side, rows in sides:
            for name in ("space", "address", "run", "stride"):
                ctx.set(getattr(dut, name), getattr(side, name))
            ctx.set(dut.rows, rows)
            ctx.set(dut.start, 1)
            for _ in range(BLOCK_BITS // DIVISION_STEP_BITS + 2):
                if ctx.get(dut.done):
                    break
                await ctx.tick()
                ctx.set(dut.start, 0)
            assert ctx.get(dut.done), "the division does not end"
            ctx.set(dut.finish, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            ctx.set(dut.finish, 0)
            assert not ctx.get(dut.malformed), side
            assert not ctx.get(dut.misaligned), side
            found.append((bool(ctx.get(dut.outside)), ctx.get(dut.side.run)))

    simulate(dut, process)
    assert len(found) == len(sides) > 0
    return found


def check_against_golden(*sides: tuple[Side, int]) -> None:
    for (side, rows), (outside, _) in zip(sides, check_sides(*sides), strict=True):
        assert outside != side.fits(rows, CONFIG), (side, rows)


@pytest.mark.parametrize("space", [DmaSpace.SMEM, DmaSpace.IMEM])
def test_words_that_overflow_their_count_are_outside(space: DmaSpace) -> None:
    """The number of words needs more bits than `BLOCK_BITS`; its low bits alone would fit."""
    side = Side(space, 0, 0, 0)
    rows = ((1 << BLOCK_BITS) // CONFIG.lanes + 1, (1 << BLOCK_BITS) // CONFIG.lanes, DMA_MAX_ROWS)
    assert check_sides(*((side, count) for count in rows)) == [(True, DMA_MAX_ROWS)] * 3
    # The other side can be inside, so nothing else stops such a transfer.
    descriptor = Descriptor(DmaSpace.HBM, space, rows[0], source_run=1)
    assert descriptor.check(CONFIG, CONFIG.cores) == Fault.DMA_RANGE


def test_an_offset_that_overflows_before_its_last_bit_is_outside() -> None:
    """In the last step the truncated offset is 0 again: hardware must remember the overflow."""
    run = 2
    for runs in (65, 129, 1025, 4097):
        up = Side(DmaSpace.HBM, 0, run, 16 * ROW)
        down = Side(DmaSpace.HBM, CONFIG.hbm_bytes - run * ROW, run, -16 * ROW)
        assert (runs - 1) * 16 % (1 << address_bits(CONFIG) + 1) == 0
        assert [outside for outside, _ in check_sides((up, run * runs), (down, run * runs))] == [
            True, True], runs


def test_a_run_longer_than_any_transfer_is_one_run() -> None:
    """With its low bits alone, the run would be short, and the stride would leave memory."""
    sides = [(Side(DmaSpace.HBM, 0, run, CONFIG.hbm_bytes), 9) for run in (
        (1 << BLOCK_BITS) + 1, 1 << BLOCK_BITS, (1 << 31) + 3, DMA_MAX_ROWS, DMA_MAX_ROWS + 2)]
    assert check_sides(*sides) == [(False, DMA_MAX_ROWS)] * len(sides)


def test_as_many_runs_as_fit_are_inside_and_one_more_is_outside() -> None:
    check_against_golden(*(
        (Side(DmaSpace.HBM, 0, 1, CONFIG.hbm_bytes // runs // ROW * ROW), runs + more)
        for runs in (1, 2, 15, 16, 255, 256) for more in (0, 1)))


@pytest.mark.parametrize(("side", "at"), [(side, at) for side in (1, 2, 3, 31, 32) for at in sorted(
    {0, side // 2, side - 1})])
def test_every_number_of_hops_leads_to_the_chip_that_it_names_or_is_refused(side: int,
                                                                            at: int) -> None:
    """Along a side of the torus, from one place on it; a hop more or less along the other side."""
    dut = RemoteCheck(Config.preset("tiny", link_bytes=8))
    refused = []

    async def process(ctx: SimulatorContext) -> None:
        for along_x in (True, False):
            for name, value in zip(("width", "height", "x", "y"),
                                   (side, 2, at, 0) if along_x else (2, side, 0, at), strict=True):
                ctx.set(getattr(dut, name), value)
            for hops in (*range(-side - 1, side + 2), -128, 127):
                for other in (-1, 0, 1):
                    core = hops & 1
                    dx, dy = (hops, other) if along_x else (other, hops)
                    ctx.set(dut.word, pack_remote(dx, dy, core))
                    outside = abs(hops) >= side or hops == other == 0
                    assert ctx.get(dut.outside) == outside, (dx, dy)
                    assert not ctx.get(dut.malformed)
                    refused.append(outside)
                    if outside:
                        continue
                    to = ctx.get(dut.to)
                    places = ((at + hops) % side, other % 2)
                    assert (to.x, to.y) == (places if along_x else places[::-1]), (dx, dy)
                    assert (to.dx, to.dy, to.core) == (dx, dy, core)

    simulate(dut, process, clock=False)
    assert set(refused) == {False, True}


@pytest.mark.parametrize("cores", [1, 2])
def test_a_name_with_a_reserved_bit_or_of_no_core_is_malformed(cores: int) -> None:
    dut = RemoteCheck(Config.preset("tiny", link_bytes=8, cores=cores))
    words = {pack_remote(1, 1, 0): False, pack_remote(-1, 1, 1): cores == 1,
             **{pack_remote(1, 1, 0) | 1 << bit: True for bit in range(17, 32)}}
    checked = []

    async def process(ctx: SimulatorContext) -> None:
        for word, malformed in words.items():
            ctx.set(dut.word, word)
            assert ctx.get(dut.malformed) == malformed, hex(word)
            checked.append(word)

    simulate(dut, process, clock=False)
    assert checked == list(words)


def test_no_bus_error_is_reported_during_an_abort() -> None:
    """An aborted transfer must not fail, because its fault would belong to no transfer."""
    dut = Completion()

    async def process(ctx: SimulatorContext) -> None:
        for stop in (0, 1, 0):
            for failed, refused in ((1, 0), (0, 1), (1, 1)):
                ctx.set(dut.stop, stop)
                ctx.set(dut.failed, failed)
                ctx.set(dut.hbm_write_done.valid, refused)
                ctx.set(dut.hbm_write_done.payload.error, refused)
                await ctx.tick()
                assert ctx.get(dut.bus_error) == (not stop), (stop, failed, refused)
        ctx.set(dut.failed, 0)
        ctx.set(dut.hbm_write_done.valid, 0)
        await ctx.tick()
        assert not ctx.get(dut.bus_error)

    simulate(dut, process)


@pytest.mark.parametrize("first", range(QUEUE_DEPTH))
def test_an_answer_of_memory_belongs_to_the_oldest_transfer_that_awaits_one(first: int) -> None:
    """The transfer before the others has no burst; one burst of the others is refused."""
    dut = Completion()
    places = [(first + number) % QUEUE_DEPTH for number in range(QUEUE_DEPTH)]
    failed = []

    async def process(ctx: SimulatorContext) -> None:
        for refused in places[1:]:
            ctx.set(dut.at, first)
            ctx.set(dut.issued, 1)
            for place in places[1:]:
                ctx.set(dut.issued_at, place)
                await ctx.tick()
            ctx.set(dut.issued, 0)
            ctx.set(dut.hbm_write_done.valid, 1)
            for place in places[1:]:
                assert not ctx.get(dut.idle)
                ctx.set(dut.hbm_write_done.payload.error, place == refused)
                await ctx.tick()
            ctx.set(dut.hbm_write_done.valid, 0)
            assert ctx.get(dut.idle)
            ctx.set(dut.written, 1)
            await ctx.tick().repeat(QUEUE_DEPTH)
            ctx.set(dut.written, 0)
            ctx.set(dut.valid, 1)
            ctx.set(dut.from_host, 1)
            for place in places:
                ctx.set(dut.at, place)
                assert ctx.get(dut.take)
                await ctx.tick()
                assert ctx.get(dut.host_done)
                assert ctx.get(dut.host_failed) == (place == refused), (place, refused)
            ctx.set(dut.valid, 0)
            failed.append(refused)

    simulate(dut, process)
    assert failed == places[1:]


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


def test_memory_that_refuses_an_aborted_transfer_causes_no_bus_error() -> None:
    with open_engine() as model:
        bench = VerilatedDma(model, timing=AgentTiming(latency=30))
        bench.hbm.bad = set(range(CONFIG.hbm_rows))
        bench.start(Descriptor(DmaSpace.VMEM, DmaSpace.HBM, 8, signal=1))
        for _ in range(200):
            if bench.hbm.answers:
                break
            bench.cycle()
        assert bench.hbm.answers, "no burst was written"
        assert bench.errors == 0
        bench.pins.poke("abort", 1)
        bench.cycle()
        bench.pins.poke("abort", 0)
        bench.finish()
        assert not bench.hbm.answers
        assert bench.errors == 0
        assert bench.signalled == 0
