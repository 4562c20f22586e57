"""Conversions between the graph's element types and numpy's, and shards of numpy arrays."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sim.compiler.graph.ir import STACKED, DType, TensorType

__all__ = ["Array", "array_dtype", "as_array", "dtype_of", "shard", "type_of",
           "unshard", "unsharded_shape"]

Array = npt.NDArray[Any]

_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32), DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.S32: np.dtype(np.int32), DType.U32: np.dtype(np.uint32), DType.PRED: np.dtype(np.bool_),
    DType.S8: np.dtype(np.int8), DType.U8: np.dtype(np.uint8), DType.S16: np.dtype(np.int16),
    DType.U16: np.dtype(np.uint16),
}
_DTYPES = {dtype: name for name, dtype in _NUMPY.items()}


def array_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the numpy type for elements of ``dtype``; for bf16, it is ``ml_dtypes.bfloat16``."""
    return _NUMPY[dtype]


def dtype_of(dtype: npt.DTypeLike) -> DType:
    """Return the graph's element type for a numpy type.

    Raises
    ------
    TypeError
        If the graph has no such type.
    """
    found = _DTYPES.get(np.dtype(dtype))
    if found is None:
        raise TypeError(f"dtype must be one of {', '.join(map(str, _DTYPES))}, "
                        f"not {np.dtype(dtype)}")
    return found


def type_of(array: Array) -> TensorType:
    """Return the graph's type for a numpy array: its shape and element type.

    Raises
    ------
    TypeError
        If the graph has no such element type.
    """
    return TensorType(tuple(array.shape), dtype_of(array.dtype))


def as_array(value: Any, dtype: DType) -> Array:
    """Convert a value to an array of ``dtype``; an array that has this type is not copied."""
    return np.asarray(value, array_dtype(dtype))


def shard(array: Array, dimension: int | None) -> tuple[Array, Array]:
    """Split a host array into the parts of two devices; the parts are views.

    Parameters
    ----------
    array : array
        The whole array.
    dimension : int or None
        Dimension along which it is split in halves; `STACKED`, if its first dimension has one index
        for each device; None, if both devices get the whole array.

    Raises
    ------
    ValueError
        If the array cannot be split into two equal parts along the dimension.
    """
    if dimension is None:
        return array, array
    if dimension == STACKED:
        first, second = array
    else:
        first, second = np.split(array, 2, axis=dimension)
    return first, second


def unshard(parts: Sequence[Array], dimension: int | None) -> Array:
    """Join the parts of two devices into a host array: the inverse of `shard`.

    If ``dimension`` is None, both devices have the whole array; device 0's is returned.
    """
    if dimension is None:
        return parts[0]
    return np.stack(parts) if dimension == STACKED else np.concatenate(parts, axis=dimension)


def unsharded_shape(shape: tuple[int, ...], dimension: int | None) -> tuple[int, ...]:
    """Return the shape of the host array whose parts on the devices have ``shape``.

    ``dimension`` is the one along which the array is split, `STACKED`, or None.
    """
    if dimension is None:
        return shape
    if dimension == STACKED:
        return (2, *shape)
    return (*shape[:dimension], 2 * shape[dimension], *shape[dimension + 1:])
