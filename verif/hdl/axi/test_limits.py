"""Limits of the HBM port: its room for rows, its handling of responses, and when it is busy."""

import pytest
from amaranth.sim._async import SimulatorContext

from hdl.axi.interface import Resp, max_beats
from hdl.axi.master import BURSTS, HbmPort, HbmReader, HbmWriter
from hdl.config import Config
from verif.hdl.simulation.simulator import simulate

TINY = Config.preset("tiny")


@pytest.mark.parametrize("length", [1, 3, max_beats(TINY)])
def test_no_row_is_asked_for_that_there_is_no_room_for(length: int) -> None:
    """The reader can take every row that it requested, even if nobody takes rows from it."""
    room = BURSTS * max_beats(TINY)
    dut = HbmReader(TINY)

    async def process(ctx: SimulatorContext) -> None:
        (address,), (part,) = dut.address, dut.part
        ctx.set(address.ready, 1)
        ctx.set(dut.burst.valid, 1)
        ctx.set(dut.burst.payload.more, length - 1)
        ctx.set(part.payload.data, 7)
        asked = given = 0
        for _ in range(3 * room):
            if ctx.get(address.valid):
                asked += ctx.get(address.payload.more) + 1
            ctx.set(part.valid, int(given < asked))
            if given < asked:
                assert ctx.get(part.ready), f"row {given} of {asked} is held up"
                given += 1
            assert asked <= room
            await ctx.tick()
        assert asked == given
        assert asked > room - length
        # They come out, one a cycle.
        ctx.set(dut.burst.valid, 0)
        ctx.set(address.ready, 0)
        ctx.set(part.valid, 0)
        ctx.set(dut.rows.ready, 1)
        for number in range(asked):
            assert ctx.get(dut.rows.valid), number
            await ctx.tick()
        assert not ctx.get(dut.rows.valid)

    simulate(dut, process)


@pytest.mark.parametrize("resp", Resp)
def test_every_response_but_okay_is_an_error(resp: Resp) -> None:
    """EXOKAY is an error, too, because the port requests no exclusive access."""
    dut = HbmPort(TINY)

    async def process(ctx: SimulatorContext) -> None:
        (axi,) = dut.axi
        for name in ("arready", "awready", "wready"):
            ctx.set(getattr(axi, name), 1)
        ctx.set(dut.hbm_read.valid, 1)
        ctx.set(dut.hbm_write.valid, 1)
        ctx.set(dut.hbm_write_rows.valid, 1)
        await ctx.tick()
        ctx.set(dut.hbm_read.valid, 0)
        ctx.set(dut.hbm_write.valid, 0)
        # The burst has one row, which is taken once the burst is known.
        while not ctx.get(dut.hbm_write_rows.ready):
            await ctx.tick()
        await ctx.tick()
        ctx.set(dut.hbm_write_rows.valid, 0)
        for _ in range(10):
            await ctx.tick()
        for name, value in (("rvalid", 1), ("rresp", resp), ("rlast", 1), ("bvalid", 1),
                            ("bresp", resp)):
            ctx.set(getattr(axi, name), value)
        assert ctx.get(axi.rready)
        assert ctx.get(axi.bready)
        await ctx.tick()
        ctx.set(axi.rvalid, 0)
        ctx.set(axi.bvalid, 0)
        for _ in range(10):
            await ctx.tick()
        assert ctx.get(dut.hbm_rows.valid)
        assert ctx.get(dut.hbm_rows.payload.error) == (resp != Resp.OKAY)
        assert ctx.get(dut.hbm_write_done.valid)
        assert ctx.get(dut.hbm_write_done.payload.error) == (resp != Resp.OKAY)

    simulate(dut, process)


@pytest.mark.parametrize("delay", [0, 1, 5])
def test_a_reader_is_busy_from_a_burst_to_its_last_row_without_a_gap(delay: int) -> None:
    """Even a single cycle in which the reader is not busy would permit a reset."""
    rows = 20  # two pieces
    dut = HbmReader(TINY)

    async def process(ctx: SimulatorContext) -> None:
        (address,), (part,) = dut.address, dut.part
        for _ in range(3):
            assert not ctx.get(dut.busy)
            ctx.set(dut.burst.valid, 1)
            ctx.set(dut.burst.payload.row, 5)
            ctx.set(dut.burst.payload.more, rows - 1)
            assert ctx.get(dut.burst.ready)
            await ctx.tick()
            ctx.set(dut.burst.valid, 0)
            asked = given = taken = 0
            for cycle in range(400):
                ctx.set(address.ready, int(cycle % 7 >= delay))
                ctx.set(part.valid, int(given < asked and cycle % 6 >= delay))
                ctx.set(dut.rows.ready, int(cycle % 8 >= delay))
                assert ctx.get(dut.busy) == (taken < rows), f"{taken} rows taken"
                if taken == rows:
                    break
                if ctx.get(address.valid) and ctx.get(address.ready):
                    asked += ctx.get(address.payload.more) + 1
                given += ctx.get(part.valid) and ctx.get(part.ready)
                taken += ctx.get(dut.rows.valid) and ctx.get(dut.rows.ready)
                await ctx.tick()
            assert asked == given == taken == rows

    simulate(dut, process)


@pytest.mark.parametrize("delay", [0, 1, 5])
def test_a_writer_is_busy_from_a_burst_to_its_end_without_a_gap(delay: int) -> None:
    rows = 20
    dut = HbmWriter(TINY)

    async def process(ctx: SimulatorContext) -> None:
        (address,), (beat,), (response,) = dut.address, dut.beat, dut.response
        for _ in range(3):
            assert not ctx.get(dut.busy)
            ctx.set(dut.burst.valid, 1)
            ctx.set(dut.burst.payload.row, 5)
            ctx.set(dut.burst.payload.more, rows - 1)
            assert ctx.get(dut.burst.ready)
            await ctx.tick()
            ctx.set(dut.burst.valid, 0)
            given = written = bursts = answers = ends = 0
            for cycle in range(600):
                ctx.set(dut.rows.valid, int(given < rows and cycle % 7 >= delay))
                for stream in (address, beat):
                    ctx.set(stream.ready, int(cycle % 6 >= delay))
                ctx.set(response.valid, int(answers < bursts and cycle % 8 >= delay))
                ctx.set(dut.done.ready, int(cycle % 9 >= delay))
                assert ctx.get(dut.busy) == (not ends), (
                    f"{given} rows given, {written} written, {answers} bursts answered")
                if ends:
                    break
                given += ctx.get(dut.rows.valid) and ctx.get(dut.rows.ready)
                answers += ctx.get(response.valid) and ctx.get(response.ready)
                if ctx.get(beat.valid) and ctx.get(beat.ready):
                    written += 1
                    bursts += ctx.get(beat.payload.last)
                ends += ctx.get(dut.done.valid) and ctx.get(dut.done.ready)
                await ctx.tick()
            assert given == written == rows
            assert ends == 1

    simulate(dut, process)
