"""AXI4 masters: a core's connection to memory, over all of its channels.

Each channel holds a part of every row: ``channel_bytes`` of row r, at address r * channel_bytes. So
a burst of rows is the same burst in every channel. All channels receive the burst together and
proceed independently. A reader joins their parts into rows again; a writer joins their responses.
"""

from functools import reduce
from operator import and_, or_

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2, exact_log2

from ..checks import instance
from ..config import Config
from ..tiles import instantiate
from .fifo import Fifo
from .interface import (
    LENGTH_BITS,
    Axi4,
    Burst,
    Resp,
    channel_bits,
    hbm_burst,
    hbm_done,
    hbm_row,
    max_beats,
)

__all__ = ["BURSTS", "WRITES", "BurstCutter", "HbmPort", "HbmReader", "HbmWriter"]

BURSTS = 8
"""At least this number of full-length bursts can be outstanding in each direction."""

WRITES = 8 * BURSTS
"""Greatest number of write bursts, of any length, that await a response from memory."""
_WRITE_ROOM = 4
"""Number of full-length bursts that fit the write buffer: one enters, one leaves, two are slack."""
_NORMAL_BUFFERABLE = 0b0011
"""AxCACHE attributes: normal memory, not cacheable, bufferable."""


def _check_config(config: Config) -> None:
    instance("config", config, Config)
    channel_bits(config)


def _piece(config: Config) -> data.StructLayout:
    """Payload of a piece of a row burst, which becomes one AXI burst in every channel.

    The piece has the beats of ``row`` and of the next ``more`` rows. ``last`` marks the last piece
    of the row burst.
    """
    return data.StructLayout({"row": ceil_log2(config.hbm_rows),
                              "more": ceil_log2(max_beats(config)), "last": 1})


