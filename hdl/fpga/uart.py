"""A UART: bytes on a serial line, 8 data bits, no parity, one stop bit."""

from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..checks import integer

__all__ = ["UartReceiver", "UartTransmitter"]

_MIN_DIVISOR = 4
_BITS = 10
"""Bits that carry a byte on the line: a start bit, 8 data bits, a stop bit."""


class UartReceiver(wiring.Component):
    """Receives bytes; it samples each bit once, in its middle.

    A start bit that has ended before its middle is taken for noise. After a byte without its stop
    bit, such as a break, the receiver waits until the line is idle.

    Parameters
    ----------
    divisor : int
        Cycles of a bit, at least 4.

    Attributes
    ----------
    line : In(1)
        The line; asynchronous. It is 1 when idle.
    valid, data : Out(1), Out(8)
        A byte was received; ``valid`` is set for one cycle.
    error : Out(1)
        With ``valid``: the byte's stop bit is missing, and ``data`` is undefined.

    Raises
    ------
    TypeError, ValueError
        If the divisor is not an integer, or too small.
    """

    def __init__(self, divisor: int) -> None:
        self._divisor = integer("divisor", divisor, _MIN_DIVISOR)
        super().__init__({"line": In(1, init=1), "valid": Out(1), "data": Out(8), "error": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        line = Signal(init=1)
        early = Signal(init=1)  # of a level that changes at the clock's edge; may be metastable
        m.d.sync += [early.eq(self.line), line.eq(early)]
        cycle = Signal(range(self._divisor))
        bit = Signal(range(_BITS))
        m.d.sync += self.valid.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [cycle.eq(self._divisor // 2 - 1), bit.eq(0)]
                with m.If(~line):
                    m.next = "BYTE"
            with m.State("BYTE"):
                m.d.sync += cycle.eq(cycle - 1)
                with m.If(cycle == 0):
                    m.d.sync += [cycle.eq(self._divisor - 1), bit.eq(bit + 1)]
                    with m.If(bit == _BITS - 1):
                        m.d.sync += [self.valid.eq(1), self.error.eq(~line)]
                        # The next start bit is at most half a bit away, less if the sender is fast.
                        with m.If(line):
                            m.next = "IDLE"
                        with m.Else():
                            m.next = "BREAK"
                    with m.Elif(bit != 0):
                        m.d.sync += self.data.eq(Cat(self.data[1:], line))
                    with m.Elif(line):
                        m.next = "IDLE"
            with m.State("BREAK"), m.If(line):
                m.next = "IDLE"
        return m


class UartTransmitter(wiring.Component):
    """Sends bytes, without a pause between two bytes if the second is offered in time.

    Parameters
    ----------
    divisor : int
        Cycles of a bit, at least 4.

    Attributes
    ----------
    input : In(stream of 8)
        Bytes to send.
    line : Out(1)
        The line.

    Raises
    ------
    TypeError, ValueError
        If the divisor is not an integer, or too small.
    """

    def __init__(self, divisor: int) -> None:
        self._divisor = integer("divisor", divisor, _MIN_DIVISOR)
        super().__init__({"input": In(stream.Signature(8)), "line": Out(1, init=1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        cycle = Signal(range(self._divisor))
        waiting = Signal(range(_BITS + 1))
        bits = Signal(_BITS - 1)
        m.d.comb += self.input.ready.eq((cycle == 0) & (waiting == 0))
        with m.If(cycle != 0):
            m.d.sync += cycle.eq(cycle - 1)
        with m.Elif(waiting != 0):
            m.d.sync += [self.line.eq(bits[0]), bits.eq(bits >> 1), waiting.eq(waiting - 1),
                         cycle.eq(self._divisor - 1)]
        with m.Elif(self.input.valid):
            m.d.sync += [self.line.eq(0), bits.eq(Cat(self.input.payload, 1)),
                         waiting.eq(_BITS - 1), cycle.eq(self._divisor - 1)]
        return m
