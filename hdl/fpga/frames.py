"""Frames on a line of bytes: with escapes and a checksum, as `hdl.fpga.protocol` defines them."""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..tiles import instantiate
from .checksum import Checksum
from .protocol import (
    CHECK_BYTES,
    ESCAPE,
    ESCAPE_MASK,
    FLAG,
    MAX_REQUEST,
    REQUEST_BYTES,
)

__all__ = ["ADDRESS_BITS", "FrameReceiver", "FrameSender", "frame_byte"]

ADDRESS_BITS = ceil_log2(MAX_REQUEST)
"""Width of a byte address in the buffer for requests."""
_DROPPED_BITS = 16


def frame_byte() -> data.StructLayout:
    """Payload of a byte to send in a frame; ``last`` marks the last byte before the checksum."""
    return data.StructLayout({"data": 8, "last": 1})


class FrameReceiver(wiring.Component):
    """Stores requests in a buffer, and drops those that are damaged; see `protocol.Deframer`.

    Attributes
    ----------
    valid, data, error : In(1), In(8), In(1)
        Bytes from `hdl.fpga.uart.UartReceiver`; ``error`` marks a byte without its stop bit.
    hold : In(1)
        The buffer is in use: frames of which a byte arrives meanwhile are dropped.
    write, address, byte : Out(1), Out(ADDRESS_BITS), Out(8)
        Write port of the buffer.
    received : Out(1)
        A request is in the buffer; set for one cycle, and never with ``hold``.
    length, check : Out, Out(32)
        Number of bytes of the request in the buffer, checksum included, and the checksum; valid
        from ``received`` until the next request is received.
    dropped : Out(16)
        Number of frames dropped since the reset; it saturates.
    """

    def __init__(self) -> None:
        super().__init__({
            "valid": In(1), "data": In(8), "error": In(1), "hold": In(1),
            "write": Out(1), "address": Out(ADDRESS_BITS), "byte": Out(8),
            "received": Out(1), "length": Out(range(MAX_REQUEST + 1)), "check": Out(32),
            "dropped": Out(_DROPPED_BITS),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        checksum = instantiate(m, platform, "checksum", "checksum", Checksum)
        escaped = Signal()
        bad = Signal()
        length = Signal.like(self.length)
        check = Signal.like(self.check)
        m.d.comb += [
            self.byte.eq(self.data ^ Mux(escaped, ESCAPE_MASK, 0)),
            self.address.eq(length),
            checksum.data.eq(self.byte),
            checksum.valid.eq(self.write),
        ]
        m.d.sync += self.received.eq(0)
        with m.If(self.valid):
            with m.If(self.error):
                m.d.sync += bad.eq(1)
            with m.Elif(self.data == FLAG):
                m.d.comb += checksum.start.eq(1)
                m.d.sync += [length.eq(0), bad.eq(0), escaped.eq(0)]
                with m.If(~bad & ~escaped & checksum.match
                          & (length >= REQUEST_BYTES + CHECK_BYTES)):
                    m.d.sync += [self.received.eq(1), self.length.eq(length),
                                 self.check.eq(check)]
                with m.Elif((bad | escaped | (length != 0)) & ~self.dropped.all()):
                    m.d.sync += self.dropped.eq(self.dropped + 1)
            with m.Elif((self.data == ESCAPE) & ~escaped):
                m.d.sync += escaped.eq(1)
            with m.Else():
                m.d.sync += escaped.eq(0)
                with m.If(self.hold | (length == MAX_REQUEST)):
                    m.d.sync += bad.eq(1)
                with m.Else():
                    m.d.comb += self.write.eq(1)
                    m.d.sync += [length.eq(length + 1),
                                 check.eq((check >> 8) | (self.byte << 24))]
        return m


class FrameSender(wiring.Component):
    """Sends frames: adds flags, escapes and the checksum.

    Attributes
    ----------
    input : In(stream of frame_byte)
        Payloads, byte by byte.
    output : Out(stream of 8)
        Bytes for the line.
    """

    def __init__(self) -> None:
        super().__init__({"input": In(stream.Signature(frame_byte())),
                          "output": Out(stream.Signature(8))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        checksum = instantiate(m, platform, "checksum", "checksum", Checksum)
        byte = Signal(8)
        escaped = Signal()
        done = Signal()
        part = Signal(range(CHECK_BYTES))
        parts = [checksum.value.word_select(number, 8) for number in range(CHECK_BYTES)]
        m.d.comb += checksum.data.eq(self.input.payload.data)

        def send() -> None:
            """Send ``byte``, in two steps if it must be escaped; set ``done`` in the last step."""
            special = ((byte == FLAG) | (byte == ESCAPE)) & ~escaped
            m.d.comb += [
                self.output.payload.eq(
                    Mux(special, ESCAPE, byte ^ Mux(escaped, ESCAPE_MASK, 0))),
                done.eq(self.output.valid & self.output.ready & ~special)]
            with m.If(self.output.valid & self.output.ready):
                m.d.sync += escaped.eq(special)

        with m.FSM():
            with m.State("FLAG"):
                m.d.comb += [checksum.start.eq(1), self.output.payload.eq(FLAG),
                             self.output.valid.eq(self.input.valid)]
                with m.If(self.output.valid & self.output.ready):
                    m.next = "BYTES"
            with m.State("BYTES"):
                m.d.comb += [byte.eq(self.input.payload.data),
                             self.output.valid.eq(self.input.valid),
                             self.input.ready.eq(done), checksum.valid.eq(done)]
                send()
                with m.If(done & self.input.payload.last):
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.d.comb += [byte.eq(Array(parts)[part]), self.output.valid.eq(1)]
                send()
                with m.If(done):
                    m.d.sync += part.eq(part + 1)
                    with m.If(part == CHECK_BYTES - 1):
                        m.next = "END"
            with m.State("END"):
                m.d.comb += [self.output.payload.eq(FLAG), self.output.valid.eq(1)]
                with m.If(self.output.ready):
                    m.next = "FLAG"
        return m
