"""Interpreter rules for operations that create or move elements at statically known positions."""

import numpy as np

from sim.compiler.graph.arrays import Array, array_dtype
from sim.compiler.graph.ir import Operation
from sim.compiler.graph.semantics.rules import Context, evaluates

__all__ = ["pad_array"]


@evaluates("constant")
def _constant(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.asarray(operation.attributes["value"])


@evaluates("iota")
def _iota(operation: Operation, operands: list[Array], context: Context) -> Array:
    shape, dimension = operation.result.shape, operation.attributes["iota_dimension"]
    numbers = np.arange(shape[dimension]).astype(array_dtype(operation.result.dtype))
    aligned = numbers.reshape([-1 if i == dimension else 1 for i in range(len(shape))])
    return np.broadcast_to(aligned, shape).copy()


@evaluates("broadcast_in_dim")
def _broadcast_in_dim(operation: Operation, operands: list[Array], context: Context) -> Array:
    [x] = operands
    shape, dimensions = operation.result.shape, operation.attributes["broadcast_dimensions"]
    aligned = [1] * len(shape)
    for dimension, size in zip(dimensions, x.shape, strict=True):
        aligned[dimension] = size
    order = sorted(range(x.ndim), key=dimensions.__getitem__)
    return np.broadcast_to(np.transpose(x, order).reshape(aligned), shape).copy()


@evaluates("reshape")
def _reshape(operation: Operation, operands: list[Array], context: Context) -> Array:
    return operands[0].reshape(operation.result.shape)


@evaluates("relayout")
def _relayout(operation: Operation, operands: list[Array], context: Context) -> Array:
    return operands[0]


@evaluates("transpose")
def _transpose(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.transpose(operands[0], operation.attributes["permutation"])


@evaluates("slice")
def _slice(operation: Operation, operands: list[Array], context: Context) -> Array:
    attributes = operation.attributes
    bounds = zip(attributes["start_indices"], attributes["limit_indices"], attributes["strides"],
                 strict=True)
    return operands[0][tuple(slice(*bound) for bound in bounds)]


def pad_array(x: Array, value: Array, low: tuple[int, ...], high: tuple[int, ...],
              interior: tuple[int, ...]) -> Array:
    """Pad an array, as StableHLO's ``pad`` does.

    Parameters
    ----------
    x : array
        The array to pad.
    value : array
        A scalar: the value of all added elements.
    low, high : tuple of int
        Number of elements added before and after each dimension; negative numbers remove elements.
    interior : tuple of int
        Number of elements added between neighbours in each dimension.

    Returns
    -------
    array
        The padded array.
    """
    spread = [size + max(size - 1, 0) * gap for size, gap in zip(x.shape, interior, strict=True)]
    shape = [size + max(a, 0) + max(b, 0) for size, a, b in zip(spread, low, high, strict=True)]
    padded = np.full(shape, value, x.dtype)
    places = [slice(max(a, 0), max(a, 0) + size, gap + 1)
              for a, size, gap in zip(low, spread, interior, strict=True)]
    padded[tuple(places)] = x
    kept = [slice(max(-a, 0), max(size - max(-b, 0), -a, 0))
            for size, a, b in zip(shape, low, high, strict=True)]
    return padded[tuple(kept)]


@evaluates("pad")
def _pad(operation: Operation, operands: list[Array], context: Context) -> Array:
    (x, value), attributes = operands, operation.attributes
    return pad_array(x, value, attributes["edge_padding_low"], attributes["edge_padding_high"],
                     attributes["interior_padding"])


@evaluates("concatenate")
def _concatenate(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.concatenate(operands, axis=operation.attributes["dimension"])


@evaluates("reverse")
def _reverse(operation: Operation, operands: list[Array], context: Context) -> Array:
    return np.flip(operands[0], operation.attributes["dimensions"])
