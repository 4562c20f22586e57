"""Arithmetic that the vector unit lacks, on fp32 numbers: division, roots, rounding.

The vector unit has no fused multiply-add. Where a residual must be exact, operands are split into
parts of 12 significant bits, whose products are exact (T. J. Dekker, "A floating-point technique
for extending the available precision", 1971).
"""

from typing import Any

from sim.compiler.kernels.elements.expression import Elements, Source

__all__ = ["ceil", "divide", "floor", "rough_quotient", "round_nearest_afz", "round_nearest_even",
           "sign", "split", "square_root"]

SIGN = 0x80000000
MAGNITUDE = 0x7FFFFFFF
EXPONENT = 0x7F800000
HIGH = 0xFFFFF000
"""The bits of an fp32 number that hold its sign, exponent and upper 12 significant bits."""


def split(e: Elements, x: Source) -> tuple[Any, Any]:
    """Split x into two parts of at most 12 significant bits, whose sum is exactly x."""
    high = e("and", x, HIGH)
    return high, e("fsub", x, high)


def divide(e: Elements, a: Source, b: Source) -> Any:
    """a / b.

    Operands are scaled by a power of two so that the larger one is in [4, 8). The quotient computed
    with the reciprocal is truncated to 12 significant bits, so that its residual is exact. The
    residual divided by b gives the remaining bits.
    """
    if a == 1.0 or a == 0x3F800000:
        return e("reciprocal", b)
    magnitude = e("fmax", e("fmax", e("and", a, MAGNITUDE), 2.0**-100), e("and", b, MAGNITUDE))
    scale = e("sub", 0x80000000, e("and", magnitude, EXPONENT))
    a, b = e("fmul", a, scale), e("fmul", b, scale)
    inverse = e("reciprocal", b)
    rough = e("fmul", a, inverse)
    high = e("and", rough, HIGH)
    b_high, b_low = split(e, b)
    rest = e("fsub", e("fsub", a, e("fmul", high, b_high)), e("fmul", high, b_low))
    fine = e("fadd", high, e("fmul", rest, inverse))
    # For a quotient outside of 2**-90 to 2**100, a product of parts may be flushed to zero.
    ordinary = e("ltu", e("sub", e("and", rough, MAGNITUDE), 0x12800000), 0x71800000 - 0x12800000)
    return e.select(ordinary, fine, rough)


def rough_quotient(e: Elements, a: Source, b: Source) -> Any:
    """a / b within 3 ulp, as a times the reciprocal of b: accurate enough for a bf16 result."""
    scale = e.select(e("ge", e("and", b, MAGNITUDE), 2.0**64), 2.0**-64, 1.0)
    return e("fmul", e("fmul", a, scale), e("reciprocal", e("fmul", b, scale)))


def square_root(e: Elements, x: Source) -> Any:
    """The square root.

    Let r = rsqrt(x), which is approximate, and let s be x * r truncated to 12 significant bits.
    The residual d = x - s * s is exact. With t = d * r / 2, the root is s + t + t * t * r / 2.
    """
    small = e("flt", x, 2.0**-64)
    x = e.select(small, e("fmul", x, 2.0**64), x)
    inverse = e("rsqrt", x)
    high = e("and", e("fmul", x, inverse), HIGH)
    half = e("fmul", inverse, 0.5)
    step = e("fmul", e("fsub", x, e("fmul", high, high)), half)
    step = e("fadd", step, e("fmul", e("fmul", step, step), half))
    root = e("fadd", high, step)
    fixed = e("mor", e("feq", x, 0.0), e("feq", x, float("inf")))
    root = e.select(fixed, x, root)
    return e.select(small, e("fmul", root, 2.0**-32), root)


def _large(e: Elements, x: Source) -> Any:
    """Return the mask of numbers that need no rounding: |x| >= 2**23, infinities and NaN."""
    return e("ge", e("and", x, MAGNITUDE), 0x4B000000)


def floor(e: Elements, x: Source) -> Any:
    """Round to an integer toward minus infinity."""
    whole = e("i2f", e("f2i", x))
    whole = e.select(e("fgt", whole, x), e("fsub", whole, 1.0), whole)
    return e.select(_large(e, x), x, e("or", whole, e("and", x, SIGN)))


def ceil(e: Elements, x: Source) -> Any:
    """Round to an integer toward plus infinity."""
    whole = e("i2f", e("f2i", x))
    whole = e.select(e("flt", whole, x), e("fadd", whole, 1.0), whole)
    return e.select(_large(e, x), x, e("or", whole, e("and", x, SIGN)))


def round_nearest_even(e: Elements, x: Source) -> Any:
    """Round to the nearest integer; ties go to the even one."""
    negative = e("and", x, SIGN)
    shift = e("or", negative, 2.0**23)
    whole = e("or", e("fsub", e("fadd", x, shift), shift), negative)
    return e.select(_large(e, x), x, whole)


def round_nearest_afz(e: Elements, x: Source) -> Any:
    """Round to the nearest integer; ties go away from zero."""
    negative = e("and", x, SIGN)
    whole = e("i2f", e("f2i", x))
    away = e("fge", e("fabs", e("fsub", x, whole)), 0.5)
    whole = e.select(away, e("fadd", whole, e("or", negative, 1.0)), whole)
    return e.select(_large(e, x), x, e("or", whole, negative))


def sign(e: Elements, x: Source) -> Any:
    """The sign of a number: -1 or 1; zeros and NaN stay as they are."""
    return e("fmin", e("fmax", e("fmul", x, 2.0**127), -1.0), 1.0)


