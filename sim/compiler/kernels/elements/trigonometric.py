"""Sine, cosine, tangent, and the angle of a point."""

from collections.abc import Sequence
from typing import Any

from sim.compiler.kernels.elements.expression import Elements, Source
from sim.compiler.kernels.elements.floats import EXPONENT, MAGNITUDE, SIGN, divide

__all__ = ["atan2", "cosine", "sine", "tangent"]

_TWO_OVER_PI = (0x00000000, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041,
                0xFE5163AB)
"""A word of zeros, then the fraction bits of 2/pi."""
_TWO_PI = 6.283185307179586

# Minimax polynomials on |r| <= pi/4: sinf.c of Cephes (S. L. Moshier).
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def _polynomial(e: Elements, x: Source, coefficients: Sequence[float]) -> Any:
    """Evaluate a polynomial by Horner's rule; the highest coefficient is first."""
    result: Source = coefficients[0]
    for coefficient in coefficients[1:]:
        result = e("fadd", e("fmul", x, result), coefficient)
    return result


def _window(e: Elements, exponent: Source) -> list[Any]:
    """Return 72 bits of 2/pi as six fp32 numbers of 12 bits each, the most significant first.

    The most significant of these bits is the first bit of 2/pi that affects the reduction of a
    number with the exponent field ``exponent``.
    """
    start = e("sub", exponent, 120)
    words: list[Any] = list(_TWO_OVER_PI)
    for step, keep in ((4, 6), (2, 5), (1, 4)):
        where = e("ne", e("and", start, 32 * step), 0)
        words = [_choose(e, where, words[i + step] if i + step < len(words) else 0, words[i])
                 for i in range(keep)]
    shift = e("and", start, 31)
    back = e("sub", 32, shift)
    v = [e("or", e("shl", words[i], shift), e("shr", words[i + 1], back)) for i in range(3)]
    pieces = [e("shr", v[0], 20), e("shr", v[0], 8), e("or", e("shl", v[0], 4), e("shr", v[1], 28)),
              e("shr", v[1], 16), e("shr", v[1], 4),
              e("or", e("shl", v[1], 8), e("shr", v[2], 24))]
    return [e("i2f", piece if i == 0 else e("and", piece, 0xFFF))
            for i, piece in enumerate(pieces)]


