"""Random operands that reach the corner cases of the arithmetic, for tests of model and RTL."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hdl.checks import integer

__all__ = ["MAC_CLASSES", "mac_operands"]

# Arrays of uint32. Type checkers take uint32 with a Python integer for signed; numpy does not.
_Words = NDArray[Any]
_Triple = tuple[_Words, _Words, _Words]

# A class's share of a chunk: long enough to hide the cost of a numpy call, short enough for caches.
_SHARE = 4096

# Infinity is in each table three times; otherwise the difference of two infinities would be rare.
_F32_SPECIALS = np.array(
    [0x00000000, 0x00000001, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x33800000,
     0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x4B7FFFFF, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001,
     0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF, 0x7F800000, 0x7F800000], np.uint32)
_BF16_SPECIALS = np.array(
    [0x0000, 0x0001, 0x0040, 0x007F, 0x0080, 0x0081, 0x00FF, 0x2000, 0x3F7F, 0x3F80, 0x3F81, 0x5F80,
     0x7F00, 0x7F7F, 0x7F80, 0x7F81, 0x7FBF, 0x7FC0, 0x7FFF, 0x7F80, 0x7F80],
    np.uint32)
_FRACTIONS = np.array([0x000000, 0x000001, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF,
                       0x555555], np.uint32)


class _Dice:
    """Source of random words for ``count`` triples of operands (acc, x, w), drawn from ``rng``."""

    def __init__(self, rng: np.random.Generator, count: int) -> None:
        self._rng = rng
        self._count = count

    def words(self) -> tuple[_Words, _Words]:
        """Return two uniform random words of 32 bits for each triple of operands."""
        pair = self._rng.integers(0, 1 << 64, self._count, np.uint64).view(np.uint32)
        return pair[0::2], pair[1::2]

    def triple(self) -> _Triple:
        """Return uniform operands: fp32 patterns of acc, bf16 patterns of x and of w."""
        acc, pair = self.words()
        return acc, pair & 0xFFFF, pair >> 16


def _below(word: _Words, shift: int, limit: int) -> _Words:
    """Map 16 bits of random words, from bit ``shift`` up, to numbers from 0 to ``limit - 1``.

    The probabilities of the numbers differ by at most one part in 256.
    """
    return (((word >> shift) & 0xFFFF) * limit) >> 16


def _if(condition: _Words, mask: int) -> _Words:
    """Return ``mask`` where the lowest bit of ``condition`` is set, else 0."""
    return (condition & 1) * np.uint32(mask)


def _sign_of_product(x: _Words, w: _Words) -> _Words:
    return ((x ^ w) & 0x8000) << 16


def _with_field(pattern: _Words, field: _Words, fraction_bits: int) -> _Words:
    """Return ``pattern``, of ``fraction_bits`` fraction bits, with exponent field ``field``."""
    return (pattern & ((0x100 << fraction_bits) | ((1 << fraction_bits) - 1))) | (
        field << fraction_bits)


def _factors(x: _Words, w: _Words, field: _Words, word: _Words,
             spread: int = 63) -> tuple[_Words, _Words]:
    """Return x and w whose product has the exponent field ``field``, or one more.

    The exponent fields of x and w have the sum ``field`` + 127. Each is half of this sum, plus or
    minus an offset of at most ``spread``, which bits 16 to 31 of the random ``word`` choose. With
    the default ``spread``, ``field`` must be from 1 to 254. With a smaller ``spread``, ``field``
    may be outside this range; a negative ``field`` is given modulo 2**32.
    """
    total = field + 127
    first = (total >> 1) + spread - _below(word, 16, 2 * spread + 1)
    return _with_field(x, first, 7), _with_field(w, total - first, 7)


def _product(x: _Words, w: _Words) -> _Words:
    """Return the patterns of products x * w. They must be normal, so that float32 is exact."""
    return ((x << 16).view(np.float32) * (w << 16).view(np.float32)).view(np.uint32)


def _field(pattern: _Words) -> _Words:
    """Return the exponent field of fp32 patterns."""
    return (pattern >> 23) & 0xFF


def _uniform(dice: _Dice) -> _Triple:
    """Return operands of which every bit pattern is equally likely."""
    return dice.triple()


def _specials(dice: _Dice) -> _Triple:
    """Return operands that are all from `_F32_SPECIALS` and `_BF16_SPECIALS`, with any sign."""
    sign, pick = dice.words()
    pick2, _ = dice.words()
    return (_F32_SPECIALS[_below(pick, 0, len(_F32_SPECIALS))] | (sign & 0x80000000),
            _BF16_SPECIALS[_below(pick, 16, len(_BF16_SPECIALS))] | (sign & 0x8000),
            _BF16_SPECIALS[_below(pick2, 0, len(_BF16_SPECIALS))] | ((sign << 8) & 0x8000))


def _one_special(dice: _Dice) -> _Triple:
    """Return operands; one is from the tables of `_specials`, with any sign, the others uniform."""
    acc, x, w = dice.triple()
    pick, which = dice.words()
    turn = _below(which, 0, 3)
    f32 = _F32_SPECIALS[_below(pick, 0, len(_F32_SPECIALS))] | (acc & 0x80000000)
    b16 = _BF16_SPECIALS[_below(pick, 16, len(_BF16_SPECIALS))]
    return (np.where(turn == 0, f32, acc), np.where(turn == 1, b16 | (x & 0x8000), x),
            np.where(turn == 2, b16 | (w & 0x8000), w))


def _zeros(dice: _Dice) -> _Triple:
    """Return a zero and a normal number as x and w, in either order; acc is uniform or a zero."""
    acc, x, w = dice.triple()
    field, pick = dice.words()
    x, w = _factors(x, w, 1 + _below(field, 0, 254), field)
    return (acc & (0x80000000 | _if(pick >> 1, 0x7FFFFFFF)), x & (0x8000 | _if(pick, 0x7FFF)),
            w & (0x8000 | _if(~pick, 0x7FFF)))


def _subnormals(dice: _Dice) -> _Triple:
    """Return operands each of which is subnormal or zero with probability 1/2, else uniform."""
    acc, x, w = dice.triple()
    pick, _ = dice.words()
    return (acc & (0x807FFFFF | _if(pick, 0x7F800000)), x & (0x807F | _if(pick >> 1, 0x7F80)),
            w & (0x807F | _if(pick >> 2, 0x7F80)))


def _aligned(dice: _Dice) -> _Triple:
    """Return normal numbers; acc's exponent minus that of x * w is uniform from -40 to +40."""
    acc, x, w = dice.triple()
    field, pick = dice.words()
    x, w = _factors(x, w, 44 + _below(field, 0, 168), field)
    return _with_field(acc, _field(_product(x, w)) + _below(pick, 0, 81) - 40, 23), x, w


