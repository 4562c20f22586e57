"""Memory in block RAM or SDRAM: an AXI4 slave, and a port for single words."""

from amaranth import Array, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..axi.interface import Axi4, Burst, Resp
from ..axi.lite import RegisterAccess
from ..checks import integer
from ..sram import Sram
from ..tiles import instantiate
from .sdram import BeatAccess

__all__ = ["BlockMemory", "SdramMemory"]


class BlockMemory(wiring.Component):
    """Memory that reads and writes a beat in each cycle; initial contents are undefined.

    Bursts must be of type INCR, with beats as wide as the data; other bursts are answered with
    SLVERR, without effect. The low bits of an address, which select a byte of a beat, are ignored.

    Parameters
    ----------
    address_bits : int
        Width of byte addresses: the memory has ``1 << address_bits`` bytes, at least two beats.
    data_bits : int
        Width of a beat: 32, 64, ... 1024.

    Attributes
    ----------
    axi : In(Axi4)
        The master of bursts.
    access : In(RegisterAccess)
        Accesses to words of 32 bits. A read waits for the end of an accepted read burst, a write
        for the end of an accepted write burst.

    Raises
    ------
    TypeError, ValueError
        If a width is not an integer, or not one of the allowed widths.
    """

    def __init__(self, address_bits: int, data_bits: int) -> None:
        signature = Axi4(address_bits, data_bits)
        if data_bits < 32:
            raise ValueError(f"data_bits must be at least 32, not {data_bits!r}")
        self._bytes = data_bits // 8
        self._low = exact_log2(self._bytes)
        integer("address_bits", address_bits, self._low + 1, 64)
        self._rows = 1 << address_bits - self._low
        super().__init__({"axi": In(signature), "access": In(RegisterAccess(address_bits))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # A memory for each byte of a beat, because strobes select bytes.
        lanes = [instantiate(m, platform, f"lane_{lane}", Sram.module(8, self._rows),
                             lambda: Sram(8, self._rows)) for lane in range(self._bytes)]
        write_row, read_row = Signal(range(self._rows)), Signal(range(self._rows))
        reads = Signal()
        for lane in lanes:
            m.d.comb += [lane.write_address.eq(write_row), lane.read_address.eq(read_row),
                         lane.read.eq(reads)]
        written = self._write(m, lanes, write_row)
        fetched = self._read(m, lanes, read_row, reads)
        m.d.comb += self.access.done.eq(Mux(self.access.write, written, fetched))
        return m

    def _accepted(self, m: Module, channel: str, more: Signal, row: Signal, wrong: Signal,
                  ready: Signal) -> None:
        """Accept the address of a burst on ``channel``, ``aw`` or ``ar``, while ``ready`` is 1.

        Sets ``row`` to the burst's first row, ``more`` to its number of beats after the first, and
        ``wrong`` to whether the memory refuses it.
        """
        axi = self.axi
        valid, address, length, size, burst = (
            getattr(axi, channel + name) for name in ("valid", "addr", "len", "size", "burst"))
        identity, response = ((axi.awid, axi.bid) if channel == "aw" else (axi.arid, axi.rid))
        m.d.comb += getattr(axi, f"{channel}ready").eq(ready)
        with m.If(valid & ready):
            m.d.sync += [more.eq(length), row.eq(address >> self._low), response.eq(identity),
                         wrong.eq((burst != Burst.INCR.value) | (size != self._low))]

    def _write(self, m: Module, lanes: list[wiring.Component], write_row: Signal) -> Signal:
        """Connect the write ports of the byte lanes to AXI's bursts and to ``access``.

        ``write_row``, driven here, is the row to write. Each of ``lanes`` stores one byte of a row.
        Return a signal that is set in the cycle in which a word of ``access`` is written.
        """
        axi, access = self.axi, self.access
        row, more = Signal.like(write_row), Signal(8)
        wrong, busy, own = Signal(), Signal(), Signal()
        m.d.comb += [
            own.eq(access.valid & access.write & ~busy),
            axi.wready.eq(busy & ~axi.bvalid),
            write_row.eq(Mux(busy, row, access.address >> self._low)),
        ]
        words = len(lanes) // 4
        for number, lane in enumerate(lanes):
            word, byte = divmod(number, 4)
            chosen = access.address[2:self._low] == word if words > 1 else 1
            m.d.comb += [
                lane.write.eq(Mux(busy, axi.wvalid & axi.wready & axi.wstrb[number] & ~wrong,
                                  own & chosen)),
                lane.write_data.eq(Mux(busy, axi.wdata.word_select(number, 8),
                                       access.data.word_select(byte, 8)))]
        self._accepted(m, "aw", more, row, wrong, ~busy & ~(access.valid & access.write))
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += busy.eq(1)
        with m.If(axi.wvalid & axi.wready):
            m.d.sync += [row.eq(row + 1), more.eq(more - 1)]
            with m.If(more == 0):
                m.d.sync += [axi.bvalid.eq(1),
                             axi.bresp.eq(Mux(wrong, Resp.SLVERR.value, Resp.OKAY.value))]
        with m.If(axi.bvalid & axi.bready):
            m.d.sync += [axi.bvalid.eq(0), busy.eq(0)]
        return own

    def _read(self, m: Module, lanes: list[wiring.Component], read_row: Signal,
              reads: Signal) -> Signal:
        """Connect the read ports of the byte lanes to AXI's bursts and to ``access``.

        ``reads``, driven here, makes all ``lanes`` read row ``read_row``, also driven here.
        Return a signal that is set in the cycle in which a word for ``access`` is valid.
        """
        axi, access = self.axi, self.access
        row, more = Signal.like(read_row), Signal(8)
        wrong, busy, own, fetched = Signal(), Signal(), Signal(), Signal()
        wanted = access.valid & ~access.write
        fetch = Signal()
        m.d.comb += [
            fetch.eq(busy & (~axi.rvalid | axi.rready)),
            # The lanes hold the beat on offer, so it has to be taken first.
            own.eq(wanted & ~busy & ~axi.rvalid & ~fetched),
            reads.eq(fetch | own),
            read_row.eq(Mux(busy, row, access.address >> self._low)),
        ]
        self._accepted(m, "ar", more, row, wrong, ~busy & ~axi.rvalid & ~wanted)
        for number, lane in enumerate(lanes):
            m.d.comb += axi.rdata.word_select(number, 8).eq(lane.read_data)
        with m.If(axi.arvalid & axi.arready):
            m.d.sync += busy.eq(1)
        with m.If(fetch):
            m.d.sync += [row.eq(row + 1), more.eq(more - 1), axi.rvalid.eq(1),
                         axi.rlast.eq(more == 0), busy.eq(more != 0),
                         axi.rresp.eq(Mux(wrong, Resp.SLVERR.value, Resp.OKAY.value))]
        with m.Elif(axi.rready):
            m.d.sync += axi.rvalid.eq(0)
        m.d.sync += fetched.eq(own)
        words = Array([axi.rdata.word_select(word, 32) for word in range(len(lanes) // 4)])
        m.d.comb += access.value.eq(words[access.address[2:self._low]])
        return fetched


class SdramMemory(wiring.Component):
    """A memory with the ports of `BlockMemory`, in front of an `SdramController`.

    One burst or access to a word takes place at a time. Read bursts, write bursts and accesses to
    words take turns. A reset ends a burst, but a beat that the controller has accepted before may
    still be written.

    Parameters
    ----------
    address_bits, data_bits : int
        As in `BlockMemory`.

    Attributes
    ----------
    axi : In(Axi4)
        The master of bursts.
    access : In(RegisterAccess)
        Accesses to words of 32 bits.
    beats : Out(BeatAccess)
        To the controller.

    Raises
    ------
    TypeError, ValueError
        If a width is not an integer, or not one of the allowed widths.
    """

    def __init__(self, address_bits: int, data_bits: int) -> None:
        signature = Axi4(address_bits, data_bits)
        if data_bits < 32:
            raise ValueError(f"data_bits must be at least 32, not {data_bits!r}")
        self._low = exact_log2(data_bits // 8)
        self._words = data_bits // 32
        integer("address_bits", address_bits, self._low + 1, 64)
        super().__init__({
            "axi": In(signature), "access": In(RegisterAccess(address_bits)),
            "beats": Out(BeatAccess(address_bits - self._low, data_bits))})
        self._row = Signal(address_bits - self._low)
        self._length = Signal(8)  # of the burst, less one
        self._more = Signal(8)  # beats after the next to write or to deliver
        self._wrong = Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, access, beats = self.axi, self.access, self.beats
        was_word, was_write = Signal(), Signal()
        word = access.valid & ~(was_word & (axi.awvalid | axi.arvalid))
        m.d.comb += [beats.row.eq(self._row), beats.data.eq(axi.wdata),
                     beats.strobe.eq(axi.wstrb),
                     axi.bresp.eq(Mux(self._wrong, Resp.SLVERR.value, Resp.OKAY.value)),
                     axi.rresp.eq(axi.bresp)]
        with m.FSM():
            with m.State("START"), m.If(beats.idle):  # It may be busy for a burst before the reset.
                m.next = "IDLE"
            with m.State("IDLE"):
                with m.If(word):
                    m.d.sync += was_word.eq(1)
                    m.next = "WORD"
                with m.Elif(axi.awvalid & ~(was_write & axi.arvalid)):
                    self._begin(m, "aw")
                    m.d.sync += [was_word.eq(0), was_write.eq(1)]
                    m.next = "WRITE"
                with m.Elif(axi.arvalid):
                    self._begin(m, "ar")
                    m.d.sync += [was_word.eq(0), was_write.eq(0)]
                    m.next = "READ"
            with m.State("WORD"):
                self._access(m)
            with m.State("WRITE"):
                self._write(m)
            with m.State("ANSWER"):
                m.d.comb += axi.bvalid.eq(1)
                with m.If(axi.bready):
                    m.next = "IDLE"
            with m.State("READ"):
                self._read(m)
        return m

    def _begin(self, m: Module, channel: str) -> None:
        """Accept the address of a burst on ``channel``, ``aw`` or ``ar``."""
        axi = self.axi
        address, length, size, burst, identity = (
            getattr(axi, channel + name) for name in ("addr", "len", "size", "burst", "id"))
        m.d.comb += getattr(axi, f"{channel}ready").eq(1)
        m.d.sync += [(axi.bid if channel == "aw" else axi.rid).eq(identity),
                     self._length.eq(length), self._more.eq(length),
                     self._row.eq(address >> self._low),
                     self._wrong.eq((burst != Burst.INCR.value) | (size != self._low))]

    def _access(self, m: Module) -> None:
        """Access a word, as a beat whose other words are masked or ignored."""
        access, beats = self.access, self.beats
        asked = Signal()
        at = access.address[2:self._low] if self._words > 1 else Const(0, 1)
        m.d.comb += [
            beats.valid.eq(~asked), beats.write.eq(access.write),
            beats.row.eq(access.address >> self._low), beats.data.eq(access.data.replicate(
                self._words)), beats.strobe.eq(Const(15, 4 * self._words) << 4 * at),
            access.value.eq(Array(beats.value.word_select(number, 32)
                                  for number in range(self._words))[at]),
            access.done.eq(Mux(access.write, beats.ready, beats.done))]
        with m.If(beats.ready):
            m.d.sync += asked.eq(1)
        with m.If(access.done):
            m.d.sync += asked.eq(0)
            m.next = "IDLE"

    def _write(self, m: Module) -> None:
        """Write a burst; the beats of a refused burst are dropped."""
        axi, beats = self.axi, self.beats
        m.d.comb += [beats.valid.eq(axi.wvalid & ~self._wrong), beats.write.eq(1),
                     axi.wready.eq(beats.ready | self._wrong)]
        with m.If(axi.wvalid & axi.wready):
            m.d.sync += [self._row.eq(self._row + 1), self._more.eq(self._more - 1)]
            with m.If(self._more == 0):
                m.next = "ANSWER"

    def _read(self, m: Module) -> None:
        """Read a burst.

        At most two beats are requested and not yet taken by the master: there is room for one at
        the port, and for one in the controller.
        """
        axi, beats = self.axi, self.beats
        asked = Signal(8)  # beats
        all_asked = Signal()
        waiting = Signal(range(3))  # beats that were requested, and not taken
        full = Signal()  # the controller holds a beat
        asks, taken, found, moves, ends = (Signal() for _ in range(5))
        m.d.comb += [
            beats.valid.eq(~all_asked & (waiting != 2) & ~self._wrong),
            asks.eq(beats.valid & beats.ready), taken.eq(axi.rvalid & axi.rready),
            ends.eq(axi.rvalid & axi.rlast),
            found.eq(beats.done | full | (self._wrong & ~ends)),
            moves.eq(found & (~axi.rvalid | axi.rready))]
        m.d.sync += [waiting.eq(waiting + asks - (taken & ~self._wrong)),
                     full.eq((beats.done | full) & ~moves)]
        with m.If(asks):
            m.d.sync += [self._row.eq(self._row + 1), asked.eq(asked + 1),
                         all_asked.eq(asked == self._length)]
        with m.If(moves):
            m.d.sync += [axi.rvalid.eq(1), axi.rdata.eq(beats.value), self._more.eq(self._more - 1),
                         axi.rlast.eq(self._more == 0)]
        with m.Elif(axi.rready):
            m.d.sync += axi.rvalid.eq(0)
        with m.If(taken & axi.rlast):
            m.d.sync += [asked.eq(0), all_asked.eq(0)]
            m.next = "IDLE"
