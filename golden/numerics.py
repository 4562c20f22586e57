"""The processor's arithmetic on numpy arrays, bit for bit.

This module specifies hdl/bf16.py, hdl/mxu/mac.py and hdl/vpu/float.py, and executes what
`docs/numerics.md` defines. A float32 array holds fp32 bit patterns, and an `ml_dtypes.bfloat16`
array bf16 bit patterns. Functions take arrays of shapes that broadcast, and return new arrays. They
raise TypeError for an array of another type, and ValueError if the shapes do not broadcast.

numpy's float32 operations round to nearest, ties to even, with gradual underflow. This module adds
the handling of subnormals and of NaN patterns; `docs/numerics.md` proves that this suffices. The
conversion of ml_dtypes to bfloat16 rounds to nearest, ties to even, too.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "BF16_INF",
    "BF16_NAN",
    "F32_INF",
    "F32_MIN_NORMAL",
    "F32_NAN",
    "add_f32",
    "bf16",
    "bf16_product",
    "bits",
    "canonical",
    "flush",
    "flushed",
    "from_bits",
    "mac",
    "to_bf16",
    "to_f32",
]

bf16 = np.dtype(ml_dtypes.bfloat16)
"""The numpy dtype of a bf16 array."""

F32_NAN = 0x7FC00000
"""The pattern of every fp32 NaN result."""
BF16_NAN = 0x7FC0
"""The pattern of every bf16 NaN result."""
F32_INF = 0x7F800000
"""The pattern of fp32 plus infinity."""
BF16_INF = 0x7F80
"""The pattern of bf16 plus infinity."""
F32_MIN_NORMAL = 0x00800000
"""The pattern of 2**-126, the least positive number that is not flushed."""

_F32 = np.dtype(np.float32)
# Arrays, because numpy would convert a Python number to an array in each call.
_TINY = np.array(2.0**-126, np.float32)
_LARGE_SUM = np.array(2.0**-99, np.float32)


def _checked(name: str, value: ArrayLike, dtype: np.dtype[Any]) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype != dtype:
        raise TypeError(f"{name} must be an array of {dtype}, not of {array.dtype}")
    return array


def bits(a: ArrayLike) -> NDArray[Any]:
    """View a float32 or bfloat16 array as its bit patterns: uint32 or uint16, same shape."""
    array = np.asarray(a)
    if array.dtype == np.float32:
        return array.view(np.uint32)
    if array.dtype == bf16:
        return array.view(np.uint16)
    raise TypeError(f"a must be an array of float32 or bfloat16, not of {array.dtype}")


def from_bits(a: ArrayLike) -> NDArray[Any]:
    """View uint32 or uint16 patterns as float32 or bfloat16; the inverse of `bits`."""
    array = np.asarray(a)
    if array.dtype == np.uint32:
        return array.view(np.float32)
    if array.dtype == np.uint16:
        return array.view(bf16)
    raise TypeError(f"a must be an array of uint32 or uint16, not of {array.dtype}")


def flush(a: ArrayLike) -> NDArray[np.float32]:
    """Copy a float32 array, with each subnormal replaced by the zero of its sign."""
    y = _checked("a", a, _F32).copy()
    with np.errstate(all="ignore"):
        # Times zero, a number becomes the zero of its sign.
        y[np.abs(y) < _TINY] *= 0
    return y


def flushed(a: NDArray[np.float32]) -> NDArray[np.float32]:
    """As `flush`, but faster: ``a`` is not checked, and the pattern of a NaN may change.

    numpy reports an invalid operation for a signalling NaN, unless the caller suppresses that.
    """
    # The factor is 0 for subnormals, which makes them the zero of their sign, and otherwise 1.
    factor = np.abs(a, out=np.empty_like(a))
    np.greater_equal(factor, _TINY, out=factor)
    return np.multiply(a, factor, out=factor)


def canonical(a: ArrayLike) -> NDArray[np.float32]:
    """Copy a float32 array, with each NaN replaced by the pattern `F32_NAN`."""
    return _canonical(_checked("a", a, _F32).copy())


def _canonical(a: NDArray[np.float32]) -> NDArray[np.float32]:
    """Replace the pattern of each NaN in ``a`` by `F32_NAN`, in place, and return ``a``."""
    nan = np.isnan(a)
    # Most arrays have none, and an assignment takes longer than a count.
    if np.count_nonzero(nan):
        a.view(np.uint32)[nan] = F32_NAN
    return a


def to_bf16(x: ArrayLike) -> NDArray[Any]:
    """Round fp32 to bf16: subnormals to zero, overflow to infinity, NaN to `BF16_NAN`.

    Parameters
    ----------
    x : array of float32, any shape

    Returns
    -------
    array of bfloat16, same shape
    """
    x = _checked("x", x, _F32)
    with np.errstate(all="ignore"):
        # `astype` rounds to nearest, ties to even; from halfway to 2**128 on, to infinity.
        y = flushed(x).astype(bf16)
    nan = np.isnan(x)
    if np.count_nonzero(nan):
        y.view(np.uint16)[nan] = BF16_NAN
    return y


def to_f32(x: ArrayLike) -> NDArray[np.float32]:
    """Widen bf16 to fp32: exact, but subnormals become zero, and NaN becomes `F32_NAN`.

    Parameters
    ----------
    x : array of bfloat16, any shape

    Returns
    -------
    array of float32, same shape
    """
    x = _checked("x", x, bf16)
    with np.errstate(all="ignore"):
        return _canonical(flushed(x.astype(np.float32)))


def bf16_product(x: ArrayLike, w: ArrayLike) -> NDArray[np.float32]:
    """Return the product of bf16 numbers in fp32, which is exact if it is in range.

    Parameters
    ----------
    x, w : array of bfloat16, shapes that broadcast

    Returns
    -------
    array of float32, the broadcast shape
        Infinity where the product is 2**128 or more in magnitude, zero where it is below 2**-126;
        both with the sign of the product.
    """
    x, w = to_f32(_checked("x", x, bf16)), to_f32(_checked("w", w, bf16))
    with np.errstate(all="ignore"):
        return _canonical(flushed(x * w))


def add_f32(a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
    """Return the sum of fp32 numbers, rounded once.

    Parameters
    ----------
    a, b : array of float32, shapes that broadcast

    Returns
    -------
    array of float32, the broadcast shape
    """
    a, b = _checked("a", a, _F32), _checked("b", b, _F32)
    with np.errstate(all="ignore"):
        total = np.asarray(a + b)
        # A subnormal operand is less than half an ulp of a sum from 2**-99 on, and so does not
        # change it. A sum is 0 only if the operands are opposites, or both 0, flushed or not.
        small = np.count_nonzero(np.abs(total) < _LARGE_SUM)
        if small and small != np.count_nonzero(total == 0):
            total = flushed(flushed(a) + flushed(b))
        return _canonical(total)


def mac(acc: ArrayLike, x: ArrayLike, w: ArrayLike) -> NDArray[np.float32]:
    """Return ``acc + x * w`` as a cell computes it: `bf16_product`, then `add_f32`.

    Parameters
    ----------
    acc : array of float32
    x, w : array of bfloat16
        The shapes of all three broadcast.

    Returns
    -------
    array of float32, the broadcast shape
    """
    acc = _checked("acc", acc, _F32)
    return add_f32(acc, bf16_product(x, w))
