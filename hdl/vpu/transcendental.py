"""The transcendental unit: 1/x, 1/sqrt(x), 2**x, log2(x) and tanh(x) of fp32 by one datapath.

    reduce, look up | interpolate | multiply, add | normalise, round

`docs/transcendentals.md` explains the arithmetic, and `golden/transcendental.py` is its golden
model. Every word that is not a product or a sum of products has at most 32 bits.
"""

from amaranth import C, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..target import Target
from ..tiles import instantiate
from .tables import (
    BLOCK_BITS,
    C0_BITS,
    C1_BITS,
    C2_BITS,
    ENTRIES,
    SEGMENT_BITS,
    Block,
    Function,
    words,
)

__all__ = ["EarlyBias", "Transcendental", "TranscendentalTable"]

FRACTION = 23
BIAS = 127
SPECIAL = 255
F32_INF = SPECIAL << FRACTION
F32_NAN = F32_INF | 1 << (FRACTION - 1)

FUNCTION_BITS = 3
ADDRESS_BITS = BLOCK_BITS + SEGMENT_BITS
POSITION_BITS = 20
"""Bits of a position within a segment. In the narrower segments, the lowest bits are zero."""
SQUARE_BITS = 16
"""Number of high bits of a position that are squared; as many high bits of the square are used."""
FIXED_BITS = 26
"""Number of fraction bits of an operand in fixed point."""
VALUE_BITS = 29
"""Bits of the table's value: a number below 2, in units of 2**-28."""
TOTAL_BITS = 48
"""Bits of the table's value before rounding: a number below 2, in units of 2**-47."""
WORD_BITS = 32
"""Bits of a result before rounding: a number below 2, in units of 2**-31."""

EXPONENT_BITS = 10
"""Bits of an exponent in two's complement, biased as in fp32."""
FAR_ABOVE, FAR_BELOW = 384, -256
"""Exponents out of range, which force the result to infinity or to zero."""

TERMS = data.StructLayout({"factor": FRACTION + 1, "integer": 8})
"""``factor``: number by which the table's value is multiplied. ``integer``: number, in units of
1/256, that is added to the product."""
FORM = data.StructLayout({"exponent": signed(EXPONENT_BITS), "sign": 1, "nan": 1})
"""Exponent, sign and NaN flag of a result before rounding; ``nan`` overrides the others."""
SCALE = data.StructLayout({"shift": 4, "opposed": 1, "form": FORM})
"""``shift``: distance by which the product of table value and factor is shifted right. ``opposed``:
the product is subtracted from log2's integer part, not added to it. ``form``: `FORM` of the result.
"""


class TranscendentalTable(wiring.Component):
    """A read-only memory of the coefficients; data follow the address by one cycle.

    It consists of two memories, each 32 bits wide: the width of block RAMs and of the words in
    simulation kernels.

    Attributes
    ----------
    read, address : In(1), In(10)
        Read port.
    data : Out(64)
        The word of `hdl.vpu.tables.words` at the address of the last ``read``, held until the next.
    """

    read: In(1)
    address: In(ADDRESS_BITS)
    data: Out(64)

    def verilog(self) -> str:
        """Return the Verilog module, written here because Amaranth would write it bit by bit."""
        contents = "\n".join(f"    low[{address}] = 32'h{word & 0xFFFFFFFF:08x}; "
                             f"high[{address}] = 32'h{word >> 32:08x};"
                             for address, word in enumerate(words()))
        return f"""\
module transcendental_table (
  input clk,
  input rst,  // unused: a memory has no reset
  input read,
  input [{ADDRESS_BITS - 1}:0] address,
  output [63:0] data
);
  reg [31:0] low [0:{ENTRIES - 1}];
  reg [31:0] high [0:{ENTRIES - 1}];
  reg [31:0] low_data;
  reg [31:0] high_data;
  assign data = {{high_data, low_data}};
  always @(posedge clk)
    if (read) begin
      low_data <= low[address];
      high_data <= high[address];
    end
  initial begin
{contents}
  end
endmodule
"""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.words = memory = Memory(shape=64, depth=ENTRIES, init=words())
        port = memory.read_port()
        m.d.comb += [port.en.eq(self.read), port.addr.eq(self.address), self.data.eq(port.data)]
        return m