def _edge_fractions(dice: _Dice) -> _Triple:
    """Return normal numbers with fractions from `_FRACTIONS`; exponents differ by up to 27."""
    acc, x, w = dice.triple()
    field, pick = dice.words()
    x, w = _factors((x & 0xFF80) | (_FRACTIONS[(pick >> 16) & 7] >> 16),
                    (w & 0xFF80) | (_FRACTIONS[(pick >> 19) & 7] >> 16),
                    44 + _below(field, 0, 168), field)
    acc = (acc & 0xFF800000) | _FRACTIONS[(pick >> 22) & 7]
    return _with_field(acc, _field(_product(x, w)) + _below(pick, 0, 55) - 27, 23), x, w


def _cancelled(dice: _Dice) -> _Triple:
    """Return factors whose product is normal, and the negated product as acc."""
    _, x, w = dice.triple()
    field, _ = dice.words()
    x, w = _factors(x, w, 1 + _below(field, 0, 253), field)
    return _product(x, w) ^ 0x80000000, x, w


def _nearly_cancelled(dice: _Dice) -> _Triple:
    """Return factors, and as acc their negated product with some of its 23 lowest bits changed."""
    acc, x, w = dice.triple()
    field, pick = dice.words()
    x, w = _factors(x, w, 1 + _below(field, 0, 253), field)
    noise = (acc & 0x7FFFFF) >> _below(pick, 0, 23)
    return _product(x, w) ^ 0x80000000 ^ noise, x, w


def _ties_in_product(dice: _Dice) -> _Triple:
    """Return operands for ties, with acc larger than x * w.

    The lowest set bit of x * w is worth half of the lowest bit of acc's significand.
    """
    acc, x, w = dice.triple()
    field, _ = dice.words()
    x, w = _factors(x, w, 1 + _below(field, 0, 229), field)
    product = _product(x, w)
    significand = (product & 0x7FFFFF) | 0x800000
    # The position of the lowest one, by a conversion that is exact for a power of two.
    position = _field((significand & (~significand + 1)).astype(np.float32).view(np.uint32)) - 127
    # An exponent higher by d makes the product's bit d - 1 half a unit.
    return _with_field(acc, _field(product) + position + 1, 23), x, w


def _ties_in_acc(dice: _Dice) -> _Triple:
    """Return operands for ties, with x * w larger than acc.

    The exponents differ by 1 to 23. The lowest set bit of acc is worth half of the lowest bit of
    the significand of x * w as fp32.
    """
    acc, x, w = dice.triple()
    field, pick = dice.words()
    x, w = _factors(x, w, 24 + _below(field, 0, 230), field)
    distance = 1 + _below(pick, 0, 23)
    half = np.uint32(1) << (distance - 1)
    acc = (acc & ~((half << 1) - 1)) | half
    return _with_field(acc, _field(_product(x, w)) - distance, 23), x, w


