"""Dense layers as the user passes them, and their checks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sim.compiler.graph.ir import DType

__all__ = ["Dense", "LayerKind", "check_layers", "check_matrix"]

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LayerKind:
    """What the program of a dense layer depends on, in addition to the shape of its input.

    Attributes
    ----------
    columns : int
        Number of columns of the result.
    transpose : bool
        Whether the input is multiplied by the transpose of the weights.
    relu : bool
        Whether ReLU, the maximum with +0.0, is applied last.
    bias : bool
        Whether the layer has a bias.
    dtype : DType
        Type of the weights: F32 or BF16.
    """

    columns: int
    transpose: bool
    bias: bool
    relu: bool
    dtype: DType = DType.F32


@dataclass(frozen=True, eq=False)
class Dense:
    """A dense layer, ``relu(x @ weights + bias)``, from K columns of ``x`` to N of the result.

    Attributes
    ----------
    weights : array of float32 or bfloat16, shape (K, N); (N, K) if ``transpose``
        The weights; float32 is rounded to bfloat16 as it enters the array.
    bias : array of float32, shape (N,), optional
        Vector that is added to each row of the product, in fp32.
    relu : bool
        Whether ReLU, the maximum with +0.0 (the operation ``fmax``), is applied last: NaN stays
        NaN, and -0.0 becomes +0.0.
    transpose : bool
        Whether ``x`` is multiplied by the transpose of ``weights``.
    """

    weights: npt.NDArray[Any]
    bias: Float32 | None = None
    relu: bool = False
    transpose: bool = False

    @property
    def kind(self) -> LayerKind:
        """The properties on which the layer's program depends."""
        return LayerKind(self.weights.shape[0 if self.transpose else 1], self.transpose,
                         self.bias is not None, self.relu,
                         DType.F32 if self.weights.dtype == np.float32 else DType.BF16)


def check_matrix(name: str, value: object) -> npt.NDArray[Any]:
    """Check an operand, and return it.

    Raises
    ------
    TypeError, ValueError
        If ``value`` is not a matrix of float32 or bfloat16; the message calls it ``name``.
    """
    # numpy counts a masked array as an array, but no product can leave out the masked elements.
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a numpy array, not {type(value).__name__}")
    if value.dtype not in (np.float32, ml_dtypes.bfloat16):
        raise TypeError(f"{name} must be of dtype float32 or bfloat16, not {value.dtype}")
    if value.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, not shape {value.shape!r}")
    return value


def check_layers(layers: Sequence[object], depth: int) -> list[Dense]:
    """Check layers for an input of ``depth`` columns, and return them.

    Raises
    ------
    TypeError, ValueError
        If there is no layer, or a layer is invalid or does not match the columns of its input.
    """
    if isinstance(layers, Dense):
        raise TypeError("layers must be a sequence of Dense, not one Dense")
    if not isinstance(layers, Sequence):
        raise TypeError(f"layers must be a sequence of Dense, not {layers!r}")
    if not layers:
        raise ValueError(f"layers must have at least one Dense, not {layers!r}")
    if not depth:
        raise ValueError("x must have one column or more, not 0")
    checked: list[Dense] = []
    before = "x"
    for number, layer in enumerate(layers):
        name = f"layers[{number}]"
        checked.append(_check_layer(name, layer, depth, before))
        depth, before = checked[-1].kind.columns, name
    return checked


def _check_layer(name: str, layer: object, depth: int, before: str) -> Dense:
    """Check a layer whose input has ``depth`` columns, and return it.

    Messages call the layer ``name`` and its input ``before``.
    """
    if not isinstance(layer, Dense):
        raise TypeError(f"{name} must be a Dense, not {layer!r}")
    for flag in ("relu", "transpose"):
        if not isinstance(getattr(layer, flag), bool):
            raise TypeError(f"{name}.{flag} must be True or False, not {getattr(layer, flag)!r}")
    shape, size = check_matrix(f"{name}.weights", layer.weights).shape, layer.kind.columns
    if not size or shape != ((size, depth) if layer.transpose else (depth, size)):
        kind = "columns" if layer.transpose else "rows"
        raise ValueError(f"{name}.weights must have {depth} {kind}, as many as {before} has "
                         f"columns, and no dimension of size 0, not shape {shape!r}")
    bias = layer.bias
    if bias is not None:
        if not isinstance(bias, np.ndarray) or isinstance(bias, np.ma.MaskedArray):
            raise TypeError(f"{name}.bias must be a numpy array, not {type(bias).__name__}")
        if bias.dtype != np.float32:
            raise TypeError(f"{name}.bias must be of dtype float32, not {bias.dtype}")
        if bias.shape != (size,):
            raise ValueError(f"{name}.bias must be of shape ({size},), not {bias.shape!r}")
    return layer