class Transcendental(wiring.Component):
    """Accepts one function and one fp32 number a cycle; the result follows in ``latency`` cycles.

    There are no valid bits: a control pipeline shared by all elements enables the stages. The
    registers of a stage load when its enable is set, and hold otherwise.

    Attributes
    ----------
    enable : In(latency)
        Bit s: stage s loads from stage s - 1; stage 0 loads ``x``.
    functions : In(3 * latency)
        Bits 3s to 3s + 2: the `Function` of the operand that stage s loads, while bit s of
        ``enable`` is set. Only bits 0 to 2, those of stage 0, are used. For codes that are not a
        `Function`, ``y`` is undefined.
    x : In(32)
        Operand (fp32).
    y : Out(32)
        Result (fp32), a register of the last stage.
    """

    latency = 4
    """Cycles from ``x`` to ``y``, one for each stage."""

    def __init__(self) -> None:
        super().__init__({
            "enable": In(self.latency), "functions": In(FUNCTION_BITS * self.latency),
            "x": In(32), "y": Out(32)})

    def variant(self, target: Target) -> "EarlyBias | None":
        """Return an equivalent component that suits the synthesis ``target`` better, or None."""
        return None if target is Target.GENERIC else EarlyBias()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._elaborate_reduce(m, platform)
        self._elaborate_interpolate(m)
        self._elaborate_multiply(m)
        self._elaborate_round(m)
        return m

    def _decode(self, m: Module) -> dict[Function, Signal]:
        """Decode the `Function` code of stage 0 into one signal for each function."""
        decoded = {}
        for function in Function:
            decoded[function] = Signal(name=f"is_{function.name.lower()}")
            m.d.comb += decoded[function].eq(self.functions[:FUNCTION_BITS] == function)
        return decoded

    def _register(self, m: Module, stage: int, name: str, word: Value) -> Signal:
        """Copy ``word`` into a register that loads with ``stage``; return the register."""
        register = Signal(word.shape(), name=f"stage{stage}_{name}", reset_less=True)
        with m.If(self.enable[stage]):
            m.d.sync += register.eq(word)
        return register

    def _elaborate_reduce(self, m: Module, platform: object) -> None:
        """Stage 0: find the operand's segment of the table, and its position in the segment."""
        exponent = Signal(8)
        fraction = Signal(FRACTION)
        m.d.comb += [exponent.eq(self.x[FRACTION:31]), fraction.eq(self.x[:FRACTION])]
        below_one, integer, fixed = self._fixed_point(m, exponent, fraction)

        # 2**x is 2**whole * 2**rest with a rest in [0, 1), so a negative x is rounded down.
        function = self._decode(m)
        exp2, tanh = function[Function.EXP2], function[Function.TANH]
        negate = Signal()
        rest = Signal(FIXED_BITS)
        m.d.comb += [
            negate.eq(exp2 & self.x[31]),
            rest.eq(Mux(negate, -fixed, fixed)),
        ]
        power = self.power(m, negate, integer, fixed)

        use_fixed = Signal()
        octave_pair = Signal()
        saturate = Signal()
        segment = Signal(SEGMENT_BITS)
        position = Signal(POSITION_BITS)
        m.d.comb += [
            use_fixed.eq(exp2 | (tanh & below_one)),
            octave_pair.eq(tanh & (exponent >= BIAS + 2)),
            # From 16 on, the table's last word, whose value is 1.
            saturate.eq(tanh & (exponent >= BIAS + 4)),
        ]
        with m.If(use_fixed):
            m.d.comb += [segment.eq(Cat(rest[POSITION_BITS:], tanh)),
                         position.eq(rest[:POSITION_BITS])]
        with m.Elif(octave_pair):
            m.d.comb += [segment.eq(Cat(fraction[17:], ~exponent[0]) | saturate.replicate(7)),
                         position.eq(Cat(C(0, 3), fraction[:17]))]
        with m.Else():
            m.d.comb += [segment.eq(fraction[16:]), position.eq(Cat(C(0, 4), fraction[:16]))]

        block = self._block(m, function, exponent, use_fixed)
        table = instantiate(m, platform, "table", "transcendental_table", TranscendentalTable)
        m.d.comb += [table.read.eq(self.enable[0]), table.address.eq(Cat(segment, block))]
        self._entry = table.data
        self._position = self._register(m, 0, "position", position)
        self._elaborate_scale(m, function, exponent, fraction, power)

    @staticmethod
    def power(m: Module, negate: Value, integer: Value, fixed: Value) -> Value:
        """Return the exponent of 2**x: x rounded down, plus the bias.

        ``integer`` and ``fixed`` are the integer part and the fraction of abs(x); ``negate`` is the
        sign of x.
        """
        whole = Signal(signed(9), name="whole")
        m.d.comb += whole.eq(Mux(negate, Cat(~integer, 1) + (fixed == 0), integer))
        return whole + BIAS

    def _fixed_point(self, m: Module, exponent: Signal,
                     fraction: Signal) -> tuple[Signal, Signal, Signal]:
        """Convert the operand's magnitude, if it is below 256, to fixed point.

        ``exponent`` and ``fraction`` are the operand's fields. Return three values: whether the
        magnitude is below 1; its integer part; its `FIXED_BITS` fraction bits. One
        shifter serves magnitudes below 1, which have only fraction bits, and larger ones.
        """
        below_one = Signal()
        distance = Signal(8)
        places = Signal(5)
        shifted = Signal(32)
        integer = Signal(8)
        fixed = Signal(FIXED_BITS)
        m.d.comb += [
            below_one.eq(exponent < BIAS),
            distance.eq(Mux(below_one, BIAS - 1, BIAS + 7) - exponent),
            places.eq(Mux(distance[5:].any(), 31, distance[:5])),
            shifted.eq(Cat(C(0, 8), fraction, C(1, 1)) >> places),
            integer.eq(Mux(below_one, 0, shifted[24:])),
            fixed.eq(Mux(below_one, shifted[32 - FIXED_BITS:],
                         Cat(C(0, FIXED_BITS - 24), shifted[:24]))),
        ]
        return below_one, integer, fixed

    def _block(self, m: Module, function: dict[Function, Signal], exponent: Signal,
               use_fixed: Signal) -> Signal:
        """Return the `Block` of the table that holds the operand's segment.

        ``function`` has the signals of `_decode`; ``exponent`` is the operand's field.
        ``use_fixed``: the table's address comes from the operand in fixed point, not from its
        significand.
        """
        block = Signal(BLOCK_BITS)
        with m.If(function[Function.RECIPROCAL]):
            m.d.comb += block.eq(Block.RECIPROCAL)
        with m.Elif(function[Function.LOG2]):
            m.d.comb += block.eq(Block.LOG2)
        with m.Elif(function[Function.RSQRT]):
            # The bias is odd, so the biased exponent of an even power of two is odd.
            m.d.comb += block.eq(Mux(exponent[0], Block.RSQRT_EVEN, Block.RSQRT_ODD))
        with m.Elif(use_fixed):
            m.d.comb += block.eq(Block.FIXED)
        with m.Elif(exponent == BIAS):
            m.d.comb += block.eq(Block.TANH_1)
        with m.Elif(exponent == BIAS + 1):
            m.d.comb += block.eq(Block.TANH_2)
        with m.Else():
            m.d.comb += block.eq(Block.TANH_4)
        return block

    def _elaborate_interpolate(self, m: Module) -> None:
        """Stage 1: evaluate the quadratic of the table entry."""
        c0 = Signal(C0_BITS)
        c1 = Signal(C1_BITS)
        c2 = Signal(signed(C2_BITS))
        falling = Signal()
        m.d.comb += Cat(c0, c1, c2, falling).eq(self._entry)

        root = Signal(SQUARE_BITS)
        square = Signal(2 * SQUARE_BITS)
        bend = Signal(signed(C2_BITS + SQUARE_BITS))
        slope = Signal(C1_BITS + POSITION_BITS)
        change = Signal(C1_BITS + POSITION_BITS + 1)
        start = Signal(TOTAL_BITS)
        total = Signal(TOTAL_BITS)
        value = Signal(VALUE_BITS)
        m.d.comb += [
            root.eq(self._position[POSITION_BITS - SQUARE_BITS:]),
            square.eq(root * root),
            bend.eq(c2 * square[SQUARE_BITS:]),
            slope.eq(c1 * self._position),
            # Never negative: on each segment, the functions are monotonic.
            change.eq(slope + (bend << 6)),
            # The constant is half a unit of the bits that are kept: it rounds them.
            start.eq(Cat(C(1 << 18, POSITION_BITS), c0)),
            total.eq(Mux(falling, start - change, start + change)),
            value.eq(total[TOTAL_BITS - VALUE_BITS:]),
        ]
        self._value = self._register(m, 1, "value", value)

    def _elaborate_scale(self, m: Module, function: dict[Function, Signal], exponent: Signal,
                         fraction: Signal, power: Value) -> None:
        """Stage 0: compute what does not depend on the table's value, while the table is read.

        These are the factor by which the table's value is later multiplied, the other terms of
        log2, and the result's exponent, sign and exceptions.
        ``function`` has the signals of `_decode`; ``exponent`` and ``fraction`` are the operand's
        fields; ``power`` is the exponent of 2**x.
        """
        log2, tanh = function[Function.LOG2], function[Function.TANH]
        log2_factor, log2_integer, log2_shift, log2_exponent, log2_below, log2_opposed = (
            self._log2_terms(m, exponent, fraction))

        ratio = Signal()
        terms = Signal(TERMS)
        m.d.comb += [
            ratio.eq(tanh & (exponent < BIAS)),
            terms.factor.eq(Mux(log2, log2_factor, Cat(Mux(ratio, fraction, 0), 1))),
            terms.integer.eq(Mux(log2, log2_integer, 0)),
        ]

        plain = Signal(signed(EXPONENT_BITS))
        with m.If(log2):
            m.d.comb += plain.eq(log2_exponent)
        with m.Elif(tanh):
            m.d.comb += plain.eq(Mux(ratio, exponent, BIAS))
        with m.Elif(function[Function.EXP2]):
            m.d.comb += plain.eq(power)
        with m.Elif(function[Function.RSQRT]):
            m.d.comb += plain.eq(BIAS + 64 - (exponent[1:] + exponent[0]))
        with m.Else():
            m.d.comb += plain.eq(2 * BIAS - exponent)
        sign, nan, above, below = self._exceptions(m, function, exponent, fraction)
        scale = Signal(SCALE)
        m.d.comb += [
            scale.shift.eq(Mux(log2, log2_shift, 0)),
            scale.opposed.eq(log2 & log2_opposed),
            scale.form.exponent.eq(Mux(above, FAR_ABOVE, Mux(below, FAR_BELOW, plain))),
            scale.form.sign.eq(Mux(log2 & ~above, log2_below, sign)),
            scale.form.nan.eq(nan),
        ]
        self._terms = self._register(m, 1, "terms", self._register(m, 0, "terms", terms))
        self._scale = self._register(m, 1, "scale", self._register(m, 0, "scale", scale))

    def _log2_terms(self, m: Module, exponent: Signal, fraction: Signal) -> tuple[Signal, ...]:
        """Terms of log2(x) = whole + f * value, where x = (1 + f) * 2**whole, f in [-1/4, 1/2).

        ``exponent`` and ``fraction`` are the operand's fields; value, log2(1 + f) / f, is what the
        table gives. If whole is 0, abs(f) is multiplied by the power of two that brings it to [1/2,
        1). Otherwise whole and the product f * value are divided by the least power of two above
        abs(whole). The returned exponent compensates for this scaling.

        Returns
        -------
        tuple of Signal
            Factor: abs(f) in units of 2**-24, normalised if whole is 0. Integer: abs(whole),
            normalised to 8 bits. Number of bits by which to shift the product to the right. Biased
            exponent. Whether the result is negative. Whether whole and f have opposite signs.
        """
        high = Signal()
        f = Signal(FRACTION + 1)
        whole = Signal(signed(9), name="log2_whole")
        magnitude = Signal(8)
        near = Signal()
        below = Signal(name="log2_below")
        opposed = Signal(name="log2_opposed")
        m.d.comb += [
            high.eq(fraction[-1]),
            f.eq(Mux(high, (1 << FRACTION) - fraction, fraction << 1)),
            whole.eq(exponent - BIAS + high),
            magnitude.eq(Mux(whole[-1], -whole, whole)),
            near.eq(whole == 0),
            below.eq(Mux(near, high, whole[-1])),
            opposed.eq(below ^ high),
        ]
        normal, zeros = _normalise(m, "f", f, 5)
        integer, spare = _normalise(m, "integer", magnitude, 3)
        factor = Signal(FRACTION + 1, name="log2_factor")
        bits = Signal(4)
        shift = Signal(4, name="log2_shift")
        scale = Signal(signed(EXPONENT_BITS), name="log2_scale")
        m.d.comb += [
            factor.eq(Mux(near, normal, f)),
            bits.eq(Mux(near, 0, 8 - spare)),
            # The unit of f is half of the unit of other factors.
            shift.eq(bits + 1),
            scale.eq(Mux(near, BIAS - zeros, BIAS + bits)),
        ]
        return factor, integer, shift, scale, below, opposed

    def _exceptions(self, m: Module, function: dict[Function, Signal], exponent: Signal,
                    fraction: Signal) -> tuple[Signal, Signal, Signal, Signal]:
        """Find the results that do not depend on the table.

        ``function`` has the signals of `_decode`; ``exponent`` and ``fraction`` are the operand's
        fields. Return four bits: the sign of such a result, and whether it is NaN, infinity, zero.
        """
        exp2, log2, tanh = (function[name] for name in (Function.EXP2, Function.LOG2,
                                                        Function.TANH))
        reciprocal, rsqrt = function[Function.RECIPROCAL], function[Function.RSQRT]
        negative = Signal()
        inverse = Signal()
        zero = Signal()
        top = Signal()
        large = Signal()
        one = Signal()
        m.d.comb += [
            negative.eq(self.x[31]),
            inverse.eq(reciprocal | rsqrt),
            zero.eq(exponent == 0),
            top.eq(exponent == SPECIAL),
            large.eq(exponent >= BIAS + 8),
            one.eq((exponent == BIAS) & (fraction == 0)),
        ]
        sign = Signal(name="exception_sign")
        nan = Signal()
        above = Signal()
        below = Signal()
        m.d.comb += [
            sign.eq(((reciprocal | tanh) & negative) | (log2 & zero)),
            nan.eq((top & fraction.any()) | ((rsqrt | log2) & negative & ~zero)),
            above.eq((zero & (inverse | log2)) | (exp2 & large & ~negative) | (log2 & top)),
            below.eq((zero & tanh) | (exp2 & large & negative) | (inverse & top) | (log2 & one)),
        ]
        return sign, nan, above, below

    def _elaborate_multiply(self, m: Module) -> None:
        """Stage 2: multiply the table's value by the factor, and add the integer part for log2."""
        product = Signal(FRACTION + 1 + VALUE_BITS)
        moved = Signal(WORD_BITS + 1)
        integer = Signal(WORD_BITS - 1, name="aligned_integer")
        word = Signal(WORD_BITS)
        m.d.comb += [
            product.eq(self._terms.factor * self._value),
            moved.eq(product[20:] >> self._scale.shift),
            integer.eq(Cat(C(0, FRACTION), self._terms.integer)),
            word.eq(Mux(self._scale.opposed, integer - moved, integer + moved)),
        ]
        self._word = self._register(m, 2, "word", word)
        self._form = self._register(m, 2, "form", self._scale.form)

    def _elaborate_round(self, m: Module) -> None:
        """Stage 3: normalise the result, a number in [1/8, 2), and round it to fp32."""
        normal, zeros = _normalise(m, "word", self._word, 2)
        tail = WORD_BITS - 1 - FRACTION
        up = Signal()
        rounded = Signal(FRACTION + 1)
        exponent = Signal(signed(EXPONENT_BITS), name="rounded_exponent")
        over = Signal()
        under = Signal()
        y = Signal(32, name="result")
        m.d.comb += [
            up.eq(normal[tail - 1] & (normal[tail] | normal[:tail - 1].any())),
            rounded.eq(normal[tail:-1] + up),
            exponent.eq(self._form.exponent - zeros + rounded[-1]),
            over.eq(exponent >= SPECIAL),
            under.eq(exponent <= 0),
            y.eq(Cat(rounded[:FRACTION], exponent[:8], self._form.sign)),
        ]
        special = Signal(32)
        result = Signal(32, name="y_next")
        m.d.comb += [
            special.eq(Cat(C(0, FRACTION), over.replicate(8), self._form.sign)),
            result.eq(Mux(self._form.nan, F32_NAN, Mux(over | under, special, y))),
        ]
        m.d.comb += self.y.eq(self._register(m, 3, "result", result))