def _small_products(dice: _Dice) -> _Triple:
    """Return products from 2**-132 to 2**-121; acc is a zero or is from 2**-126 to 2**-118."""
    acc, x, w = dice.triple()
    field, pick = dice.words()
    x, w = _factors(x, w, _below(field, 0, 10) - 5, field, spread=48)
    acc = _with_field(acc, 1 + _below(pick, 0, 8), 23)
    return acc & (0x80000000 | _if(pick >> 31, 0x7FFFFFFF)), x, w


def _small_sums(dice: _Dice) -> _Triple:
    """Return normal acc and product below 2**-117, of opposite sign: many sums are flushed."""
    acc, x, w = dice.triple()
    field, pick = dice.words()
    product = 1 + _below(field, 0, 8)
    x, w = _factors(x, w, product, field)
    acc = _with_field(acc, product + (pick & 1), 23) & 0x7FFFFFFF
    return acc | (_sign_of_product(x, w) ^ 0x80000000), x, w


def _large_products(dice: _Dice) -> _Triple:
    """Return products from 2**123 to beyond 2**128, and an acc near the upper end of the range."""
    acc, x, w = dice.triple()
    field, pick = dice.words()
    x, w = _factors(x, w, 250 + _below(field, 0, 9), field, spread=48)
    return _with_field(acc, 248 + _below(pick, 0, 7), 23), x, w


def _large_sums(dice: _Dice) -> _Triple:
    """Return an acc close to the largest number, and factors whose product has the same sign.

    The product's magnitude is from 2**100 to 2**109. The lowest bit of acc is worth 2**104.
    """
    acc, x, w = dice.triple()
    field, pick = dice.words()
    few = np.uint32(0xFFFF) << _below(pick, 16, 8)
    x, w = _factors(x & few, w & few, 227 + _below(field, 0, 8), field)
    acc = 0x7F7FFFFF - (acc & (np.uint32(0xFF) >> _below(pick, 0, 9)))
    return acc | _sign_of_product(x, w), x, w


_CLASSES: tuple[Callable[[_Dice], _Triple], ...] = (
    _uniform, _specials, _one_special, _zeros, _subnormals, _aligned, _edge_fractions, _cancelled,
    _nearly_cancelled, _ties_in_product, _ties_in_acc, _small_products, _small_sums,
    _large_products, _large_sums,
)

MAC_CLASSES = tuple(str(make.__name__).removeprefix("_") for make in _CLASSES)
"""Names of the classes of `mac_operands`; operand i is of class i modulo their number.

``uniform``
    Every pattern of each operand is equally likely.
``specials``, ``one_special``
    All operands, or one, from tables of zeros, subnormals, the extremes of the normal range,
    powers of two and their neighbours, infinities and NaN of several payloads, of either sign.
``zeros``
    A zero factor and a normal one, of any signs; acc is uniform or a zero.
``subnormals``
    Each operand is subnormal or zero with probability 1/2.
``aligned``
    Normal numbers; exponents of acc and product from -40 to +40 apart.
``edge_fractions``
    The same, -27 to +27 apart, with fractions whose sums carry, borrow or cancel over many bits.
``cancelled``, ``nearly_cancelled``
    acc is the negated product, exactly or up to some low bits.
``ties_in_product``, ``ties_in_acc``
    The lowest set bit of the smaller addend is worth half of the larger addend's lowest bit.
``small_products``, ``small_sums``
    Products around the least normal number; sums around it whose addends have opposite signs.
``large_products``, ``large_sums``
    Products around the largest number; sums around it whose addends have equal signs.
"""


def mac_operands(rng: np.random.Generator, count: int
                 ) -> tuple[NDArray[np.uint32], NDArray[np.uint16], NDArray[np.uint16]]:
    """Draw operands of a multiply-accumulate, ``acc + x * w``, equally from `MAC_CLASSES`.

    The classes alternate with an odd period, so hardware that takes 2**n operands at a time gets
    every class in each of its positions.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of randomness; equal generators give equal operands.
    count : int
        Number of triples of operands, 0 or more.

    Returns
    -------
    acc : array of uint32, shape (count,)
        fp32 patterns.
    x, w : array of uint16, shape (count,)
        bf16 patterns.

    Raises
    ------
    TypeError
        If ``rng`` is not a Generator or ``count`` not an integer.
    ValueError
        If ``count`` is negative.
    """
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, not {rng!r}")
    integer("count", count, 0)
    acc = np.empty(count, np.uint32)
    x = np.empty(count, np.uint16)
    w = np.empty(count, np.uint16)
    period = len(_CLASSES)
    for start in range(0, count, period * _SHARE):
        stop = min(start + period * _SHARE, count)
        for first, make in enumerate(_CLASSES, start):
            part = slice(first, stop, period)
            share = len(range(first, stop, period))
            acc[part], x[part], w[part] = make(_Dice(rng, share))
    return acc, x, w
