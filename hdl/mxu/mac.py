"""The multiply-accumulate datapath, split into combinational steps.

``sum = acc + x * w`` with an exact bfloat16 product and one rounding (docs/numerics.md). Each step
is a component between two named interfaces, so that a cell can place pipeline registers between any
two of them:

    multiply | compare | align coarse, fine | add | normalize coarse, medium, fine | round

Every word has at most 32 bits and every choice is a word-wide multiplexer. This needs few lookup
tables, and lets a simulator evaluate many cells with one vector instruction per operator.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature

from ..checks import integer

__all__ = ["STEPS", "Add", "AlignCoarse", "AlignFine", "Compare", "Multiply", "NormalizeCoarse",
           "NormalizeFine", "NormalizeMedium", "Round", "Unpacked", "shift_out_zeros"]

BF16_FRACTION = 7
F32_FRACTION = 23
EXPONENT = 8
BIAS = 127
SPECIAL = 255
F32_INF = SPECIAL << F32_FRACTION
F32_NAN = F32_INF | 1 << (F32_FRACTION - 1)
"""`SPECIAL` is the biased exponent of infinity and NaN, `F32_INF` the pattern of +infinity, and
`F32_NAN` the pattern of the NaN that all operations return."""

PRODUCT_FRACTION = 2 * BF16_FRACTION + 1
"""Bits of a product's fraction: a product of two 8-bit significands has 16 bits, of which the
highest is not stored."""

GUARD = 3
"""Number of bits below the significand: guard, round and sticky bit suffice for one exact rounding.
"""

ALIGNED = F32_FRACTION + 1 + GUARD
"""Width of an aligned significand."""

SUM = ALIGNED + 1
"""Width of the sum of two aligned significands."""

Operands = Signature({
    "x": Out(16),    # bfloat16
    "w": Out(16),    # bfloat16
})


def number(fraction: int) -> Signature:
    """Return the signature of a number with the exponent of fp32 and ``fraction`` fraction bits."""
    return Signature({
        "sign": Out(1),
        "exponent": Out(EXPONENT),       # 0: zero, fraction 0; 255: infinity, or NaN if not 0
        "fraction": Out(fraction),
    })


Product = number(PRODUCT_FRACTION)

Ordered = Signature({
    "sign": Out(1),                      # of the larger magnitude; 0 for NaN
    "subtract": Out(1),                  # the signs differ; then an exactly zero sum is +0
    "nan": Out(1),
    "infinite": Out(1),
    "exponent": Out(EXPONENT),           # of the larger magnitude
    "large": Out(F32_FRACTION + 1),      # significands with their leading bit
    "small": Out(F32_FRACTION + 1),
    "distance": Out(5),                  # right shift of the smaller; 31 means 31 or more
})

CoarseAligned = Signature({
    **{name: Ordered.members[name]
       for name in ("sign", "subtract", "nan", "infinite", "exponent", "large")},
    "small": Out(ALIGNED),
    "distance": Out(3),                  # remaining right shift
})

Aligned = Signature({
    **{name: Ordered.members[name]
       for name in ("sign", "subtract", "nan", "infinite", "exponent", "large")},
    "small": Out(ALIGNED),
})

Sum = Signature({
    **{name: Ordered.members[name]
       for name in ("sign", "subtract", "nan", "infinite", "exponent")},
    "sum": Out(SUM),
})

CoarseSum = Signature({
    **Sum.members,
    "zeros": Out(1),                     # leading zeros removed from the sum, in units of 16
})

MediumSum = Signature({
    **Sum.members,
    "zeros": Out(2),                     # the same, in units of 8
})

NormalizedSum = Signature({
    **{name: Sum.members[name] for name in ("sign", "subtract", "nan", "infinite", "sum")},
    "exponent": Out(EXPONENT + 1),       # of the result, minus one; negative: underflow
})

Float32 = Signature({"bits": Out(32)})


class _Step(wiring.Component):
    """A combinational step: computes its output interface ``o`` from its input interface ``i``."""

    combinational = True

    def _pass(self, m: Module, *names: str) -> None:
        for name in names:
            m.d.comb += getattr(self.o, name).eq(getattr(self.i, name))


class Unpacked:
    """The fields of a factor with 8 exponent bits and ``fraction`` fraction bits.

    Attributes
    ----------
    sign, zero, special, nan : Value
        ``zero``: zero or subnormal. ``special``: infinity or NaN.
    exponent : Signal(8)
    significand : Signal(fraction + 1)
        Includes the leading bit; undefined if ``zero`` or ``special``.
    """

    def __init__(self, m: Module, name: str, bits: Value, fraction: int) -> None:
        self.sign = bits[EXPONENT + fraction]
        self.exponent = Signal(EXPONENT, name=f"{name}_exponent")
        self.significand = Signal(fraction + 1, name=f"{name}_significand")
        self.zero = Signal(name=f"{name}_zero")
        self.special = Signal(name=f"{name}_special")
        self.nan = Signal(name=f"{name}_nan")
        m.d.comb += [
            self.exponent.eq(bits[fraction:EXPONENT + fraction]),
            self.significand.eq(Cat(bits[:fraction], 1)),
            # A subnormal reads as zero, so the exponent alone decides.
            self.zero.eq(self.exponent == 0),
            self.special.eq(self.exponent == SPECIAL),
            self.nan.eq(self.special & bits[:fraction].any()),
        ]


class Multiply(_Step):
    """Exact product of two bfloat16 values, with the exponent range of fp32.

    The product has 16 significant bits, so it needs no rounding. Beyond fp32's exponent range it
    becomes infinity or zero. If a factor is NaN, or if zero is multiplied by infinity, the result
    is the NaN with fraction 0b100...
    """

    i: In(Operands)
    o: Out(Product)

    def elaborate(self, platform: object) -> Module:
        m = Module()

        x = Unpacked(m, "x", self.i.x, BF16_FRACTION)
        w = Unpacked(m, "w", self.i.w, BF16_FRACTION)

        # Significands in [1, 2) give a product in [1, 4): one conditional shift normalises it.
        product = Signal(2 * (BF16_FRACTION + 1))
        carry = Signal()
        fraction = Signal(PRODUCT_FRACTION)
        m.d.comb += [
            product.eq(x.significand * w.significand),
            carry.eq(product[-1]),
            fraction.eq(Mux(carry, product[:-1], Cat(0, product[:-2]))),
        ]

        # The carry arrives late, so the exponent and its tests are computed without it, and are
        # corrected last. Range of this exponent: -125 ... 381, in two's complement.
        exponent = Signal(EXPONENT + 2)
        zero = Signal()
        infinite = Signal()
        nan = Signal()
        m.d.comb += [
            exponent.eq(x.exponent + w.exponent - BIAS),
            zero.eq(x.zero | w.zero | exponent[-1] | ((exponent == 0) & ~carry)),
            infinite.eq(x.special | w.special | (~exponent[-1] & (
                exponent[EXPONENT] | (exponent[1:EXPONENT].all() & (exponent[0] | carry))))),
            nan.eq(x.nan | w.nan | ((x.special | w.special) & (x.zero | w.zero))),
        ]
        m.d.comb += [
            self.o.sign.eq(x.sign ^ w.sign),
            self.o.exponent.eq(Mux(nan | infinite, SPECIAL, Mux(zero, 0, exponent + carry))),
            self.o.fraction.eq(Mux(nan, 1 << (PRODUCT_FRACTION - 1),
                                   Mux(zero | infinite, 0, fraction))),
        ]
        return m


class Compare(_Step):
    """Orders accumulator and product by magnitude, and computes the shift that aligns them.

    The smaller magnitude is subtracted from the larger one, so the difference is never negative. A
    NaN has the greatest magnitude of all values, so it is always the larger operand.

    Parameters
    ----------
    fraction : int
        Fraction bits of the operand ``i`` (the product), 1 to 23.

    Raises
    ------
    TypeError
        If ``fraction`` is not an integer.
    ValueError
        If ``fraction`` is out of range.
    """

    def __init__(self, fraction: int = PRODUCT_FRACTION) -> None:
        fraction = integer("fraction", fraction, 1, F32_FRACTION)
        self._tail = F32_FRACTION - fraction
        super().__init__({"i": In(number(fraction)), "acc": In(32), "o": Out(Ordered)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        tail = self._tail
        acc = Signal(31)
        product = Signal(31)
        m.d.comb += [
            # Subnormals read as zero.
            acc.eq(Mux(self.acc[F32_FRACTION:31] == 0, 0, self.acc[:31])),
            product.eq(Cat(C(0, tail), self.i.fraction, self.i.exponent)),
        ]

        swap = Signal()
        large = Signal(31)
        small = Signal(31)
        m.d.comb += [
            # The product's tail is zero, so the accumulator's tail cannot decide. Nor can the
            # fraction of a subnormal: a nonzero product has the larger exponent.
            swap.eq(product[tail:] > self.acc[tail:31]),
            large.eq(Mux(swap, product, acc)),
            small.eq(Mux(swap, acc, product)),
        ]

        small_exponent = Signal(EXPONENT)
        distance = Signal(EXPONENT)
        m.d.comb += [
            self.o.exponent.eq(large[F32_FRACTION:]),
            small_exponent.eq(small[F32_FRACTION:]),
            distance.eq(self.o.exponent - small_exponent),
            self.o.distance.eq(Mux(distance[5:].any(), 31, distance[:5])),
            self.o.large.eq(Cat(large[:F32_FRACTION], self.o.exponent != 0)),
            self.o.small.eq(Cat(small[:F32_FRACTION], small_exponent != 0)),
        ]

        m.d.comb += [
            self.o.subtract.eq(self.i.sign ^ self.acc[31]),
            self.o.infinite.eq(self.o.exponent == SPECIAL),
            self.o.nan.eq(self.o.infinite & (
                large[:F32_FRACTION].any() | (self.o.subtract & (small_exponent == SPECIAL)))),
            self.o.sign.eq(~self.o.nan & Mux(swap, self.i.sign, self.acc[31])),
        ]
        return m


def _shift_right_sticky(m: Module, word: Signal, places: Value) -> Value:
    """Return ``word >> places``, its lowest bit ORed with all bits that are shifted out."""
    kept = Signal(len(word))
    lost = Signal()
    shifted = Signal(len(word))
    m.d.comb += [
        kept.eq(((1 << len(word)) - 1) << places),
        lost.eq((word & ~kept).any()),
        shifted.eq(word >> places),
    ]
    return shifted | lost


class AlignCoarse(_Step):
    """Shifts the smaller significand right by a multiple of 8 bits; lost bits set a sticky bit.

    Two shifts, coarse and fine, need fewer lookup tables than one, because the masks that select
    the lost bits are short.
    """

    i: In(Ordered)
    o: Out(CoarseAligned)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        wide = Signal(ALIGNED)
        m.d.comb += [
            wide.eq(self.i.small << GUARD),
            self.o.small.eq(_shift_right_sticky(m, wide, Cat(C(0, 3), self.i.distance[3:]))),
            self.o.distance.eq(self.i.distance[:3]),
        ]
        self._pass(m, "sign", "subtract", "nan", "infinite", "exponent", "large")
        return m


class AlignFine(_Step):
    """Shifts the smaller significand right by the remaining 0 to 7 bits."""

    i: In(CoarseAligned)
    o: Out(Aligned)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.o.small.eq(_shift_right_sticky(m, self.i.small, self.i.distance))
        self._pass(m, "sign", "subtract", "nan", "infinite", "exponent", "large")
        return m


class Add(_Step):
    """Adds or subtracts the aligned significands; the difference is never negative."""

    i: In(Aligned)
    o: Out(Sum)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        small = Signal(SUM)
        inverted = Signal(SUM)
        m.d.comb += [
            small.eq(self.i.small),
            inverted.eq(Mux(self.i.subtract, ~small, small)),
            # One adder does both: the carry of the two's complement enters below the large operand.
            self.o.sum.eq(Cat(self.i.subtract, C(0, GUARD - 1), self.i.large) + inverted),
        ]
        self._pass(m, "sign", "subtract", "nan", "infinite", "exponent")
        return m


def shift_out_zeros(m: Module, word: Signal,
                    steps: tuple[int, ...]) -> tuple[Signal, list[Signal]]:
    """For each n in ``steps``, in order, shift ``word`` left by n if its top n bits are zero.

    Return the shifted word, and for each step a bit that is set if the step shifted.
    """
    taken = []
    for step in steps:
        empty = Signal(name=f"empty_{step}")
        shifted = Signal(len(word), name=f"shifted_{step}")
        m.d.comb += [
            empty.eq(word[-step:] == 0),
            shifted.eq(Mux(empty, word << step, word)),
        ]
        word = shifted
        taken.append(empty)
    return word, taken


class NormalizeCoarse(_Step):
    """Shifts the sum left by 16 if it has at least 16 leading zeros.

    Each normalization step both counts and shifts, so there is no separate leading-zero counter.
    """

    i: In(Sum)
    o: Out(CoarseSum)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word, taken = shift_out_zeros(m, self.i.sum, (16,))
        m.d.comb += [self.o.sum.eq(word), self.o.zeros.eq(Cat(*taken))]
        self._pass(m, "sign", "subtract", "nan", "infinite", "exponent")
        return m


class NormalizeMedium(_Step):
    """Shifts the sum left by 8 if it has at least 8 leading zeros."""

    i: In(CoarseSum)
    o: Out(MediumSum)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word, taken = shift_out_zeros(m, self.i.sum, (8,))
        m.d.comb += [self.o.sum.eq(word), self.o.zeros.eq(Cat(*taken, self.i.zeros))]
        self._pass(m, "sign", "subtract", "nan", "infinite", "exponent")
        return m


class NormalizeFine(_Step):
    """Shifts the sum left by its remaining leading zeros, up to 7, and corrects the exponent."""

    i: In(MediumSum)
    o: Out(NormalizedSum)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word, taken = shift_out_zeros(m, self.i.sum, (4, 2, 1))
        m.d.comb += [
            self.o.sum.eq(word),
            self.o.exponent.eq(self.i.exponent - Cat(*reversed(taken), self.i.zeros)),
        ]
        self._pass(m, "sign", "subtract", "nan", "infinite")
        return m


class Round(_Step):
    """Rounds to nearest, ties to even, and substitutes zero, infinity or NaN.

    Overflow and underflow are detected before rounding, off the critical path. That is correct for
    two reasons. A sum in the subnormal range is exact (both operands are multiples of 2**-149), so
    it cannot round up to a normal number. And the largest number, rounded up, becomes the pattern
    of infinity.
    """

    i: In(NormalizedSum)
    o: Out(Float32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        up = Signal()
        significand = Signal(F32_FRACTION + 2)
        rounded = Signal(31)
        m.d.comb += [
            # Bits 0 to 2 lie below half a unit, bit 3 is half a unit, bit 4 is the last one kept.
            up.eq(self.i.sum[3] & (self.i.sum[:3].any() | self.i.sum[4])),
            significand.eq(self.i.sum[GUARD + 1:] + up),
            # The exponent is one too low: the hidden bit adds one to it. A carry adds another one.
            rounded.eq((self.i.exponent[:EXPONENT] << F32_FRACTION) + significand),
        ]

        exact_zero = Signal()
        zero = Signal()
        infinite = Signal()
        m.d.comb += [
            exact_zero.eq(~self.i.sum[-1]),
            zero.eq(exact_zero | self.i.exponent[-1]),
            infinite.eq(self.i.infinite | self.i.exponent[1:EXPONENT].all()),
        ]
        sign = Signal()
        magnitude = Signal(31)
        m.d.comb += [
            sign.eq(self.i.sign & ~(exact_zero & self.i.subtract)),
            magnitude.eq(Mux(self.i.nan, F32_NAN, Mux(zero, 0, Mux(infinite, F32_INF, rounded)))),
            self.o.bits.eq(Cat(magnitude, sign)),
        ]
        return m


STEPS = (Multiply, Compare, AlignCoarse, AlignFine, Add,
         NormalizeCoarse, NormalizeMedium, NormalizeFine, Round)
"""The steps of the datapath, in order."""
