"""Executes the requests of a serial line, one at a time, and stores the last response."""

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..axi.lite import RegisterAccess
from ..sram import Sram
from ..tiles import instantiate
from .frames import ADDRESS_BITS, frame_byte
from .protocol import (
    CHECK_BYTES,
    MAX_REQUEST,
    MAX_WORDS,
    REQUEST_BYTES,
    RESPONSE_BYTES,
    VERSION,
    Operation,
    Status,
)

__all__ = ["Executor"]

_RESET_CYCLES = 16
_WORD_BYTES = 4
_KEPT_BITS = ceil_log2(_WORD_BYTES * MAX_WORDS)


class Executor(wiring.Component):
    """Executes requests from a buffer, and sends responses; `golden.fpga.bridge` is its model.

    Attributes
    ----------
    received, length, check, dropped : In
        From `hdl.fpga.frames.FrameReceiver`.
    hold : Out(1)
        The buffer's request is being executed, so the buffer must not be written.
    read, read_address, read_data : Out(1), Out(ADDRESS_BITS), In(8)
        Read port of the buffer; data follow one cycle later.
    response : Out(stream of frame_byte)
        The responses, byte by byte.
    access : Out(RegisterAccess)
        Accesses to registers and to memory, with byte addresses of 32 bits.
    reset : Out(1)
        Resets the chip; no access is requested meanwhile.
    """

    def __init__(self) -> None:
        super().__init__({
            "received": In(1), "length": In(range(MAX_REQUEST + 1)), "check": In(32),
            "dropped": In(16), "hold": Out(1),
            "read": Out(1), "read_address": Out(ADDRESS_BITS), "read_data": In(8),
            "response": Out(stream.Signature(frame_byte())),
            "access": Out(RegisterAccess(32)), "reset": Out(1),
        })
        self._header = Signal(data.StructLayout(
            {"sequence": 8, "operation": 8, "count": 16, "address": 32}), reset_less=True)
        self._status = Signal(Status)
        self._done = Signal(range(MAX_WORDS + 1))  # words transferred
        self._kept = Signal(_KEPT_BITS + 1)  # bytes of words in the response
        self._position = Signal(ADDRESS_BITS)  # byte of the request
        self._sent = Signal(_KEPT_BITS + 2)  # byte of the response
        self._fetched = Signal()
        self._word = Signal(32, reset_less=True)
        self._byte = Signal(range(_WORD_BYTES))  # byte of the word
        self._fixed = Signal()
        self._writes = Signal()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        words = instantiate(m, platform, "words", Sram.module(8, 1 << _KEPT_BITS),
                            lambda: Sram(8, 1 << _KEPT_BITS))
        operation = self._header.operation
        m.d.comb += [
            self._fixed.eq((operation == Operation.READ_FIXED)
                           | (operation == Operation.WRITE_FIXED)),
            self._writes.eq((operation == Operation.WRITE)
                            | (operation == Operation.WRITE_FIXED)),
            self.read_address.eq(self._position),
        ]
        with m.FSM() as fsm:
            m.d.comb += self.hold.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += [self._position.eq(0), self._sent.eq(0)]
                with m.If(self.received):
                    m.next = "HEADER"
            with m.State("HEADER"), m.If(self._fetch(m)):
                m.d.sync += self._header.eq(Cat(self._header.as_value()[8:], self.read_data))
                with m.If(self._position == REQUEST_BYTES - 1):
                    m.next = "DECODE"
            with m.State("DECODE"):
                self._decode(m)
            with m.State("RESET"):
                cycle = Signal(range(_RESET_CYCLES))
                m.d.comb += self.reset.eq(1)
                m.d.sync += cycle.eq(cycle + 1)
                with m.If(cycle == _RESET_CYCLES - 1):
                    m.next = "RESPOND"
            with m.State("FETCH"), m.If(self._fetch(m)):
                m.d.sync += [self._word.eq(Cat(self._word[8:], self.read_data)),
                             self._byte.eq(self._byte + 1)]
                with m.If(self._byte == _WORD_BYTES - 1):
                    m.next = "ACCESS"
            with m.State("ACCESS"):
                self._request(m)
            with m.State("KEEP"):
                m.d.comb += [words.write.eq(1), words.write_address.eq(self._kept),
                             words.write_data.eq(self._word[:8])]
                m.d.sync += [self._word.eq(self._word >> 8), self._byte.eq(self._byte + 1),
                             self._kept.eq(self._kept + 1)]
                with m.If(self._byte == _WORD_BYTES - 1):
                    with m.If(self._header.count == 0):
                        m.next = "RESPOND"
                    with m.Else():
                        m.next = "ACCESS"
            with m.State("RESPOND"):
                self._respond(m, words)
        return m

    def _fetch(self, m: Module) -> Value:
        """Read the request byte by byte, in two cycles each; return a bit that marks the second."""
        m.d.comb += self.read.eq(~self._fetched)
        m.d.sync += self._fetched.eq(~self._fetched)
        with m.If(self._fetched):
            m.d.sync += self._position.eq(self._position + 1)
        return self._fetched

    def _decode(self, m: Module) -> None:
        """Begin the request; if it is a copy of the previous request, repeat the response."""
        header = self._header
        answered = Signal()
        check = Signal(32, reset_less=True)
        sequence = Signal(8, reset_less=True)
        reads = (header.operation == Operation.READ) | (header.operation == Operation.READ_FIXED)
        bare = self.length == REQUEST_BYTES + CHECK_BYTES
        whole = self.length == REQUEST_BYTES + CHECK_BYTES + _WORD_BYTES * header.count
        legal = (header.count != 0) & (header.count <= MAX_WORDS) & (header.address[:2] == 0)
        # Two requests may have the same checksum by chance, so sequence numbers are compared, too.
        with m.If(answered & (self.check == check) & (header.sequence == sequence)):
            m.next = "RESPOND"
        with m.Else():
            m.d.sync += [answered.eq(1), check.eq(self.check), sequence.eq(header.sequence),
                         self._status.eq(Status.OKAY), self._done.eq(0), self._kept.eq(0)]
            with m.If((header.operation == Operation.IDENTIFY) & (header.count == 0) & bare):
                m.d.sync += [self._done.eq(1), self._word.eq(Cat(Const(VERSION, 16), self.dropped))]
                m.next = "KEEP"
            with m.Elif((header.operation == Operation.RESET) & (header.count == 0) & bare):
                m.next = "RESET"
            with m.Elif(self._writes & legal & whole):
                m.next = "FETCH"
            with m.Elif(reads & legal & bare):
                m.next = "ACCESS"
            with m.Else():
                m.d.sync += self._status.eq(Status.MALFORMED)
                m.next = "RESPOND"

    def _request(self, m: Module) -> None:
        """Access the first of the ``count`` words that are left, at the header's ``address``."""
        header = self._header
        m.d.comb += [self.access.valid.eq(1), self.access.write.eq(self._writes),
                     self.access.address.eq(header.address), self.access.data.eq(self._word)]
        with m.If(self.access.done):
            with m.If(self.access.error):
                m.d.sync += self._status.eq(Status.REFUSED)
                m.next = "RESPOND"
            with m.Else():
                m.d.sync += [self._done.eq(self._done + 1), header.count.eq(header.count - 1),
                             self._word.eq(self.access.value)]
                with m.If(~self._fixed):
                    m.d.sync += header.address.eq(header.address + _WORD_BYTES)
                with m.If(~self._writes):
                    m.next = "KEEP"
                with m.Elif(header.count == 1):
                    m.next = "RESPOND"
                with m.Else():
                    m.next = "FETCH"

    def _respond(self, m: Module, words: Sram) -> None:
        """Send the response's header, then the bytes in ``words``: two cycles or more a byte."""
        header = Array([self._header.sequence, self._status, self._done[:8], self._done[8:]])
        m.d.comb += [
            words.read.eq(~self._fetched),
            words.read_address.eq(self._sent - RESPONSE_BYTES),
            self.response.valid.eq(self._fetched),
            self.response.payload.data.eq(Mux(self._sent < RESPONSE_BYTES,
                                              header[self._sent[:2]],
                                              words.read_data)),
            self.response.payload.last.eq(self._sent == self._kept + (RESPONSE_BYTES - 1)),
        ]
        with m.If(~self._fetched):
            m.d.sync += self._fetched.eq(1)
        with m.Elif(self.response.ready):
            m.d.sync += [self._fetched.eq(0), self._sent.eq(self._sent + 1)]
            with m.If(self.response.payload.last):
                m.next = "IDLE"
