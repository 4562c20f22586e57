"""The transcendental unit on numpy arrays, bit for bit.

This module specifies hdl/vpu/transcendental.py: it executes what `docs/transcendentals.md` defines
in the steps of the hardware: reduction of the argument, a quadratic from the table in
`hdl/vpu/tables.py`, a product, rounding. Words are int64; comments give their units, powers of two.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from golden.numerics import F32_INF, F32_NAN
from hdl.checks import instance
from hdl.vpu.tables import SEGMENT_BITS, Block, Function, coefficients

__all__ = ["Function", "evaluate", "exp2", "log2", "reciprocal", "rsqrt", "tanh"]

_CHUNK = 1 << 14
"""Number of elements that are evaluated together, so that their words stay in the cache."""

_SIGN = 1 << 31
_ONE = 127 << 23
_FRACTION = (1 << 23) - 1
_POSITION = 20
"""Bits of a position within a segment."""
_FIXED = 26
"""Fraction bits of an operand in fixed point."""
_FULL = 1 << SEGMENT_BITS
_HALF = _FULL // 2

_Words = NDArray[np.int64]


def reciprocal(x: ArrayLike) -> NDArray[np.float32]:
    """Return 1 / x for each element, as `evaluate` does; for a zero, the infinity of its sign."""
    return evaluate(Function.RECIPROCAL, x)


def rsqrt(x: ArrayLike) -> NDArray[np.float32]:
    """Return 1 / sqrt(x) for each element, as `evaluate` does.

    The result is plus infinity for either zero, and NaN below zero.
    """
    return evaluate(Function.RSQRT, x)


def exp2(x: ArrayLike) -> NDArray[np.float32]:
    """Return 2 ** x for each element, as `evaluate` does."""
    return evaluate(Function.EXP2, x)


def log2(x: ArrayLike) -> NDArray[np.float32]:
    """Return log2(x) for each element, as `evaluate` does.

    The result is minus infinity for either zero, and NaN below zero.
    """
    return evaluate(Function.LOG2, x)


def tanh(x: ArrayLike) -> NDArray[np.float32]:
    """Return tanh(x) for each element, as `evaluate` does; its magnitude never exceeds 1."""
    return evaluate(Function.TANH, x)


def evaluate(function: Function, x: ArrayLike) -> NDArray[np.float32]:
    """Return ``function`` of each element of ``x``; a subnormal operand is the zero of its sign.

    Parameters
    ----------
    function : Function
    x : array of float32, any shape

    Returns
    -------
    array of float32, same shape

    Raises
    ------
    TypeError
        If ``function`` is not a `Function` or the array is of another type.
    """
    instance("function", function, Function)
    x = np.asarray(x)
    if x.dtype != np.float32:
        raise TypeError(f"x must be an array of float32, not of {x.dtype}")
    u = np.ascontiguousarray(x).view(np.uint32).reshape(-1)
    y = np.empty(u.shape, np.uint32)
    step = _STEPS[function]
    for start in range(0, u.size, _CHUNK):
        part = u[start:start + _CHUNK]
        result = step(part.astype(np.int64))
        # Every function of NaN is NaN.
        result[(part & 0x7FFFFFFF) > F32_INF] = F32_NAN
        y[start:start + _CHUNK] = result
    return y.view(np.float32).reshape(x.shape)


@cache
def _table() -> tuple[_Words, _Words, _Words, _Words]:
    """Return the table's columns c0, c1 and c2, and a column of signs, each 1 or -1.

    The quadratic of an entry is c0 + sign * t * (c1 + t * c2). c0 and c2 are in the units of the
    sum in `_quadratic`, 2**-47; c1 is in units of 2**-27. c0 includes half a unit of the result,
    which rounds it.
    """
    columns = np.array([(entry.c0, entry.c1, entry.c2, -1 if entry.falling else 1)
                        for entry in coefficients()], np.int64).T
    c0, c1, c2, sign = (np.ascontiguousarray(column) for column in columns)
    return (c0 << _POSITION) + (1 << 18), c1, c2 << 6, sign


def _quadratic(address: _Words, position: _Words) -> _Words:
    """Return the quadratic of table entry ``address`` at ``position``, in units of 2**-28.

    The position is that within the entry's segment, in units of 2**-20.
    """
    c0, c1, c2, sign = _table()
    change = position >> 4
    change *= change
    change >>= 16
    change *= c2[address]
    change += c1[address] * position
    change *= sign[address]
    change += c0[address]
    change >>= 19
    return change


def _round(exponent: _Words, value: _Words) -> _Words:
    """Round value * 2**(exponent - 127) to fp32, and return its pattern.

    ``value`` is in [1/8, 2), given in units of 2**-31.
    """
    value = value.copy()
    exponent = exponent.copy()
    for _ in range(3):
        short = value < 1 << 31
        value <<= short
        exponent -= short
    value += 0x7F + (value >> 8 & 1)
    value >>= 8
    # The leading bit adds one to the exponent; a carry of the rounding adds another.
    value += (exponent - 1) << 23
    value[value >= F32_INF] = F32_INF
    value[value < 1 << 23] = 0
    return value


def _fields(u: _Words) -> tuple[_Words, _Words, _Words]:
    """Return the fields of fp32 patterns ``u``: the sign, in bit 31; biased exponent; fraction."""
    return u & _SIGN, u >> 23 & 0xFF, u & _FRACTION


def _within(fraction: _Words) -> tuple[_Words, _Words]:
    """Return the segment of a significand with fraction field ``fraction``, and the position in it.

    This is for functions with a block of the table of their own. The block's 128 segments, numbered
    from 0, divide the significands from 1 to 2 equally. The position is in units of 2**-20 of a
    segment.
    """
    return fraction >> 16, (fraction & 0xFFFF) << 4


def _fixed(exponent: _Words, fraction: _Words) -> _Words:
    """Return the magnitudes of operands below 256 in units of 2**-26, rounded down.

    ``exponent`` and ``fraction`` are the operands' fields (`_fields`).
    """
    significand = fraction | 1 << 23
    down = np.clip(124 - exponent, 0, 31)
    up = np.clip(exponent - 124, 0, 31)
    return significand << up >> down


def _reciprocal(u: _Words) -> _Words:
    sign, exponent, fraction = _fields(u)
    segment, position = _within(fraction)
    value = _quadratic(segment + _FULL * Block.RECIPROCAL, position)
    y = _round(254 - exponent, value << 3)
    y[exponent == 0] = F32_INF
    y[exponent == 255] = 0
    return y | sign


def _rsqrt(u: _Words) -> _Words:
    sign, exponent, fraction = _fields(u)
    segment, position = _within(fraction)
    # The exponent is split into a power of four and a factor of 1 or 2 for the significand.
    odd = ~exponent & 1
    segment += _FULL * Block.RSQRT_EVEN
    segment += odd << SEGMENT_BITS
    value = _quadratic(segment, position)
    y = _round(127 - ((exponent - 127) >> 1), value << 3)
    y[exponent == 255] = 0
    y[sign != 0] = F32_NAN
    y[exponent == 0] = F32_INF
    return y


def _exp2(u: _Words) -> _Words:
    sign, exponent, fraction = _fields(u)
    fixed = _fixed(exponent, fraction)
    np.negative(fixed, out=fixed, where=sign != 0)
    segment = (fixed >> _POSITION) & (_HALF - 1)
    value = _quadratic(segment + _FULL * Block.FIXED, fixed & ((1 << _POSITION) - 1))
    y = _round((fixed >> _FIXED) + 127, value << 3)
    y[(exponent >= 135) & (sign == 0)] = F32_INF
    y[(exponent >= 135) & (sign != 0)] = 0
    return y


def _log2(u: _Words) -> _Words:
    sign, exponent, fraction = _fields(u)
    segment, position = _within(fraction)
    value = _quadratic(segment + _FULL * Block.LOG2, position)
    # x = (1 + f) * 2**whole with f in [-1/4, 1/2); the magnitude of f in units of 2**-24.
    high = fraction >> 22
    f = np.where(high, (1 << 23) - fraction, fraction << 1)
    whole = exponent - 127 + high
    magnitude = np.abs(whole)
    # Without a whole part only f matters, and is normalised before the product. With one, both are
    # scaled so that the sum is below 1.
    near = whole == 0
    zeros = np.where(near, 24 - _bit_length(f), 0)
    scale = _bit_length(magnitude)
    product = (f << zeros) * value >> (21 + scale)
    below = np.where(near, high != 0, whole < 0)
    np.negative(product, out=product, where=below != (high != 0))
    product += magnitude << (31 - scale)
    y = _round(127 + scale - zeros, product) | below * _SIGN
    y[u == _ONE] = 0
    y[exponent == 255] = F32_INF
    y[sign != 0] = F32_NAN
    y[exponent == 0] = F32_INF | _SIGN
    return y


def _tanh(u: _Words) -> _Words:
    sign, exponent, fraction = _fields(u)
    # From 1 on: a block for each octave, and half a block for each of the last two.
    half = exponent >= 129
    octave = np.minimum(exponent, 129) - 127 + Block.TANH_1
    segment = np.where(half, (~exponent & 1) * _HALF + (fraction >> 17), fraction >> 16)
    segment += octave << SEGMENT_BITS
    position = np.where(half, (fraction & 0x1FFFF) << 3, (fraction & 0xFFFF) << 4)
    # Below 1, tanh(x) / x.
    small = exponent < 127
    fixed = _fixed(exponent, fraction)
    below = (fixed >> _POSITION) + (_FULL * Block.FIXED + _HALF)
    segment = np.where(small, below, segment)
    position = np.where(small, fixed & ((1 << _POSITION) - 1), position)
    value = _quadratic(segment, position)
    factor = np.where(small, fraction | 1 << 23, 1 << 23)
    y = _round(np.where(small, exponent, 127), factor * value >> 20)
    y[exponent >= 131] = _ONE
    y[exponent == 0] = 0
    return y | sign


def _bit_length(magnitude: _Words) -> _Words:
    """Return the bit length of numbers below 2**24."""
    return np.frexp(magnitude.astype(np.float64))[1].astype(np.int64)


_STEPS: dict[Function, Callable[[_Words], _Words]] = {
    Function.RECIPROCAL: _reciprocal,
    Function.RSQRT: _rsqrt,
    Function.EXP2: _exp2,
    Function.LOG2: _log2,
    Function.TANH: _tanh,
}
