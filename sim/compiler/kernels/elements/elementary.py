"""Exponential, logarithm, power and related functions, from the vector unit's 2**x and log2."""

from typing import Any

from sim.compiler.kernels.elements.expression import Elements, Source
from sim.compiler.kernels.elements.floats import HIGH, MAGNITUDE, SIGN

__all__ = ["cube_root", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic",
           "power", "rough_exponential", "rough_logistic"]

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LN_2_HIGH = 0.693145751953125
"""ln 2 rounded to 16 significant bits: its product with a small integer is exact."""
LN_2_LOW = LN_2 - LN_2_HIGH
ROUND = 1.5 * 2.0**23
"""Adding and then subtracting this constant rounds a number below 2**22 in size to an integer."""


def exponential(e: Elements, x: Source, *, negated: bool = False) -> Any:
    """e**x, or e**-x if ``negated``.

    Range reduction of Cody and Waite: x = n ln 2 + r, and e**x = 2**n * 2**(r / ln 2).
    """
    f = -1.0 if negated else 1.0
    x = e("fmin", x, 104.0) if negated else e("fmax", x, -104.0)
    whole = e("fsub", e("fadd", e("fmul", x, f * LOG2_E), ROUND), ROUND)
    whole = e("fmin", whole, 127.0)  # so that the factor is finite if the result is
    rest = e("fsub", x, e("fmul", whole, f * LN_2_HIGH))
    rest = e("fsub", rest, e("fmul", whole, f * LN_2_LOW))
    return e("fmul", e("exp2", e("fmul", rest, f * LOG2_E)), e("exp2", whole))


def rough_exponential(e: Elements, x: Source) -> Any:
    """e**x, accurate enough for bf16: rounding x / ln 2 causes a relative error up to 2**-17."""
    return e("exp2", e("fmul", x, LOG2_E))


def rough_logistic(e: Elements, x: Source) -> Any:
    """1 / (1 + e**-x), accurate enough for a bf16 result."""
    return e("reciprocal", e("fadd", e("exp2", e("fmul", x, -LOG2_E)), 1.0))


def exponential_minus_one(e: Elements, x: Source) -> Any:
    """e**x - 1; near zero, computed as 2 t / (1 - t) with t = tanh(x / 2)."""
    t = e("tanh", e("fmul", x, 0.5))
    near = e("fmul", e("fadd", t, t), e("reciprocal", e("fsub", 1.0, t)))
    far = e("fsub", exponential(e, x), 1.0)
    result = e.select(e("flt", e("fabs", x), 0.5), near, far)
    return e.select(e("flt", e("fabs", x), 2.0**-25), e("fmul", x, 1.0), result)


def log(e: Elements, x: Source) -> Any:
    """The natural logarithm."""
    return e("fmul", e("log2", x), LN_2)


def log_plus_one(e: Elements, x: Source) -> Any:
    """log(1 + x) = log(u) + error / u, where u is 1 + x rounded, and error is 1 + x - u."""
    u = e("fadd", x, 1.0)
    error = e("fmul", e("fsub", x, e("fsub", u, 1.0)), e("reciprocal", u))
    logarithm = log(e, u)
    inner = e.mask("mand", e("fgt", u, 0.0), e("flt", u, float("inf")))
    result = e.select(inner, e("fadd", logarithm, error), logarithm)
    # For tiny x, log(1 + x) is x; this also keeps the sign of zero.
    return e.select(e("flt", e("fabs", x), 2.0**-25), e("fmul", x, 1.0), result)


def logistic(e: Elements, x: Source) -> Any:
    """1 / (1 + e**-x)."""
    return e("reciprocal", e("fadd", exponential(e, x, negated=True), 1.0))


def cube_root(e: Elements, x: Source) -> Any:
    """The cube root: 2**(log2(x) / 3), followed by one step of Newton's method."""
    magnitude = e("and", x, MAGNITUDE)
    small = e("flt", magnitude, 2.0**-60)
    magnitude = e("fmul", magnitude, e.select(small, 2.0**72, 2.0**-9))
    y = e("exp2", e("fmul", e("log2", magnitude), 1 / 3))
    square = e("fmul", y, y)
    step = e("fmul", e("fsub", magnitude, e("fmul", square, y)),
             e("reciprocal", e("fmul", square, 3.0)))
    inside = e("ltu", e("sub", magnitude, 0x00800000), 0x7F000000)
    y = e.select(inside, e("fadd", y, step), magnitude)
    y = e("fmul", y, e.select(small, 2.0**-24, 2.0**3))
    return e("or", y, e("and", x, SIGN))



# log2(m) = 2 / ln 2 * s * (1 + s**2 / 3 + ...), s = (m - 1) / (m + 1), |s| < 0.1716.
_SERIES = tuple(3 / (2 * k + 5) for k in range(7))
_TWO_THIRDS_LOG2_E = 2 / 3 * LOG2_E
_CP_HIGH = 0.961669921875
"""The upper 12 significant bits of 2 / (3 ln 2); ``_CP_LOW`` is the rest."""
_CP_LOW = _TWO_THIRDS_LOG2_E - _CP_HIGH


