"""Single-cycle operations of a vector element: moves; integer, mask and simple fp32 operations."""

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..bf16 import RoundToBf16
from ..isa import SLOTS, Slot, VectorOp
from ..mxu.mac import BIAS, F32_FRACTION, F32_INF, F32_NAN
from ..target import Target
from ..tiles import instantiate

__all__ = ["LANE_BITS", "OP_BITS", "STAGES", "SUBLANE_BITS", "Order", "ReversingShift", "Shift",
           "Simple"]

STAGES = 1
"""Number of register stages from the operands to the result."""

OP_BITS = SLOTS[Slot.V0]["op"]
"""Width of an operation code."""
LANE_BITS = 8
"""Width of a lane's number."""
SUBLANE_BITS = 3
"""Width of a sublane's number."""

INT_MAX = (1 << 31) - 1

Op = VectorOp

PICKS = (Op.FMIN, Op.FMAX, Op.FABS, Op.FNEG)
NUMBER_COMPARES = (Op.FEQ, Op.FNE, Op.FLT, Op.FLE, Op.FGT, Op.FGE)
INTEGER_COMPARES = (Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.LTU, Op.GEU)
LESS = (Op.FNE, Op.FLT, Op.FLE, Op.NE, Op.LT, Op.LE, Op.LTU)
EQUAL = (Op.FEQ, Op.FLE, Op.FGE, Op.EQ, Op.LE, Op.GE, Op.GEU)
GREATER = (Op.FNE, Op.FGT, Op.FGE, Op.NE, Op.GT, Op.GE, Op.GEU)
UNORDERED = (Op.FNE,)
"""`LESS`, `EQUAL`, `GREATER`, `UNORDERED`: the comparisons that are true if a < b, if a = b, if
a > b, and if an operand is NaN."""
MASK_LOGIC = (Op.MAND, Op.MOR, Op.MXOR, Op.MANDN)


class Order(wiring.Component):
    """Compares two words, as integers or as fp32 numbers; combinational.

    Every result follows from a comparison of the lower 31 bits, a test for equality, and the signs.

    Attributes
    ----------
    a, b : In(32)
        Operands.
    number : In(1)
        ``below`` compares fp32 numbers; if not set, it compares integers.
    no_sign : In(1)
        ``below`` compares unsigned integers; never together with ``number``.
    nan_a, nan_b, zeros : Out(1)
        The operands as fp32 numbers: a is NaN; b is NaN; both are zero or subnormal.
    same : Out(1)
        The words are equal.
    below : Out(1)
        Integers: a < b. Numbers, unless one is NaN: a < b, where -0 is less than +0; undefined for
        equal numbers and for zeros of the same sign.
    """

    combinational = True

    a: In(32)
    b: In(32)
    number: In(1)
    no_sign: In(1)
    nan_a: Out(1)
    nan_b: Out(1)
    zeros: Out(1)
    same: Out(1)
    below: Out(1)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lower = Signal()
        signs_differ = Signal()
        m.d.comb += [
            self.nan_a.eq(self.a[:31] > F32_INF),
            self.nan_b.eq(self.b[:31] > F32_INF),
            self.zeros.eq((self.a[F32_FRACTION:31] == 0) & (self.b[F32_FRACTION:31] == 0)),
            self.same.eq(self.a == self.b),
            lower.eq(self.a[:31] < self.b[:31]),
            signs_differ.eq(self.a[31] ^ self.b[31]),
        ]
        with m.If(signs_differ):
            m.d.comb += self.below.eq(Mux(self.no_sign, self.b[31], self.a[31]))
        with m.Elif(self.number & self.a[31]):
            # Sign and magnitude: of negative numbers, the one with the larger magnitude is less.
            # It may be set for equal numbers, because then nothing depends on it.
            m.d.comb += self.below.eq(~lower)
        with m.Else():
            m.d.comb += self.below.eq(lower)
        return m


