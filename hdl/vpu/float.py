"""fp32 sums, products and conversions of a vector element, as docs/numerics.md defines them.

Each unit has two register stages and no valid bits: a control pipeline shared by all elements
enables the stages. The units are separate, so that a simulator need not evaluate unused ones.
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature

from ..mxu import mac
from ..mxu.mac import BIAS, EXPONENT, F32_FRACTION, F32_INF, F32_NAN, Unpacked
from ..tiles import instantiate

__all__ = ["STAGES", "FloatAdd", "FloatMultiply", "IntToFloat", "Multiply", "RoundProduct"]

STAGES = 2
"""Number of register stages from the operands to the result of each unit."""

DIGIT = 8
"""Bits of a partial product's right factor. The left factor has 24 bits, the product 32."""

PRODUCT = F32_FRACTION + 4
"""Bits of a product before rounding: carry, significand, half a unit, sticky bit."""

Operands = Signature({
    "a": Out(32),    # fp32
    "b": Out(32),
})

ExactProduct = Signature({
    "sign": Out(1),
    "nan": Out(1),
    "infinite": Out(1),                # unless nan
    "zero": Out(1),                    # unless nan
    "exponent": Out(EXPONENT + 2),     # two's complement, biased
    "significand": Out(PRODUCT),       # below 4; the lowest bit is sticky
})


def _latch(m: Module, name: str, bundle: wiring.PureInterface,
           enable: Signal) -> wiring.PureInterface:
    """Copy ``bundle`` into registers that load if ``enable`` is set; return the registered copy."""
    later = bundle.signature.create(path=(name,))
    for field, member in bundle.signature.members.items():
        register = Signal(member.shape, name=f"{name}_{field}", reset_less=True)
        with m.If(enable):
            m.d.sync += register.eq(getattr(bundle, field))
        m.d.comb += getattr(later, field).eq(register)
    return later


def _through(m: Module, platform: object, bundle: wiring.PureInterface,
             steps: dict[str, type]) -> wiring.PureInterface:
    """Connect combinational steps of the MAC datapath in order; return the last step's output.

    ``bundle`` is the first step's input. ``steps`` maps instance names to step classes.
    """
    for name, make_step in steps.items():
        step = instantiate(m, platform, name, f"mac_{name}", make_step)
        wiring.connect(m, bundle, step.i)
        bundle = step.o
    return bundle


class FloatAdd(wiring.Component):
    """Adds or subtracts two fp32 numbers, rounding once, in ``latency`` cycles.

    It consists of steps of the MAC cell's datapath, `hdl.mxu.mac`.

    Attributes
    ----------
    enable : In(2)
        Bit 0: loads the operands at the end of this cycle. Bit 1: loads ``sum`` with the sum of the
        operands loaded last. A stage that is not enabled holds.
    subtract : In(1)
        Loaded with the operands: computes a + (-b) instead of a + b.
    a, b : In(32)
        Operands (fp32).
    sum : Out(32)
        Result (fp32), registered.
    """

    latency = STAGES

    enable: In(STAGES)
    subtract: In(1)
    a: In(32)
    b: In(32)
    sum: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        compare = instantiate(m, platform, "compare", "float_compare",
                              lambda: mac.Compare(F32_FRACTION))
        m.d.comb += [
            compare.acc.eq(self.a),
            compare.i.sign.eq(self.b[31] ^ self.subtract),
            compare.i.exponent.eq(self.b[F32_FRACTION:31]),
            # Subnormals read as zero; `Compare` does this for a.
            compare.i.fraction.eq(Mux(compare.i.exponent == 0, 0, self.b[:F32_FRACTION])),
        ]
        # Stage 0: order the operands by magnitude, and align the smaller one.
        aligned = _through(m, platform, compare.o, {
            "align_coarse": mac.AlignCoarse, "align_fine": mac.AlignFine})
        # Stage 1: add, normalise and round.
        rounded = _through(m, platform, _latch(m, "aligned", aligned, self.enable[0]), {
            "add": mac.Add, "normalize_coarse": mac.NormalizeCoarse,
            "normalize_medium": mac.NormalizeMedium, "normalize_fine": mac.NormalizeFine,
            "round": mac.Round})
        m.d.comb += self.sum.eq(_latch(m, "result", rounded, self.enable[1]).bits)
        return m


class IntToFloat(wiring.Component):
    """Converts a signed integer to the nearest fp32, ties to even, in ``latency`` cycles.

    Attributes
    ----------
    enable : In(2)
        Bit 0: loads ``a`` at the end of this cycle. Bit 1: loads ``number`` with the conversion of
        the operand loaded last. A stage that is not enabled holds.
    a : In(32)
        Operand (two's complement).
    number : Out(32)
        Result (fp32), registered; +0 for 0.
    """

    latency = STAGES

    enable: In(STAGES)
    a: In(32)
    number: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sign = Signal(reset_less=True)
        word = Signal(32, reset_less=True)
        zeros = Signal(3, reset_less=True)
        magnitude = Signal(32)
        m.d.comb += magnitude.eq(Mux(self.a[31], -self.a, self.a))
        coarse, coarse_zeros = mac.shift_out_zeros(m, magnitude, (16, 8, 4))
        with m.If(self.enable[0]):
            m.d.sync += [
                sign.eq(self.a[31]),
                word.eq(coarse),
                zeros.eq(Cat(*reversed(coarse_zeros))),
            ]

        fine, fine_zeros = mac.shift_out_zeros(m, word, (2, 1))
        all_zeros = Signal(5)
        round_ = instantiate(m, platform, "round", "mac_round", mac.Round)
        spare = len(fine) - mac.SUM
        m.d.comb += [
            all_zeros.eq(Cat(*reversed(fine_zeros), zeros)),
            round_.i.sign.eq(sign),
            round_.i.exponent.eq(BIAS + 31 - 1 - all_zeros),
            # The bits below the rounding bits form a sticky bit.
            round_.i.sum.eq(Cat(fine[:spare + 1].any(), fine[spare + 1:])),
        ]
        m.d.comb += self.number.eq(_latch(m, "result", round_.o, self.enable[1]).bits)
        return m