class EarlyBias(Transcendental):
    """`Transcendental` that computes both candidates for the exponent of 2**x, then chooses one.

    Both include the bias already, so the longest path of stage 0 has one addition less.
    """

    @staticmethod
    def power(m: Module, negate: Value, integer: Value, fixed: Value) -> Value:
        """Return the exponent of 2**x: x rounded down, plus the bias.

        ``integer`` and ``fixed`` are the integer part and the fraction of abs(x); ``negate`` is the
        sign of x.
        """
        whole = Signal(signed(9), name="whole")
        m.d.comb += whole.eq(Mux(negate, Cat(~integer, 1), integer))
        return Mux(negate & (fixed == 0), whole + (BIAS + 1), whole + BIAS)


def _normalise(m: Module, name: str, word: Signal, levels: int) -> tuple[Signal, Signal]:
    """Shift ``word`` left until its highest bit is set; return the result and the distance in bits.

    The distance is less than 2**levels, even if the word is zero. ``name`` begins the names of the
    signals.
    """
    zeros = Signal(levels, name=f"{name}_zeros")
    for level in reversed(range(levels)):
        places = 1 << level
        shifted = Signal(len(word), name=f"{name}_shifted{places}")
        m.d.comb += zeros[level].eq(~word[-places:].any())
        m.d.comb += shifted.eq(Mux(zeros[level], word << places, word))
        word = shifted
    return word, zeros