class Shift(wiring.Component):
    """Shifts integers, and converts fp32 numbers to integers by a shift; combinational.

    Attributes
    ----------
    a, b : In(32)
        The operand, and the unsigned distance of a shift in bits.
    left, arithmetic, truncate : In(1)
        At most one is set. ``left``: shift left. ``arithmetic``: shift right and copy the sign.
        ``truncate``: convert the fp32 number a to a signed integer, rounded toward zero and
        saturated. If none of them is set: shift right and insert zeros.
    nan : In(1)
        The operand a, as an fp32 number, is NaN; ``truncate`` then gives 0.
    o : Out(32)
        Result.
    """

    combinational = True

    a: In(32)
    b: In(32)
    left: In(1)
    arithmetic: In(1)
    truncate: In(1)
    nan: In(1)
    o: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        exponent = self.a[F32_FRACTION:31]
        places = Signal(5)
        all_out = Signal()
        with m.If(self.truncate):
            # The significand's leading one, at the top of the word, has weight 2**31; numbers below
            # 1 have no integer part.
            m.d.comb += [
                places.eq(BIAS + 31 - exponent),
                all_out.eq(self.nan | (exponent < BIAS)),
            ]
        with m.Else():
            m.d.comb += [
                places.eq(self.b[:5]),
                all_out.eq(self.b[5:].any()),
            ]

        beyond = Signal()
        negative = Signal()
        signs = Signal(32)
        m.d.comb += [
            beyond.eq(self.truncate & ~self.nan & (exponent >= BIAS + 31)),
            negative.eq(self.a[31] & (self.arithmetic | (self.truncate & ~self.nan))),
            signs.eq(negative.replicate(32)),
        ]
        word = Signal(32)
        shifted = Signal(32)
        magnitude = Signal(32)
        m.d.comb += [
            # Shifting zeros into the inverse of a negative integer shifts ones into the integer.
            word.eq(Mux(self.truncate,
                        Cat(C(0, 31 - F32_FRACTION), self.a[:F32_FRACTION], C(1, 1)),
                        self.a ^ signs)),
            shifted.eq(self._shifted(m, word, places)),
            magnitude.eq(Mux(beyond, INT_MAX, Mux(all_out, 0, shifted))),
            # A negative number is negated; the inverse of the largest integer is the least one.
            self.o.eq((magnitude ^ signs) + (negative & self.truncate & ~beyond)),
        ]
        return m

    def variant(self, target: Target) -> "ReversingShift | None":
        """Return an equivalent component that suits the synthesis ``target`` better, or None."""
        return None if target is Target.GENERIC else ReversingShift()

    def _shifted(self, m: Module, word: Signal, places: Signal) -> Value:
        """Return ``word >> places`` or, if port ``left`` is set, port ``a`` shifted to the left."""
        return Mux(self.left, self.a << places, word >> places)


class ReversingShift(Shift):
    """`Shift` with a single right shifter: a left shift reverses the bit order before and after."""

    def _shifted(self, m: Module, word: Signal, places: Signal) -> Value:
        entered = Signal(32)
        right = Signal(32)
        m.d.comb += [
            entered.eq(Mux(self.left, self.a[::-1], word)),
            right.eq(entered >> places),
        ]
        return Mux(self.left, right[::-1], right)


