"""Numpy arrays of the graph's types of elements."""

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
    """The numpy type of arrays with elements of ``dtype``; bf16 is that of ml_dtypes."""
    return _NUMPY[dtype]


def dtype_of(dtype: npt.DTypeLike) -> DType:
    """The graph's type for a numpy type.

    Raises
    ------
    TypeError
        If the graph has none.
    """
    found = _DTYPES.get(np.dtype(dtype))
    if found is None:
        raise TypeError(f"dtype must be one of {', '.join(map(str, _DTYPES))}, "
                        f"not {np.dtype(dtype)}")
    return found


def type_of(array: Array) -> TensorType:
    """The type of the value that an array of the host becomes.

    Raises
    ------
    TypeError
        If the graph has no type for its elements.
    """
    return TensorType(tuple(array.shape), dtype_of(array.dtype))


def as_array(value: Any, dtype: DType) -> Array:
    """Make an array of elements of ``dtype``; a value of this type is not copied."""
    return np.asarray(value, array_dtype(dtype))


def shard(array: Array, dimension: int | None) -> tuple[Array, Array]:
    """Parts of the host's array that each of two devices has (see `Sharding`); views of it.

    Raises
    ------
    ValueError
        If it has no two halves along the dimension.
    """
    if dimension is None:
        return array, array
    if dimension == STACKED:
        first, second = array
    else:
        first, second = np.split(array, 2, axis=dimension)
    return first, second


def unshard(parts: Sequence[Array], dimension: int | None) -> Array:
    """The host's array of what two devices have; of what both have, that of device 0."""
    if dimension is None:
        return parts[0]
    return np.stack(parts) if dimension == STACKED else np.concatenate(parts, axis=dimension)


def unsharded_shape(shape: tuple[int, ...], dimension: int | None) -> tuple[int, ...]:
    """The shape of the host's array, for that of a device."""
    if dimension is None:
        return shape
    if dimension == STACKED:
        return (2, *shape)
    return (*shape[:dimension], 2 * shape[dimension], *shape[dimension + 1:])
