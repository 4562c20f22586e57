"""The matrix product of the systolic array, with the array's order of additions.

This module specifies hdl/mxu, and executes what `docs/numerics.md` defines.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from golden.numerics import add_f32, bf16, canonical, mac, to_bf16, to_f32
from golden.vpu import fmax
from hdl.checks import integer

__all__ = ["column_sum", "dense", "matmul", "tile_matmul"]

# Number of partial sums that are computed together. It is large enough to hide the cost of a numpy
# call, and small enough that sums and products fit the second-level cache.
_BLOCK = 16384
_BLOCK_COLUMNS = 1024
_FEW = 8192
"""Maximum number of products that `_accumulate` computes by a single numpy call."""
_TINY = np.float32(2.0**-126)


def _operand(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return operand ``value`` as bf16: fp32 is rounded as at the array's edge, bf16 is unchanged.

    ``name`` is the operand's name in the error message.
    """
    array = np.asarray(value)
    if array.dtype == np.float32:
        return to_bf16(array)
    if array.dtype == bf16:
        return array
    raise TypeError(f"{name} must be an array of float32 or bfloat16, not of {array.dtype}")


def _matrices(left: str, a: ArrayLike, right: str, b: ArrayLike
              ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Check factors ``a`` and ``b``; return them rounded to bf16 and widened to fp32.

    ``left`` and ``right`` are their names in the error messages.
    """
    x, w = _operand(left, a), _operand(right, b)
    for name, array in ((left, x), (right, w)):
        if array.ndim != 2:
            raise ValueError(f"{name} must be a matrix, not of shape {array.shape!r}")
    if x.shape[1] != w.shape[0]:
        raise ValueError(f"{right} must have as many rows as {left} has columns, "
                         f"{x.shape[1]}, not {w.shape[0]!r}")
    return to_f32(x), to_f32(w)


def column_sum(x: ArrayLike, w: ArrayLike) -> NDArray[np.float32]:
    """Return the sum that a column of the array computes: `mac` from row 0 down, starting at +0.0.

    This is the definition; `tile_matmul` computes the same sums faster.

    Parameters
    ----------
    x : array of float32 or bfloat16, shape (..., K)
        Activations; element k of the last axis is the one that row k of the array multiplies.
    w : array of float32 or bfloat16, shape (..., K)
        Weights of the column. The leading axes of ``x`` and ``w`` broadcast.

    Returns
    -------
    array of float32, shape (...)

    Raises
    ------
    TypeError
        If an array is of another type.
    ValueError
        If an array has no axis, or the shapes do not match.
    """
    x, w = _operand("x", x), _operand("w", w)
    for name, array in (("x", x), ("w", w)):
        if array.ndim == 0:
            raise ValueError(f"{name} must have at least one axis, not shape {array.shape!r}")
    if x.shape[-1] != w.shape[-1]:
        raise ValueError(f"w must have a last axis as long as that of x, {x.shape[-1]}, "
                         f"not {w.shape[-1]!r}")
    acc = np.zeros(np.broadcast_shapes(x.shape[:-1], w.shape[:-1]), np.float32)
    for k in range(x.shape[-1]):
        acc = mac(acc, x[..., k], w[..., k])
    return acc


def _exponents(steps: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return, for each row of ``steps``, the smallest exponent field of its nonzero numbers.

    If all numbers of a row are zero, it is 255.
    """
    field = (steps.view(np.uint32) >> 23) & 0xFF
    return np.where(field == 0, 255, field).min(axis=1, initial=255).astype(np.int64)


def _least_exponent(a: NDArray[np.float32]) -> int:
    """Return the smallest exponent field of the nonzero numbers of ``a``; 256 if all are zero."""
    # The shift drops the sign. The subtraction turns zeros into the largest number, which `min`
    # ignores if there is any other.
    return (int(((a.view(np.uint32) << 1) - 1).min()) + 1) >> 24


def _flush_in_place(a: NDArray[np.float32], scratch: NDArray[np.float32]) -> None:
    np.abs(a, out=scratch)
    # Scratch becomes 1, or 0 where the magnitude is below the least normal number. The product with
    # it keeps signs, infinities and NaN.
    np.greater_equal(scratch, _TINY, out=scratch)
    np.multiply(a, scratch, out=a)


def _accumulate(left: NDArray[np.float32], right: NDArray[np.float32],
                out: NDArray[np.float32]) -> None:
    """Store the product ``left.T @ right`` in ``out``: left (K, R), right (K, C), out (R, C).

    Each sum begins at +0.0 and is rounded after each of its K terms, in order. The factors must not
    contain subnormals; the pattern of a NaN result is arbitrary.
    """
    # Every nonzero product of step k is a multiple of 2**(exponent[k] - 14) and at least
    # 2**exponent[k] in magnitude. All sums so far, rounded or not, are multiples of the least of
    # these powers; while that power is a normal number, no sum is subnormal. So only the steps that
    # `flush_product` and `flush_sum` mark need a flush.
    few = 0 < len(left) * out.size <= _FEW
    if few and _least_exponent(left) + _least_exponent(right) - 2 * 127 - 14 >= -126:
        sums = np.add.accumulate(left[:, :, None] * right[:, None], axis=0)
        # Adding +0.0 last equals starting at +0.0: only a sum of products that are all -0 changes.
        np.add(sums[-1], 0.0, out=out)
        return
    exponent = _exponents(left) + _exponents(right) - 2 * 127
    flush_product = exponent < -126
    flush_sum = np.minimum.accumulate(exponent - 14) < -126
    acc = np.zeros(out.shape, np.float32)
    product = np.empty_like(acc)
    scratch = np.empty_like(acc)
    steps = zip(left[:, :, None], right, flush_product.tolist(), flush_sum.tolist(), strict=True)
    for a, b, tiny_product, tiny_sum in steps:
        np.multiply(a, b, out=product)
        if tiny_product:
            _flush_in_place(product, scratch)
        np.add(acc, product, out=acc)
        if tiny_sum:
            _flush_in_place(acc, scratch)
    out[...] = acc


def _tile(x: NDArray[np.float32], w: NDArray[np.float32]) -> NDArray[np.float32]:
    out = np.empty((x.shape[0], w.shape[1]), np.float32)
    # The longer side is that of the inner loop; exchanging the factors of a product changes no bit
    # of it, except in a NaN.
    left, right, target = (x, w, out) if x.shape[0] <= w.shape[1] else (w.T, x.T, out.T)
    columns = min(target.shape[1], _BLOCK_COLUMNS)
    rows = _BLOCK // max(columns, 1)
    with np.errstate(all="ignore"):
        for r in range(0, target.shape[0], rows):
            part = np.ascontiguousarray(left[r:r + rows].T)
            for c in range(0, target.shape[1], _BLOCK_COLUMNS):
                _accumulate(part, np.ascontiguousarray(right[:, c:c + _BLOCK_COLUMNS]),
                            target[r:r + rows, c:c + _BLOCK_COLUMNS])
    return canonical(out)


def tile_matmul(x: ArrayLike, w: ArrayLike) -> NDArray[np.float32]:
    """Return the product by one weight tile: element (m, n) is `column_sum` of row m and column n.

    Parameters
    ----------
    x : array of float32 or bfloat16, shape (M, K)
        Activations. fp32 is rounded to bf16 at the array's edge.
    w : array of float32 or bfloat16, shape (K, N)
        Weights; fp32 is rounded, too. K may exceed the array's rows: each sum is that of a single
        column with K rows.

    Returns
    -------
    array of float32, shape (M, N)
        +0.0 where K is 0; empty where M or N is 0.

    Raises
    ------
    TypeError
        If an array is of another type.
    ValueError
        If an array is not a matrix, or the sizes K differ.
    """
    return _tile(*_matrices("x", x, "w", w))


def matmul(a: ArrayLike, b: ArrayLike, array: int) -> NDArray[np.float32]:
    """Return the matrix product as an array with ``array`` rows computes it.

    The common dimension is cut into consecutive tiles of ``array`` rows; the last one may be
    shorter. The results of the tiles are added in fp32, in order.

    Parameters
    ----------
    a : array of float32 or bfloat16, shape (M, K)
    b : array of float32 or bfloat16, shape (K, N)
        fp32 is rounded to bf16 at the array's edge.
    array : int
        Rows of the systolic array, 1 or more.

    Returns
    -------
    array of float32, shape (M, N)
        +0.0 where K is 0; empty where M or N is 0.

    Raises
    ------
    TypeError
        If an array is of another type, or ``array`` is not an integer.
    ValueError
        If an array is not a matrix, the sizes K differ, or ``array`` is less than 1.
    """
    integer("array", array, 1)
    x, w = _matrices("a", a, "b", b)
    acc = _tile(x[:, :array], w[:array])
    for k in range(array, x.shape[1], array):
        acc = add_f32(acc, _tile(x[:, k:k + array], w[k:k + array]))
    return acc


def dense(x: ArrayLike, w: ArrayLike, array: int, bias: NDArray[np.float32] | None = None, *,
          relu: bool = False) -> NDArray[np.float32]:
    """Return the output of a dense layer: `matmul`, plus a bias, then optionally a ReLU.

    Parameters
    ----------
    x, w, array
        As `matmul`.
    bias : array of float32, shape (N,), optional
        Added to each row in fp32.
    relu : bool
        Whether to apply ``fmax`` with +0.0 to the sums.

    Returns
    -------
    array of float32, shape (M, N)

    Raises
    ------
    TypeError, ValueError
        As `matmul`, or if the bias does not have one element for each column.
    """
    result = matmul(x, w, array)
    if bias is not None:
        if bias.dtype != np.float32 or bias.shape != result.shape[1:]:
            raise ValueError(f"bias must be float32 of shape {result.shape[1:]!r}, not "
                             f"{bias.dtype} of {bias.shape!r}")
        result = add_f32(result, np.broadcast_to(bias, result.shape))
    if relu:
        zeros = np.zeros(result.shape, np.uint32)
        result = fmax(result.view(np.uint32), zeros).view(np.float32)
    return result
