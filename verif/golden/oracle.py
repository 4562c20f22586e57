"""The array's arithmetic on single bit patterns, in exact rational numbers.

It is written from the text of `docs/numerics.md` alone, as an independent reference for the golden
model. It is slow and plain, and uses no floating-point numbers.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

__all__ = ["BF16", "F32", "Format", "Sum", "add", "column", "convert", "mac", "multiply", "widen"]


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with 8 exponent bits and ``precision`` significant bits."""

    precision: int

    @property
    def fraction_bits(self) -> int:
        """Number of bits of the fraction field."""
        return self.precision - 1

    @property
    def nan(self) -> int:
        """Pattern of every NaN result."""
        return (0xFF << self.fraction_bits) | (1 << (self.fraction_bits - 1))

    def zero(self, sign: int) -> int:
        """Return the zero with this sign, 0 or 1."""
        return sign << (self.fraction_bits + 8)

    def infinity(self, sign: int) -> int:
        """Return the infinity with this sign, 0 or 1."""
        return self.zero(sign) | (0xFF << self.fraction_bits)

    def read(self, pattern: int) -> tuple[str, int, Fraction]:
        """Return the kind (zero, finite, infinite or nan), sign and magnitude of a pattern.

        A subnormal number is a zero. The magnitude is 0 unless the kind is finite.
        """
        sign = pattern >> (self.fraction_bits + 8)
        exponent = (pattern >> self.fraction_bits) & 0xFF
        fraction = pattern & ((1 << self.fraction_bits) - 1)
        if exponent == 0xFF:
            return ("nan" if fraction else "infinite"), sign, Fraction(0)
        if exponent == 0:
            return "zero", sign, Fraction(0)
        significand = Fraction(fraction + (1 << self.fraction_bits), 1 << self.fraction_bits)
        return "finite", sign, significand * _power(exponent - 127)

    def deliver(self, value: Fraction) -> tuple[int, str]:
        """Round an exact nonzero value; return its pattern, and how it was rounded.

        The second result is `exact`, `down` or `up` (in magnitude), `tie down` or `tie up`. If the
        result is too large or too small, ` infinity` or ` flush` follows.
        """
        sign, magnitude = int(value < 0), abs(value)
        exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if magnitude < _power(exponent):
            exponent -= 1
        units = magnitude / _power(exponent - self.fraction_bits)
        # The fraction that rounding removes is rest / units.denominator.
        count, rest = divmod(units.numerator, units.denominator)
        if rest == 0:
            how = "exact"
        elif 2 * rest == units.denominator:
            how = "tie up" if count % 2 else "tie down"
        else:
            how = "up" if 2 * rest > units.denominator else "down"
        if how.endswith("up"):
            count += 1
        rounded = count * _power(exponent - self.fraction_bits)
        if rounded >= _power(128):
            return self.infinity(sign), how + " infinity"
        if rounded < _power(-126):
            return self.zero(sign), how + " flush"
        if count == 1 << self.precision:
            count, exponent = count // 2, exponent + 1
        return (self.zero(sign) | ((exponent + 127) << self.fraction_bits)
                | (count - (1 << self.fraction_bits))), how


@cache
def _power(exponent: int) -> Fraction:
    """Return 2 ** ``exponent``. Calls are cached, because fractions are slow."""
    return Fraction(2) ** exponent


BF16 = Format(8)
F32 = Format(24)


def convert(pattern: int) -> int:
    """Convert an fp32 pattern to a bf16 pattern."""
    kind, sign, magnitude = F32.read(pattern)
    if kind == "nan":
        return BF16.nan
    if kind == "infinite":
        return BF16.infinity(sign)
    if kind == "zero":
        return BF16.zero(sign)
    return BF16.deliver(-magnitude if sign else magnitude)[0]


def widen(pattern: int) -> int:
    """Convert a bf16 pattern to an fp32 pattern."""
    kind, sign, magnitude = BF16.read(pattern)
    if kind == "nan":
        return F32.nan
    if kind == "infinite":
        return F32.infinity(sign)
    if kind == "zero":
        return F32.zero(sign)
    return F32.deliver(-magnitude if sign else magnitude)[0]


@cache
def multiply(x: int, w: int) -> tuple[int, str]:
    """Multiply two bf16 patterns; return the fp32 pattern, and how it was obtained.

    The second result is a description that `Format.deliver` returns, or `nan operand`, `0 * inf`,
    `infinite` or `zero`.
    """
    kind_x, sign_x, magnitude_x = BF16.read(x)
    kind_w, sign_w, magnitude_w = BF16.read(w)
    kinds = {kind_x, kind_w}
    sign = sign_x ^ sign_w
    if "nan" in kinds:
        return F32.nan, "nan operand"
    if kinds == {"zero", "infinite"}:
        return F32.nan, "0 * inf"
    if "infinite" in kinds:
        return F32.infinity(sign), "infinite"
    if "zero" in kinds:
        return F32.zero(sign), "zero"
    return F32.deliver(magnitude_x * magnitude_w * (-1) ** sign)


@dataclass(frozen=True)
class Sum:
    """The fp32 pattern of a sum, and how it was obtained.

    ``how`` is a description that `Format.deliver` returns, or `nan operand`, `inf - inf`,
    `infinite`, `zeros` or `cancelled`.
    """

    pattern: int
    how: str


def add(a: int, b: int) -> Sum:
    """Add two fp32 patterns."""
    kind_a, sign_a, magnitude_a = F32.read(a)
    kind_b, sign_b, magnitude_b = F32.read(b)
    if "nan" in (kind_a, kind_b):
        return Sum(F32.nan, "nan operand")
    if kind_a == kind_b == "infinite" and sign_a != sign_b:
        return Sum(F32.nan, "inf - inf")
    if kind_a == "infinite":
        return Sum(F32.infinity(sign_a), "infinite")
    if kind_b == "infinite":
        return Sum(F32.infinity(sign_b), "infinite")
    if kind_a == kind_b == "zero":
        return Sum(F32.zero(sign_a & sign_b), "zeros")
    total = magnitude_a * (-1) ** sign_a + magnitude_b * (-1) ** sign_b
    if total == 0:
        return Sum(F32.zero(0), "cancelled")
    return Sum(*F32.deliver(total))


def mac(acc: int, x: int, w: int) -> Sum:
    """Compute one cell's step, acc + x * w, for an fp32 pattern and two bf16 patterns."""
    return add(acc, multiply(x, w)[0])


def column(x: list[int], w: list[int]) -> int:
    """Sum the products of bf16 patterns as a column of the array does; return an fp32 pattern."""
    total = F32.zero(0)
    for one, other in zip(x, w, strict=True):
        total = mac(total, one, other).pattern
    return total