def _choose(e: Elements, where: Source, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and a == b:
        return a
    return e.select(where, a, b)


def _reduce(e: Elements, x: Source) -> tuple[Any, Any]:
    """Return the quadrant n, modulo 4, and |x| - n pi/2 in [-pi/4, pi/4].

    The method is that of M. Payne and R. Hanek, "Radian reduction for trigonometric functions",
    1983. Only those bits of the product |x| 2/pi are computed whose weight is below 4. They are
    computed in fixed point, as sums of products of 12-bit numbers.
    """
    magnitude = e("and", x, MAGNITUDE)
    w = _window(e, e("shr", magnitude, 23))
    significand = e("or", e("and", x, 0x007FFFFF), 0x00800000)
    high, low = e("i2f", e("shr", significand, 12)), e("i2f", e("and", significand, 0xFFF))
    # Column k has the weight 2**(-12 k) of a turn.
    columns = [e("add", e("f2i", e("fmul", high, w[k])), e("f2i", e("fmul", low, w[k - 1])))
               for k in range(1, 6)]
    turn = e("add", e("shl", columns[0], 20), e("shl", columns[1], 8))
    turn = e("add", turn, e("add", e("shr", columns[2], 4), e("shr", columns[3], 16)))
    below = e("add", e("shl", e("and", columns[2], 0xF), 20),
              e("shl", e("and", columns[3], 0xFFFF), 8))
    below = e("add", below, e("shr", columns[4], 4))
    turn = e("add", turn, e("shr", below, 24))
    quadrant = e("shr", e("add", turn, 1 << 29), 30)
    rest = e("sub", turn, e("shl", quadrant, 30))
    angle = e("fadd", e("fmul", e("i2f", rest), _TWO_PI * 2.0**-32),
              e("fmul", e("i2f", e("and", below, 0xFFFFFF)), _TWO_PI * 2.0**-56))
    near = e("flt", magnitude, 0.78515625)
    angle = e.select(near, magnitude, angle)
    quadrant = e.select(near, 0, quadrant)
    # Infinity and NaN have no angle.
    return quadrant, e.select(e("ge", magnitude, EXPONENT), float("nan"), angle)


def _parts(e: Elements, r: Source) -> tuple[Any, Any]:
    """Sine and cosine of r, for |r| <= pi/4."""
    square = e("fmul", r, r)
    sine = e("fadd", e("fmul", e("fmul", square, r), _polynomial(e, square, _SINE)), r)
    cosine = e("fmul", e("fmul", square, square), _polynomial(e, square, _COSINE))
    cosine = e("fadd", e("fsub", cosine, e("fmul", square, 0.5)), 1.0)
    return sine, cosine


def sine(e: Elements, x: Source) -> Any:
    """The sine of any fp32 number."""
    quadrant, r = _reduce(e, x)
    s, c = _parts(e, r)
    value = e.select(e("ne", e("and", quadrant, 1), 0), c, s)
    negative = e("xor", e("shl", e("and", quadrant, 2), 30), e("and", x, SIGN))
    return _signed(e, value, negative)


def cosine(e: Elements, x: Source) -> Any:
    """The cosine of any fp32 number."""
    quadrant, r = _reduce(e, x)
    s, c = _parts(e, r)
    value = e.select(e("ne", e("and", quadrant, 1), 0), s, c)
    return _signed(e, value, e("shl", e("and", e("add", quadrant, 1), 2), 30))


def tangent(e: Elements, x: Source) -> Any:
    """The tangent of any fp32 number: the quotient of sine and cosine."""
    quadrant, r = _reduce(e, x)
    s, c = _parts(e, r)
    odd = e("ne", e("and", quadrant, 1), 0)
    quotient = divide(e, e.select(odd, c, s), e.select(odd, s, c))
    return _signed(e, quotient, e("xor", e("shl", quadrant, 31), e("and", x, SIGN)))


def _signed(e: Elements, x: Source, negative: Source) -> Any:
    """Return x with its sign changed where the sign bit of ``negative`` is set."""
    return e("xor", x, negative)


# atan(t) / t on t <= tan(pi/8) as a polynomial in t**2: atanf.c of Cephes (S. L. Moshier).
_ARC_TANGENT = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_PI = 3.141592653589793


def atan2(e: Elements, y: Source, x: Source) -> Any:
    """The angle of the point (x, y), from -pi to pi."""
    a, b = e("and", y, MAGNITUDE), e("and", x, MAGNITUDE)
    low, high = e("fmin", a, b), e("fmax", a, b)
    t = divide(e, low, high)
    # If both numbers are infinite, t is 1; if both are zero, t is 0.
    t = e.select(e("feq", low, float("inf")), 1.0, t)
    t = e.select(e("feq", high, 0.0), 0.0, t)
    steep = e("fgt", t, 0.4142135623730950)
    # atan(t) = pi/4 + atan((t - 1) / (t + 1))
    u = e.select(steep, divide(e, e("fsub", t, 1.0), e("fadd", t, 1.0)), t)
    square = e("fmul", u, u)
    angle = e("fadd", e("fmul", e("fmul", square, u), _polynomial(e, square, _ARC_TANGENT)), u)
    angle = e.select(steep, e("fadd", angle, _PI / 4), angle)
    angle = e.select(e("fgt", a, b), e("fsub", _PI / 2, angle), angle)
    angle = e.select(e("lt", x, 0), e("fsub", _PI, angle), angle)
    return e("or", angle, e("and", y, SIGN))
