"""The target of an SPI line in mode 0: bytes in both directions, the highest bit first."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .protocol import FLAG

__all__ = ["MIN_CYCLES", "SpiTarget"]

MIN_CYCLES = 8
"""Minimum number of clock cycles for a bit on the line."""


class SpiTarget(wiring.Component):
    """Receives and sends a byte in every eight periods of the host's clock.

    The host sets its bit before the clock rises, as the target does, and reads on the rising edge.
    A target that has no byte to send sends a flag. Both levels of the host's clock must last four
    cycles or longer.

    Attributes
    ----------
    clock, select, line_in, line_out : In(1), In(1), In(1), Out(1)
        SCLK, CS#, MOSI and MISO; the inputs are asynchronous. While ``select`` is 1, the line is
        idle, and ``line_out`` has no meaning.
    valid, data, error : Out(1), Out(8), Out(1)
        A byte was received, as from `hdl.fpga.uart.UartReceiver`; ``error``: ``select`` rose within
        it.
    input : In(stream of 8)
        Bytes to send; a byte is accepted when the host reads its first bit.
    """

    def __init__(self) -> None:
        super().__init__({
            "clock": In(1), "select": In(1, init=1), "line_in": In(1), "line_out": Out(1),
            "valid": Out(1), "data": Out(8), "error": Out(1), "input": In(stream.Signature(8))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Of levels that change at the clock's edge; the first may be metastable.
        early, now, before = (Signal(3, init=0b010, name=name)
                              for name in ("early", "now", "before"))
        m.d.sync += [early.eq(Cat(self.clock, self.select, self.line_in)), now.eq(early),
                     before.eq(now)]
        selected = ~now[1]
        rises, falls = now[0] & ~before[0], ~now[0] & before[0]
        bit = Signal(range(8))  # bits received of the byte
        sent = Signal(8)
        offered = Signal()  # the byte being sent is one of the input
        m.d.comb += [self.line_out.eq(sent[-1]),
                     self.input.ready.eq(selected & rises & (bit == 0) & offered)]
        m.d.sync += self.valid.eq(0)
        with m.If(~selected):
            m.d.sync += [bit.eq(0), self.valid.eq(bit != 0), self.error.eq(1)]
        with m.Elif(rises):
            m.d.sync += [self.data.eq(Cat(now[2], self.data[:-1])), bit.eq(bit + 1),
                         self.valid.eq(bit == 7), self.error.eq(0)]
        # The next byte: ready before the clock's first edge, and again after each eighth.
        with m.If((bit == 0) & (~selected | falls)):
            m.d.sync += [sent.eq(Mux(self.input.valid, self.input.payload, FLAG)),
                         offered.eq(self.input.valid)]
        with m.Elif(falls):
            m.d.sync += sent.eq(sent << 1)
        return m
