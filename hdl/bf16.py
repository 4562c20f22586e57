"""bfloat16 conversions."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["RoundToBf16"]


class RoundToBf16(wiring.Component):
    """Rounds fp32 to bfloat16, to nearest, ties to even (docs/numerics.md); combinational.

    Subnormals become zero of the same sign, NaN becomes 0x7FC0, overflow gives infinity.

    Attributes
    ----------
    i : In(32)
        fp32 value.
    o : Out(16)
        bfloat16 value.
    """

    combinational = True

    i: In(32)
    o: Out(16)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        exponent = self.i[23:31]
        zero = Signal()
        nan = Signal()
        up = Signal()
        rounded = Signal(15)
        m.d.comb += [
            zero.eq(exponent == 0),
            nan.eq((exponent == 255) & self.i[:23].any()),
            up.eq(self.i[15] & (self.i[:15].any() | self.i[16])),
            # A carry out of the fraction increments the exponent, up to infinity.
            rounded.eq(self.i[16:31] + up),
            self.o[:15].eq(Mux(nan, 0x7FC0, Mux(zero, 0, rounded))),
            self.o[15].eq(self.i[31] & ~nan),
        ]
        return m