def _log2_in_two_parts(e: Elements, x: Source) -> tuple[Any, Any]:
    """log2 of a positive normal number in two parts, with about 36 correct bits.

    The first part has 12 significant bits. The method is that of powf in fdlibm (Sun Microsystems,
    1993), with one interval, sqrt(1/2) to sqrt(2), instead of two.
    """
    shifted = e("sub", x, 0x3F3504F3)
    exponent = e("sar", shifted, 23)
    m = e("add", e("and", shifted, 0x007FFFFF), 0x3F3504F3)
    u, v = e("fsub", m, 1.0), e("fadd", m, 1.0)
    inverse = e("reciprocal", v)
    s = e("fmul", u, inverse)
    s_high = e("and", s, HIGH)
    v_high = e("and", v, HIGH)
    v_low = e("fsub", m, e("fsub", v_high, 1.0))
    rest = e("fsub", e("fsub", u, e("fmul", s_high, v_high)), e("fmul", s_high, v_low))
    s_low = e("fmul", inverse, rest)
    s = e("fadd", s_high, s_low)
    square = e("fmul", s, s)
    series: Source = _SERIES[-1]
    for coefficient in _SERIES[-2::-1]:
        series = e("fadd", e("fmul", series, square), coefficient)
    r = e("fmul", e("fmul", square, square), series)
    r = e("fadd", r, e("fmul", s_low, e("fadd", s_high, s)))
    square = e("fmul", s_high, s_high)
    t_high = e("and", e("fadd", e("fadd", square, 3.0), r), HIGH)
    t_low = e("fsub", r, e("fsub", e("fsub", t_high, 3.0), square))
    u = e("fmul", s_high, t_high)
    v = e("fadd", e("fmul", s_low, t_high), e("fmul", t_low, s))
    p_high = e("and", e("fadd", u, v), HIGH)
    p_low = e("fsub", v, e("fsub", p_high, u))
    z_high = e("fmul", p_high, _CP_HIGH)
    z_low = e("fadd", e("fmul", p_high, _CP_LOW), e("fmul", p_low, _TWO_THIRDS_LOG2_E))
    whole = e("i2f", exponent)
    high = e("and", e("fadd", e("fadd", z_high, z_low), whole), HIGH)
    return high, e("fsub", z_low, e("fsub", e("fsub", high, whole), z_high))


def power(e: Elements, x: Source, y: Source) -> Any:
    """x**y = 2**(y log2 |x|), with the logarithm in two parts and the special cases of IEEE 754."""
    infinity = float("inf")
    magnitude = e("and", x, MAGNITUDE)
    high, low = _log2_in_two_parts(e, magnitude)
    # For 0, infinity and NaN, log2 alone is exact; the two parts are meaningless.
    regular = e("ltu", e("sub", magnitude, 0x00800000), 0x7F000000)
    bounded = e("fmin", e("fmax", y, -(2.0**100)), 2.0**100)
    y_high = e("and", bounded, HIGH)
    product = e.select(regular, e("fmul", y_high, high), e("fmul", y, e("log2", magnitude)))
    product_low = e("fadd", e("fmul", e("fsub", bounded, y_high), high), e("fmul", bounded, low))
    total = e("fmin", e("fmax", e("fadd", product, product_low), -200.0), 200.0)
    product = e("fmin", e("fmax", product, -200.0), 200.0)
    product_low = e("fmin", e("fmax", product_low, -1.0), 1.0)
    whole = e("fmin", e("fsub", e("fadd", total, ROUND), ROUND), 127.0)
    rest = e("fadd", e("fsub", product, whole), product_low)
    result = e("fmul", e("exp2", rest), e("exp2", whole))
    # If x is negative, y must be an integer; the result is negative if y is odd.
    y_magnitude = e("and", y, MAGNITUDE)
    integral = e("i2f", e("f2i", y))
    is_large = e("ge", y_magnitude, 0x4B000000)
    is_integer = e.mask("mor", is_large, e("feq", integral, y))
    odd = e("shl", e("f2i", y), 31)
    odd = e.select(e("ge", y_magnitude, 0x4B800000), 0, odd)
    odd = e.select(is_integer, odd, 0)
    result = e("or", result, e("and", odd, x))
    bad = e.mask("mandn", e("flt", x, 0.0), is_integer)
    bad = e.mask("mandn", bad, e("feq", magnitude, infinity))
    result = e.select(bad, float("nan"), result)
    # 1**y and x**0 are 1, even for NaN; so is (-1)**infinity.
    one = e.mask("mor", e("feq", x, 1.0), e("feq", y, 0.0))
    one = e.mask("mor", one, e.mask("mand", e("feq", magnitude, 1.0),
                                    e("feq", y_magnitude, infinity)))
    return e.select(one, 1.0, result)
