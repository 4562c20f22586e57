"""Functions of the transcendental unit, and the coefficients of its tables.

Each table entry approximates a function on one segment of its reduced argument by a quadratic,

    value = c0 ± t * (c1 + t * c2),    0 <= t < 1 across the segment,

where the sign is chosen such that c1 is not negative.

The hardware and the golden model use the same integers. They are computed here in decimal
arithmetic, which is correctly rounded and therefore identical on every machine.
`docs/transcendentals.md` derives the segments.
"""

import decimal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import cache

__all__ = ["BLOCK_BITS", "C0_BITS", "C0_FRACTION", "C1_BITS", "C1_FRACTION", "C2_BITS",
           "C2_FRACTION", "ENTRIES", "SEGMENT_BITS", "Block", "Coefficients", "Function",
           "coefficients", "words"]


class Function(IntEnum):
    """Functions of the transcendental unit; the values are their three-bit codes in hardware."""

    RECIPROCAL = 0  # 1 / x
    RSQRT = 1       # 1 / sqrt(x)
    EXP2 = 2        # 2 ** x
    LOG2 = 3        # log2(x)
    TANH = 4        # tanh(x)


class Block(IntEnum):
    """Blocks of the coefficient table, each of 2 ** SEGMENT_BITS segments.

    The comments name the functions; ``m`` is the operand's significand, in [1, 2). If two functions
    share a block, each has half of the segments, which are twice as wide.
    """

    RECIPROCAL = 0  # 1 / m
    LOG2 = 1        # log2(1 + f) / f with f = m - 1 below 1.5, else f = m / 2 - 1
    RSQRT_EVEN = 2  # 1 / sqrt(m)
    RSQRT_ODD = 3   # 1 / sqrt(2 m)
    FIXED = 4       # 2 ** x on [0, 1), then tanh(x) / x on [0, 1): half a block each
    TANH_1 = 5      # tanh(m)
    TANH_2 = 6      # tanh(2 m)
    TANH_4 = 7      # tanh(4 m), then tanh(8 m): half a block each


BLOCK_BITS = 3
SEGMENT_BITS = 7
ENTRIES = 1 << (BLOCK_BITS + SEGMENT_BITS)
"""Number of words of the table. An address is a `Block`, followed by the segment in the low bits.
"""

C0_BITS, C0_FRACTION = 28, 27
C1_BITS, C1_FRACTION = 22, 27
C2_BITS, C2_FRACTION = 13, 25
"""`C0_BITS` to `C2_FRACTION`: width and fraction bits of c0, c1 and c2; only c2 is signed."""

_DIGITS = 30
_HALF = Decimal("0.5")
_NODE = Decimal("0.4330127018922193")  # sqrt(3) / 4
_PINNED = Decimal("0.4641016151377546"), Decimal("0.9282032302755092")  # 2 sqrt(3) - 3, twice that


@dataclass(frozen=True)
class Coefficients:
    """One entry of the table: integers in fixed point, with `C0_FRACTION`, ... fraction bits.

    If ``falling`` is true, value = c0 - t * (c1 + t * c2), otherwise c0 + t * (c1 + t * c2).
    """

    c0: int
    c1: int
    c2: int
    falling: bool


@cache
def coefficients() -> tuple[Coefficients, ...]:
    """Return all entries of the table, in the order of their addresses."""
    context = decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_HALF_EVEN)
    with decimal.localcontext(context):
        return tuple(_fit(function, segments, index)
                     for function, segments in _parts() for index in range(segments))


@cache
def words() -> tuple[int, ...]:
    """Return the table's 64-bit words in hardware, in the order of their addresses.

    A word has the fields of `Coefficients`, from the lowest bits: c0, c1, c2 in two's complement,
    and the bit ``falling``.
    """
    return tuple(
        entry.c0 | entry.c1 << C0_BITS | entry.c2 % (1 << C2_BITS) << (C0_BITS + C1_BITS)
        | entry.falling << (C0_BITS + C1_BITS + C2_BITS) for entry in coefficients())


def _parts() -> Iterator[tuple[Callable[[Decimal], Decimal], int]]:
    """Yield, in the order of the table's addresses, each function and its number of segments.

    A function has one argument u, which goes from 0 to 1 over the function's segments.
    """
    full, half = 1 << SEGMENT_BITS, 1 << (SEGMENT_BITS - 1)
    ln2 = Decimal(2).ln()

    def tanh(x: Decimal) -> Decimal:
        power = (-2 * x).exp()
        return (1 - power) / (1 + power)

    def log2_ratio(u: Decimal) -> Decimal:
        f = u if u < _HALF else (u - 1) / 2
        return (1 + f).ln() / (f * ln2)

    yield lambda u: 1 / (1 + u), full
    yield log2_ratio, full
    yield lambda u: 1 / (1 + u).sqrt(), full
    yield lambda u: 1 / (2 + 2 * u).sqrt(), full
    yield lambda u: (u * ln2).exp(), half
    yield lambda u: tanh(u) / u if u else Decimal(1), half
    yield lambda u: tanh(1 + u), full
    yield lambda u: tanh(2 + 2 * u), full
    yield lambda u: tanh(4 + 4 * u), half
    yield lambda u: tanh(8 + 8 * u), half


def _fit(function: Callable[[Decimal], Decimal], segments: int, index: int) -> Coefficients:
    """Fit a quadratic to ``function`` at the Chebyshev nodes of segment ``index``, and round it.

    The function's argument goes from 0 to 1 over ``segments`` segments of equal width. If the
    function is 1 at the start of its first segment, so is the quadratic. To achieve this, the nodes
    of that segment are stretched until the first one is at the segment's start.
    """
    def value(t: Decimal) -> Decimal:
        return function((index + t) / segments)

    pinned = index == 0 and abs(function(Decimal("1e-20")) - 1) < Decimal("1e-19")
    if pinned:
        # The quadratic through (0, 1), (a, y) and (b, z), by Newton's differences.
        a, b = _PINNED
        slope = (value(a) - 1) / a
        curve = ((value(b) - 1) / b - slope) / (b - a)
        c0, c1, c2 = Decimal(1), slope - a * curve, curve
    else:
        low, middle, high = value(_HALF - _NODE), value(_HALF), value(_HALF + _NODE)
        curve = (low - 2 * middle + high) / (2 * _NODE * _NODE)
        slope = (high - low) / (2 * _NODE)
        c0, c1, c2 = middle - slope / 2 + curve / 4, slope - curve, curve

    # Later coefficients compensate for the rounding of earlier ones: t**2 is within 1/8
    # of t - 1/8 on the segment, and t within 1/2 of 1/2.
    rounded2 = round(c2 * (1 << C2_FRACTION))
    change = c2 - Decimal(rounded2) / (1 << C2_FRACTION)
    c1 += change
    if not pinned:
        c0 -= change / 8
    rounded1 = round(c1 * (1 << C1_FRACTION))
    change = c1 - Decimal(rounded1) / (1 << C1_FRACTION)
    if not pinned:
        c0 += change / 2
    rounded0 = round(c0 * (1 << C0_FRACTION))
    falling = rounded1 < 0
    sign = -1 if falling else 1
    return Coefficients(rounded0, sign * rounded1, sign * rounded2, falling)