class Multiply(wiring.Component):
    """Exact product of two fp32 numbers, with its low bits reduced to a sticky bit; combinational.

    The product of the significands has 48 bits. The significand of b is split into three digits of
    `DIGIT` bits. For each digit, from the lowest on, the product of the significand of a and the
    digit is added to the upper part of the sum so far. So no word has more than 32 bits; the
    largest possible sum just fits.
    """

    combinational = True

    i: In(Operands)
    o: Out(ExactProduct)

    def elaborate(self, platform: object) -> Module:
        m = Module()

        a = Unpacked(m, "a", self.i.a, F32_FRACTION)
        b = Unpacked(m, "b", self.i.b, F32_FRACTION)

        total = Signal(32, name="total_0")
        m.d.comb += total.eq(a.significand * b.significand[:DIGIT])
        fallen = []
        for low in range(DIGIT, F32_FRACTION + 1, DIGIT):
            part = Signal(32, name=f"part_{low}")
            following = Signal(32, name=f"total_{low}")
            m.d.comb += [
                part.eq(a.significand * b.significand[low:low + DIGIT]),
                following.eq(part + total[DIGIT:]),
            ]
            fallen.append(total[:DIGIT])
            total = following
        spare = len(total) - (PRODUCT - 1)
        sticky = Signal()
        m.d.comb += [
            sticky.eq(Cat(*fallen, total[:spare]).any()),
            self.o.significand.eq(Cat(sticky, total[spare:])),
        ]

        m.d.comb += [
            self.o.sign.eq(a.sign ^ b.sign),
            self.o.nan.eq(a.nan | b.nan | (a.special & b.zero) | (a.zero & b.special)),
            self.o.infinite.eq(a.special | b.special),
            self.o.zero.eq(a.zero | b.zero),
            # For normal numbers, from -125 to 381.
            self.o.exponent.eq(a.exponent + b.exponent - BIAS),
        ]
        return m


class RoundProduct(wiring.Component):
    """Rounds a product to nearest, ties to even; then tests for overflow and underflow.

    Combinational.
    """

    combinational = True

    i: In(ExactProduct)
    o: Out(mac.Float32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Significands in [1, 2) give a product in [1, 4): one conditional shift normalises it.
        carry = Signal()
        normal = Signal(PRODUCT)
        m.d.comb += [
            carry.eq(self.i.significand[-1]),
            normal.eq(Mux(carry, self.i.significand, self.i.significand << 1)),
        ]
        up = Signal()
        rounded = Signal(F32_FRACTION + 2)
        exponent = Signal(EXPONENT + 2)
        m.d.comb += [
            # Bits 0 and 1 lie below half a unit, bit 2 is half a unit, bit 3 is the last one kept.
            up.eq(normal[2] & (normal[:2].any() | normal[3])),
            rounded.eq(normal[3:] + up),
            # If rounding carries, the fraction is zero already.
            exponent.eq(self.i.exponent + carry + rounded[-1]),
        ]
        zero = Signal()
        infinite = Signal()
        magnitude = Signal(31)
        m.d.comb += [
            zero.eq(self.i.zero | exponent[-1] | (exponent == 0)),
            infinite.eq(self.i.infinite | (~exponent[-1] & (
                exponent[EXPONENT] | exponent[:EXPONENT].all()))),
            magnitude.eq(Mux(self.i.nan, F32_NAN, Mux(infinite, F32_INF, Mux(
                zero, 0, Cat(rounded[:F32_FRACTION], exponent[:EXPONENT]))))),
            self.o.bits.eq(Cat(magnitude, self.i.sign & ~self.i.nan)),
        ]
        return m


class FloatMultiply(wiring.Component):
    """Multiplies two fp32 numbers, rounding once, in ``latency`` cycles.

    Overflow and underflow are tested after rounding, as docs/numerics.md defines: a product below
    2**-126 that rounds to 2**-126 gives 2**-126, not zero.

    Attributes
    ----------
    enable : In(2)
        Bit 0: loads the operands at the end of this cycle. Bit 1: loads ``product`` with the
        product of the operands loaded last. A stage that is not enabled holds.
    a, b : In(32)
        Operands (fp32).
    product : Out(32)
        Result (fp32), registered.
    """

    latency = STAGES

    enable: In(STAGES)
    a: In(32)
    b: In(32)
    product: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        multiply = instantiate(m, platform, "multiply", "float_multiply", Multiply)
        round_ = instantiate(m, platform, "round", "float_round_product", RoundProduct)
        # Stage 0: the exact product. Stage 1: rounding.
        m.d.comb += [multiply.i.a.eq(self.a), multiply.i.b.eq(self.b)]
        wiring.connect(m, _latch(m, "exact", multiply.o, self.enable[0]), round_.i)
        m.d.comb += self.product.eq(_latch(m, "result", round_.o, self.enable[1]).bits)
        return m