class Simple(wiring.Component):
    """Computes all operations of `hdl.isa.Unit.SIMPLE` for one element in ``latency`` cycles.

    All elements of a vector unit execute the same operation.

    Attributes
    ----------
    enable : In(1)
        Loads the result at the end of this cycle; otherwise both outputs hold.
    op : In(6)
        A `VectorOp` of this unit, while ``enable`` is set.
    a, b : In(32)
        Operands.
    p, q : In(1)
        Mask operands a and b of the operations on masks; ``p`` also selects a in a `SELECT`.
    lane, sublane : In(8), In(3)
        The element's position, the results of `LANE` and `SUBLANE`.
    result : Out(32)
        Result of the last operation that wrote a vector register.
    flag : Out(1)
        Result of the last operation that wrote a mask.
    """

    latency = STAGES

    enable: In(1)
    op: In(OP_BITS)
    a: In(32)
    b: In(32)
    p: In(1)
    q: In(1)
    lane: In(LANE_BITS)
    sublane: In(SUBLANE_BITS)
    result: Out(32)
    flag: Out(1)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        compares_numbers = self._decode(m, "compares_numbers", *NUMBER_COMPARES)
        compares_integers = self._decode(m, "compares_integers", *INTEGER_COMPARES)
        combines_masks = self._decode(m, "combines_masks", *MASK_LOGIC)
        order = self._elaborate_order(m, platform, compares_numbers)
        by_number, by_integer = self._compared(m, order)
        combined = self._combined(m)
        flag = Signal(reset_less=True)
        result = Signal(32, reset_less=True)
        # Each group of operations is separate, so that a simulator can skip those not in use.
        with m.If(self.enable & compares_numbers):
            m.d.sync += flag.eq(by_number)
        with m.Elif(self.enable & compares_integers):
            m.d.sync += flag.eq(by_integer)
        with m.Elif(self.enable & combines_masks):
            m.d.sync += flag.eq(combined)
        sets_flag = Signal()
        m.d.comb += sets_flag.eq(compares_numbers | compares_integers | combines_masks)
        words = self._words(m, platform, order)
        with m.If(self.enable & ~sets_flag), m.Switch(self.op):
            for ops, word in words.items():
                with m.Case(*ops):
                    m.d.sync += result.eq(word)
            with m.Default():
                # Moves and logic. A case for each of them would only cost simulation time.
                m.d.sync += result.eq(self._logic(m))
        m.d.comb += [self.result.eq(result), self.flag.eq(flag)]
        return m

    def _decode(self, m: Module, name: str, *ops: VectorOp) -> Signal:
        """Return the signal ``name``, which is set if ``op`` is one of ``ops``."""
        decoded = Signal(name=name)
        m.d.comb += decoded.eq(self.op.matches(*ops))
        return decoded

    def _elaborate_order(self, m: Module, platform: object, compares_numbers: Signal) -> Order:
        order = instantiate(m, platform, "order", "vpu_order", Order)
        m.d.comb += [
            order.a.eq(self.a), order.b.eq(self.b),
            order.number.eq(self._decode(m, "picks", *PICKS) | compares_numbers),
            order.no_sign.eq(self._decode(m, "unsigned", Op.LTU, Op.GEU)),
        ]
        return order

    def _compared(self, m: Module, order: Order) -> tuple[Signal, Signal]:
        """Return the mask bits of the comparisons: of fp32 numbers, and of integers.

        ``order`` is the `Order` of operands a and b.
        """
        less, equal, greater, unordered = (
            self._decode(m, f"counts_{case}", *ops) for case, ops in (
                ("less", LESS), ("equal", EQUAL), ("greater", GREATER), ("unordered", UNORDERED)))
        by_number = Signal()
        by_integer = Signal()
        m.d.comb += [
            by_number.eq(Mux(order.nan_a | order.nan_b, unordered, Mux(
                order.same | order.zeros, equal, Mux(order.below, less, greater)))),
            by_integer.eq(Mux(order.same, equal, Mux(order.below, less, greater))),
        ]
        return by_number, by_integer

    def _combined(self, m: Module) -> Signal:
        """Return the result of an operation on masks, which is a mask bit."""
        combined = Signal()
        with m.Switch(self.op):
            with m.Case(Op.MAND):
                m.d.comb += combined.eq(self.p & self.q)
            with m.Case(Op.MOR):
                m.d.comb += combined.eq(self.p | self.q)
            with m.Case(Op.MXOR):
                m.d.comb += combined.eq(self.p ^ self.q)
            with m.Default():
                m.d.comb += combined.eq(self.p & ~self.q)
        return combined

    def _words(self, m: Module, platform: object,
               order: Order) -> dict[tuple[VectorOp, ...], Signal]:
        """Return the results of operations that write a vector register, except those of `_logic`.

        The key of a result is the tuple of the operations that share it.
        """
        total = Signal(32)
        m.d.comb += total.eq(Mux(self.op == Op.SUB, self.a - self.b, self.a + self.b))
        position = Signal(max(LANE_BITS, SUBLANE_BITS))
        m.d.comb += position.eq(Mux(self.op == Op.LANE, self.lane, self.sublane))
        rounded = Signal(32)
        round_ = instantiate(m, platform, "round", "round_to_bf16", RoundToBf16)
        m.d.comb += [round_.i.eq(self.a), rounded.eq(Cat(C(0, 16), round_.o))]
        shift = instantiate(m, platform, "shift", "vpu_shift", Shift)
        m.d.comb += [
            shift.a.eq(self.a), shift.b.eq(self.b), shift.nan.eq(order.nan_a),
            shift.left.eq(self.op == Op.SHL), shift.arithmetic.eq(self.op == Op.SAR),
            shift.truncate.eq(self.op == Op.F2I),
        ]
        return {
            PICKS: self._pick(m, order),
            (Op.SHL, Op.SHR, Op.SAR, Op.F2I): shift.o,
            (Op.BF16,): rounded,
            (Op.ADD, Op.SUB): total,
            (Op.LANE, Op.SUBLANE): position,
        }

    def _pick(self, m: Module, order: Order) -> Signal:
        """Return the result of `PICKS`: an operand, possibly with another sign, or NaN."""
        unary = self._decode(m, "unary", Op.FABS, Op.FNEG)
        take_a = Signal()
        nan = Signal()
        chosen = Signal(32)
        m.d.comb += [
            take_a.eq(unary | (order.below ^ (self.op == Op.FMAX))),
            nan.eq(order.nan_a | (order.nan_b & ~unary)),
            chosen.eq(Mux(take_a, self.a, self.b)),
        ]
        sign = Signal()
        magnitude = Signal(31)
        picked = Signal(32)
        m.d.comb += [
            sign.eq((chosen[31] ^ (self.op == Op.FNEG)) & ~(self.op == Op.FABS)),
            # A subnormal reads as zero.
            magnitude.eq(Mux(chosen[F32_FRACTION:31] == 0, 0, chosen[:31])),
            picked.eq(Mux(nan, F32_NAN, Cat(magnitude, sign))),
        ]
        return picked

    def _logic(self, m: Module) -> Signal:
        """Return the result of the moves and of the bitwise operations."""
        word = Signal(32, name="logic")
        with m.Switch(self.op):
            with m.Case(Op.AND):
                m.d.comb += word.eq(self.a & self.b)
            with m.Case(Op.OR):
                m.d.comb += word.eq(self.a | self.b)
            with m.Case(Op.XOR):
                m.d.comb += word.eq(self.a ^ self.b)
            with m.Case(Op.SELECT):
                m.d.comb += word.eq(Mux(self.p, self.a, self.b))
            with m.Default():
                m.d.comb += word.eq(self.b)
        return word
