"""Dense layers as a user gives them, and what is asked of them."""

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["Dense", "checked_layer", "columns_of", "operand"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Dense:
    """A dense layer, ``relu(x @ weights + bias)``.

    Attributes
    ----------
    weights : array of float32 or bfloat16, shape (K, N); (N, K) if ``transpose``
        float32 is rounded to bfloat16 at the array's edge.
    bias : array of float32, shape (N,), optional
        Added in fp32.
    relu : bool
        Take ``fmax`` with +0.0 at last: NaN stays, -0.0 does not.
    transpose : bool
        Multiply by the transpose of ``weights``.
    """

    weights: npt.NDArray[Any]
    bias: Float32 | None = None
    relu: bool = False
    transpose: bool = False


def operand(name: str, value: object) -> Float32:
    """The matrix as float32, which holds every bfloat16 exactly.

    Raises
    ------
    TypeError, ValueError
        If it is no matrix of float32 or bfloat16.
    """
    # A masked array is one to numpy, but there is no product without the masked elements.
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a numpy array, not {type(value).__name__}")
    if value.dtype not in (np.float32, ml_dtypes.bfloat16):
        raise TypeError(f"{name} must be of dtype float32 or bfloat16, not {value.dtype}")
    if value.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {value.shape!r}")
    # Signalling NaN and subnormals pass unharmed: the hardware decides what becomes of them.
    return value.astype(np.float32)


def columns_of(layer: Dense) -> int:
    """Columns of what the layer makes."""
    return layer.weights.shape[0 if layer.transpose else 1]


def checked_layer(name: str, layer: object, depth: int, before: str) -> Dense:
    """The layer with weights in float32, if it is one for the ``depth`` columns of ``before``.

    Raises
    ------
    TypeError, ValueError
        If it is not; the message calls it ``name``.
    """
    if not isinstance(layer, Dense):
        raise TypeError(f"{name} must be a Dense, not {layer!r}")
    for flag in ("relu", "transpose"):
        if not isinstance(getattr(layer, flag), bool):
            raise TypeError(f"{name}.{flag} must be True or False, not {getattr(layer, flag)!r}")
    checked = replace(layer, weights=operand(f"{name}.weights", layer.weights))
    shape, size = checked.weights.shape, columns_of(checked)
    if not depth or not size or shape != ((size, depth) if layer.transpose else (depth, size)):
        kind = "columns" if layer.transpose else "rows"
        raise ValueError(f"{name}.weights must have as many {kind} as {before} has columns, "
                         f"{depth}, and no size 0, not shape {shape!r}")
    bias = layer.bias
    if bias is not None:
        if (not isinstance(bias, np.ndarray) or isinstance(bias, np.ma.MaskedArray)
                or bias.dtype != np.float32):
            raise TypeError(f"{name}.bias must be an array of float32, not {bias!r}")
        if bias.shape != (size,):
            raise ValueError(f"{name}.bias must be of shape ({size},), not {bias.shape!r}")
    return checked