class BurstCutter(wiring.Component):
    """Splits bursts of rows at row numbers that are multiples of `max_beats`.

    The resulting pieces cross no 4 KiB boundary. The component delivers one piece a cycle, without
    gaps between bursts.

    Parameters
    ----------
    config : Config
        Parameters.

    Attributes
    ----------
    burst : In(stream of hbm_burst)
        Requested bursts.
    piece : Out(stream of row, more, last)
        The pieces of the bursts, in order.
    """

    def __init__(self, config: Config) -> None:
        _check_config(config)
        self._bits = ceil_log2(max_beats(config))
        super().__init__({"burst": In(stream.Signature(hbm_burst(config))),
                          "piece": Out(stream.Signature(_piece(config)))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        piece = self.piece.payload
        row = Signal.like(self.burst.payload.row, reset_less=True)
        more = Signal(LENGTH_BITS, reset_less=True)
        # Number of rows after `row` up to the next boundary.
        room = Signal(self._bits)
        done = Signal()
        m.d.comb += [
            room.eq(~row[:self._bits]),
            piece.row.eq(row),
            piece.last.eq(more <= room),
            piece.more.eq(Mux(piece.last, more, room)),
            done.eq(self.piece.ready & piece.last),
            self.burst.ready.eq(~self.piece.valid | done),
        ]
        with m.If(self.burst.ready):
            m.d.sync += [self.piece.valid.eq(self.burst.valid),
                         row.eq(self.burst.payload.row), more.eq(self.burst.payload.more)]
        with m.Elif(self.piece.ready):
            m.d.sync += [row.eq(row + room + 1), more.eq(more - room - 1)]
        return m


def _address(config: Config) -> stream.Signature:
    """Stream of AXI bursts of one channel: byte address, and number of beats minus one."""
    return stream.Signature(data.StructLayout({"address": config.hbm_address_bits,
                                               "more": ceil_log2(max_beats(config))}))


def _beat(config: Config) -> stream.Signature:
    """Stream of write beats: one channel's part of each row.

    ``last`` marks the last beat of an AXI burst. Memory writes a beat only if ``keep`` is set.
    """
    return stream.Signature(data.StructLayout({"data": channel_bits(config), "last": 1, "keep": 1}))


def _part(config: Config) -> stream.Signature:
    """Stream of read beats: one channel's part of each row, and whether its read failed."""
    return stream.Signature(data.StructLayout({"data": channel_bits(config), "error": 1}))


def _queue(m: Module, platform: object, name: str, width: int, depth: int) -> wiring.Component:
    return instantiate(m, platform, name, Fifo.module(width, depth), lambda: Fifo(width, depth))


def _address_queue(m: Module, platform: object, name: str, config: Config, depth: int,
                   piece: data.View, address: wiring.PureInterface) -> wiring.Component:
    """Instantiate a queue of pieces, and offer the address of its oldest piece on ``address``.

    ``name`` is the name of the queue's submodule, ``depth`` its number of entries. ``address`` is
    the address stream of a channel. ``piece`` is the payload that enters the queue; the caller
    drives ``input.valid`` of the returned queue.
    """
    more = piece.more
    queue = _queue(m, platform, name, len(piece.row) + len(more), depth)
    row = Signal.like(piece.row, name=f"{name}_row")
    m.d.comb += [
        queue.input.payload.eq(Cat(more, piece.row)),
        row.eq(queue.output.payload[len(more):]),
        address.valid.eq(queue.output.valid),
        address.payload.more.eq(queue.output.payload[:len(more)]),
        address.payload.address.eq(row << exact_log2(config.channel_bytes)),
        queue.output.ready.eq(address.ready),
    ]
    return queue


class HbmReader(wiring.Component):
    """Reads rows from the HBM, up to one a cycle.

    The reader has a buffer for rows. It offers an AXI burst to memory only when this buffer has
    room for the burst's rows and for all outstanding rows. Every channel can therefore always
    accept its beats, and memory is never blocked.

    Attributes
    ----------
    burst, rows : In(stream of hbm_burst), Out(stream of hbm_row)
        Requests, and the rows in the order of the requests.
    address, part : Out(streams of address, more), In(streams of data, error)
        AXI bursts and read beats, one stream of each for every channel.
    busy : Out(1)
        Requested rows have not been delivered yet.
    """

    def __init__(self, config: Config) -> None:
        _check_config(config)
        self._config = config
        self._depth = BURSTS * max_beats(config)
        channels = config.hbm_channels
        super().__init__({
            "burst": In(stream.Signature(hbm_burst(config))),
            "rows": Out(stream.Signature(hbm_row(config))),
            "address": Out(_address(config)).array(channels),
            "part": In(_part(config)).array(channels),
            "busy": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        cutter = instantiate(m, platform, "cutter", "burst_cutter", lambda: BurstCutter(config))
        connect(m, flipped(self.burst), cutter.burst)
        piece = cutter.piece.payload
        wanted = [_address_queue(m, platform, f"wanted_{c}", config, BURSTS, piece, address)
                  for c, address in enumerate(self.address)]
        width = channel_bits(config) + 1
        parts = [_queue(m, platform, f"parts_{c}", width, self._depth)
                 for c in range(config.hbm_channels)]

        # Number of rows requested and not yet delivered; the same for all channels.
        under_way = Signal(range(self._depth + 1))
        after = Signal.like(under_way)
        fits = Signal()
        given = Signal()
        m.d.comb += [
            fits.eq(under_way + piece.more < self._depth),
            cutter.piece.ready.eq(fits & reduce(and_, (queue.input.ready for queue in wanted))),
            *(queue.input.valid.eq(cutter.piece.valid & cutter.piece.ready) for queue in wanted),
            given.eq(self.rows.valid & self.rows.ready),
            after.eq(under_way - given),
            self.busy.eq(cutter.piece.valid | (under_way != 0)),
        ]
        with m.If(cutter.piece.valid & cutter.piece.ready):
            m.d.sync += under_way.eq(after + piece.more + 1)
        with m.Else():
            m.d.sync += under_way.eq(after)

        m.d.comb += [
            self.rows.valid.eq(reduce(and_, (queue.output.valid for queue in parts))),
            self.rows.payload.data.eq(Cat(queue.output.payload[:-1] for queue in parts)),
            self.rows.payload.error.eq(reduce(or_, (queue.output.payload[-1] for queue in parts))),
        ]
        for part, queue in zip(self.part, parts, strict=True):
            m.d.comb += [
                queue.input.payload.eq(Cat(part.payload.data, part.payload.error)),
                queue.input.valid.eq(part.valid),
                part.ready.eq(queue.input.ready),
                queue.output.ready.eq(given),
            ]
        return m


class WriteOrder(wiring.Component):
    """Holds back the data of a channel's write burst until memory is offered the burst's address.

    The data need not wait until memory accepts the address: memory may accept either one first.

    Attributes
    ----------
    address_valid, address_ready : In(1), In(1)
        Handshake of the channel's next address.
    last : In(1)
        Memory accepts the last beat of a burst in this cycle.
    allowed : Out(1)
        The channel may offer a beat to memory.
    """

    def __init__(self) -> None:
        super().__init__({"address_valid": In(1), "address_ready": In(1), "last": In(1),
                          "allowed": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Number of bursts whose address has been offered before and whose data are incomplete.
        open_bursts = Signal(range(WRITES + 1))
        seen = Signal()
        new = Signal()
        m.d.comb += [
            new.eq(self.address_valid & ~seen),
            self.allowed.eq((open_bursts != 0) | new),
        ]
        m.d.sync += [
            seen.eq(self.address_valid & ~self.address_ready),
            open_bursts.eq(open_bursts + new - self.last),
        ]
        return m


class HbmWriter(wiring.Component):
    """Writes rows to the HBM, up to one a cycle.

    A burst is issued only when all of its rows are in the buffer, so that only memory can delay an
    issued burst.

    Attributes
    ----------
    burst, rows : In(stream of hbm_burst), In(stream of a row)
        Requested bursts, and their rows.
    discard : In(1)
        A row that is accepted in this cycle is not written: its strobes are zero.
    done : Out(stream of hbm_done)
        One entry for each burst, in order, after memory has responded.
    address, beat, response : Out(streams of address, more), Out(streams of data, last, keep),
            In(streams of hbm_done)
        AXI bursts, write beats and responses, one stream of each for every channel.
    busy : Out(1)
        A burst is incomplete, or its entry of ``done`` has not been accepted.
    """

    def __init__(self, config: Config) -> None:
        _check_config(config)
        self._config = config
        channels = config.hbm_channels
        super().__init__({
            "burst": In(stream.Signature(hbm_burst(config))),
            "rows": In(stream.Signature(8 * config.row_bytes)),
            "discard": In(1),
            "done": Out(stream.Signature(hbm_done())),
            "address": Out(_address(config)).array(channels),
            "beat": Out(_beat(config)).array(channels),
            "response": In(stream.Signature(hbm_done())).array(channels),
            "busy": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        cutter = instantiate(m, platform, "cutter", "burst_cutter", lambda: BurstCutter(config))
        connect(m, flipped(self.burst), cutter.burst)
        # Pieces with all rows and without all responses. No queue of pieces can be full.
        pending = Signal(range(WRITES + 1))
        ended = Signal()
        last = self._gather(m, platform, cutter, pending)
        self._join_responses(m, platform, cutter.piece.payload, last, ended)
        m.d.sync += pending.eq(pending + last - ended)
        m.d.comb += self.busy.eq(cutter.piece.valid | (pending != 0) | self.done.valid)
        return m

    def _gather(self, m: Module, platform: object, cutter: BurstCutter,
                pending: Signal) -> Signal:
        """Accept the rows, and distribute each of them over the channels.

        ``cutter`` offers the pieces of the bursts. A piece is removed when its last row is
        accepted. ``pending``, which the caller drives, is the number of pieces that have all their
        rows, but not yet all responses. Return a signal that is set in the cycle in which the last
        row of a piece is accepted.
        """
        config = self._config
        piece = cutter.piece.payload
        width = channel_bits(config)
        count = Signal.like(piece.more)
        is_last = Signal()
        take = Signal()
        last = Signal()
        beats = [_queue(m, platform, f"beats_{c}", width + 2, _WRITE_ROOM * max_beats(config))
                 for c in range(config.hbm_channels)]
        m.d.comb += [
            is_last.eq(count == piece.more),
            self.rows.ready.eq(cutter.piece.valid & ~(is_last & (pending == WRITES))
                               & reduce(and_, (queue.input.ready for queue in beats))),
            take.eq(self.rows.valid & self.rows.ready),
            last.eq(take & is_last),
            cutter.piece.ready.eq(last),
        ]
        with m.If(take):
            m.d.sync += count.eq(Mux(is_last, 0, count + 1))
        for c, queue in enumerate(beats):
            address, beat = self.address[c], self.beat[c]
            wanted = _address_queue(m, platform, f"wanted_{c}", config, WRITES, piece, address)
            order = instantiate(m, platform, f"order_{c}", "write_order", WriteOrder)
            m.d.comb += [
                wanted.input.valid.eq(last),
                queue.input.valid.eq(take),
                queue.input.payload.eq(Cat(self.rows.payload[c * width:(c + 1) * width],
                                           is_last, ~self.discard)),
                order.address_valid.eq(address.valid),
                order.address_ready.eq(address.ready),
                beat.valid.eq(queue.output.valid & order.allowed),
                beat.payload.eq(queue.output.payload),
                queue.output.ready.eq(beat.ready & order.allowed),
                order.last.eq(beat.valid & beat.ready & beat.payload.last),
            ]
        return last

    def _join_responses(self, m: Module, platform: object, piece: data.View, last: Signal,
                        ended: Signal) -> None:
        """Join all responses to the pieces of a burst into one entry of ``done``.

        ``last`` is set in the cycle in which the last row of ``piece`` is accepted. From then on,
        the piece waits until all channels have answered it. This method drives ``ended``, which is
        set in the cycle in which the oldest piece stops waiting.
        """
        ends = _queue(m, platform, "ends", 1, WRITES)
        answers = [_queue(m, platform, f"answers_{c}", 1, WRITES)
                   for c in range(self._config.hbm_channels)]
        is_end = Signal()
        bad = Signal()
        failed = Signal()
        m.d.comb += [
            ends.input.valid.eq(last),
            ends.input.payload.eq(piece.last),
            is_end.eq(ends.output.payload),
            ended.eq(ends.output.valid & (~is_end | ~self.done.valid | self.done.ready)
                     & reduce(and_, (queue.output.valid for queue in answers))),
            bad.eq(failed | reduce(or_, (queue.output.payload for queue in answers))),
            ends.output.ready.eq(ended),
        ]
        for response, queue in zip(self.response, answers, strict=True):
            m.d.comb += [
                queue.input.valid.eq(response.valid),
                queue.input.payload.eq(response.payload.error),
                response.ready.eq(queue.input.ready),
                queue.output.ready.eq(ended),
            ]
        with m.If(self.done.ready):
            m.d.sync += self.done.valid.eq(0)
        with m.If(ended):
            m.d.sync += failed.eq(bad & ~is_end)
            with m.If(is_end):
                m.d.sync += [self.done.valid.eq(1), self.done.payload.error.eq(bad)]


class HbmPort(wiring.Component):
    """A core's connection to memory: streams of rows to and from one AXI4 master per channel.

    Bursts are of type INCR, of the channel's full width, with identifier 0. They are cut at
    multiples of `max_beats` beats, and so never cross a multiple of 4 KiB in a channel's address
    space. At least `BURSTS` of full length can be outstanding in each direction. This sustains one
    row a cycle in both directions at once, if the memory's latency in cycles is at most
    (`BURSTS` - 1) * `max_beats` - 4, which is 220 in `v2` and 108 in the other presets. Reads
    sustain this rate even with bursts of one row. Short write bursts may be slower: at most
    `WRITES` of them can be outstanding.

    A write burst must be requested (``hbm_write``) before its rows are accepted, and is issued when
    all of them are in the buffer. Concurrent reads and writes of the same row are not ordered.

    Every request is completed. The client of a write burst must deliver all of its rows. A reset
    requires that ``busy`` is not set, or that memory is reset too.

    Parameters
    ----------
    config : Config
        Parameters; ``hbm_channels`` must divide a row into powers of two from 4 to 128 bytes.

    Attributes
    ----------
    hbm_read, hbm_rows : In(stream of hbm_burst), Out(stream of hbm_row)
        Read requests, and the rows in the order of the requests. ``error`` of a row: a channel's
        response was not OKAY.
    hbm_write, hbm_write_rows : In(stream of hbm_burst), In(stream of 32 * lanes)
        Write requests, and their rows.
    discard : In(1)
        A row that is accepted in this cycle is not written.
    hbm_write_done : Out(stream of hbm_done)
        One entry for each write burst, in order, after memory has responded. ``error``: a
        channel's response was not OKAY.
    axi : Out(Axi4).array(hbm_channels)
        The masters.
    busy : Out(1)
        A request is incomplete.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or not valid for a chip.
    """

    def __init__(self, config: Config) -> None:
        _check_config(config)
        self._config = config
        super().__init__({
            "hbm_read": In(stream.Signature(hbm_burst(config))),
            "hbm_rows": Out(stream.Signature(hbm_row(config))),
            "hbm_write": In(stream.Signature(hbm_burst(config))),
            "hbm_write_rows": In(stream.Signature(8 * config.row_bytes)),
            "discard": In(1),
            "hbm_write_done": Out(stream.Signature(hbm_done())),
            "axi": Out(Axi4(config.hbm_address_bits, channel_bits(config))).array(
                config.hbm_channels),
            "busy": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        reader = instantiate(m, platform, "reader", "hbm_reader", lambda: HbmReader(config))
        writer = instantiate(m, platform, "writer", "hbm_writer", lambda: HbmWriter(config))
        connect(m, flipped(self.hbm_read), reader.burst)
        connect(m, reader.rows, flipped(self.hbm_rows))
        connect(m, flipped(self.hbm_write), writer.burst)
        connect(m, flipped(self.hbm_write_rows), writer.rows)
        connect(m, writer.done, flipped(self.hbm_write_done))
        m.d.comb += [writer.discard.eq(self.discard), self.busy.eq(reader.busy | writer.busy)]
        for c, axi in enumerate(self.axi):
            self._connect_address(m, axi, "ar", reader.address[c])
            self._connect_address(m, axi, "aw", writer.address[c])
            part, beat, response = reader.part[c], writer.beat[c], writer.response[c]
            m.d.comb += [
                part.valid.eq(axi.rvalid),
                part.payload.data.eq(axi.rdata),
                part.payload.error.eq(axi.rresp != Resp.OKAY.value),
                axi.rready.eq(part.ready),
                axi.wvalid.eq(beat.valid),
                axi.wdata.eq(beat.payload.data),
                axi.wlast.eq(beat.payload.last),
                # A multiplexer, because replicated bits would be written as if interdependent.
                axi.wstrb.eq(Mux(beat.payload.keep, (1 << config.channel_bytes) - 1, 0)),
                beat.ready.eq(axi.wready),
                response.valid.eq(axi.bvalid),
                response.payload.error.eq(axi.bresp != Resp.OKAY.value),
                axi.bready.eq(response.ready),
            ]
        return m

    def _connect_address(self, m: Module, axi: wiring.PureInterface, channel: str,
                         address: wiring.PureInterface) -> None:
        constants = {"size": exact_log2(self._config.channel_bytes), "burst": Burst.INCR.value,
                     "cache": _NORMAL_BUFFERABLE}
        m.d.comb += [
            getattr(axi, f"{channel}valid").eq(address.valid),
            getattr(axi, f"{channel}addr").eq(address.payload.address),
            getattr(axi, f"{channel}len").eq(address.payload.more),
            address.ready.eq(getattr(axi, f"{channel}ready")),
            *(getattr(axi, channel + name).eq(value) for name, value in constants.items()),
        ]
