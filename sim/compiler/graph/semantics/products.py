"""Interpreter rules for products: ``dot_general`` and convolutions.

Floats are accumulated in float64, and the result is rounded once. With `Context.passes`, each
float32 operand is first split into bfloat16 parts whose sum is about the operand, as on the device.
The product's precision determines the number of parts: one for DEFAULT, two for HIGH, three for
HIGHEST. As on the device, part i of one operand is multiplied by part j of the other, counted from
0, if i + j is less than the number of parts. The result is the sum of these products. Where the
product of the unsplit operands is infinite or NaN, the result is that product.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from sim.compiler.graph.arrays import Array, array_dtype
from sim.compiler.graph.ir import Operation, TensorType, Value
from sim.compiler.graph.semantics.elementwise import round_to
from sim.compiler.graph.semantics.movement import pad_array
from sim.compiler.graph.semantics.rules import Context, evaluates

__all__ = ["PARTS", "split"]

PARTS = {"DEFAULT": 1, "HIGH": 2, "HIGHEST": 3}
"""Number of bfloat16 parts of a float32 operand, by precision."""


def split(x: Array, parts: int) -> list[Array]:
    """Split float32 numbers into bfloat16 parts, the greatest first.

    Parameters
    ----------
    x : array of float32
        Numbers to split.
    parts : int
        Number of parts.

    Returns
    -------
    list of array of float64
        The parts, each a bfloat16 number. The first is ``x``, rounded; each further part is the
        remaining difference, rounded. For an infinite number or NaN, the first part is that number
        and all others are zero.
    """
    left, found = x.astype(np.float32), []
    for _ in range(parts):
        part = left.astype(ml_dtypes.bfloat16).astype(np.float32)
        found.append(part.astype(np.float64))
        left = np.where(np.isfinite(part), left - part, np.float32(0)).astype(np.float32)
    return found


def _product(operation: Operation, a: Array, b: Array, context: Context,
             multiply: Callable[[Array, Array], Array]) -> Array:
    """Compute the product ``operation`` of arrays ``a`` and ``b`` by calls of ``multiply``.

    Floats are multiplied and added in float64, integers exactly; the result is rounded once, to the
    type of the operation's result. With `Context.passes`, floats are split into parts first.
    """
    dtype = array_dtype(operation.result.dtype)
    if dtype.kind in "biu":
        wide: Any = np.int64 if dtype == np.bool_ else dtype
        return multiply(a.astype(wide), b.astype(wide)).astype(dtype)
    parts = max(PARTS[precision] for precision in
                operation.attributes.get("precision_config", ("DEFAULT", "DEFAULT")))
    exact = multiply(a.astype(np.float64), b.astype(np.float64))
    if not context.passes:
        return round_to(exact, dtype)
    lefts, rights = split(a, parts), split(b, parts)
    total = sum(multiply(left, right) for i, left in enumerate(lefts)
                for j, right in enumerate(rights) if i + j < parts)
    # An infinite number times a part that is zero would be NaN: use the unsplit product instead.
    return round_to(np.where(np.isfinite(exact), total, exact), dtype)


@evaluates("dot_general")
def _dot_general(operation: Operation, operands: list[Array], context: Context) -> Array:
    attributes = operation.attributes
    a, b = operands

    def arrange(x: Array, batch: tuple[int, ...], contract: tuple[int, ...],
                ) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
        free = tuple(i for i in range(x.ndim) if i not in batch and i not in contract)
        batches = tuple(x.shape[i] for i in batch)
        frees = tuple(x.shape[i] for i in free)
        depth = int(np.prod([x.shape[i] for i in contract], dtype=np.int64))
        moved = np.transpose(x, (*batch, *free, *contract))
        return (moved.reshape(int(np.prod(batches, dtype=np.int64)),
                              int(np.prod(frees, dtype=np.int64)), depth), batches, frees)

    left, batches, rows = arrange(a, tuple(attributes["lhs_batching_dimensions"]),
                                  tuple(attributes["lhs_contracting_dimensions"]))
    right, _, columns = arrange(b, tuple(attributes["rhs_batching_dimensions"]),
                                tuple(attributes["rhs_contracting_dimensions"]))
    result = _product(operation, left, right, context,
                      lambda x, y: np.matmul(x, np.swapaxes(y, 1, 2)))
    return result.reshape((*batches, *rows, *columns))


@evaluates("convolution")
def _convolution(operation: Operation, operands: list[Array], context: Context) -> Array:
    attributes = operation.attributes
    lhs = np.transpose(operands[0], (attributes["input_batch_dimension"],
                                     attributes["input_feature_dimension"],
                                     *attributes["input_spatial_dimensions"]))
    rhs = np.transpose(operands[1], (attributes["kernel_output_feature_dimension"],
                                     attributes["kernel_input_feature_dimension"],
                                     *attributes["kernel_spatial_dimensions"]))
    spatial = lhs.ndim - 2
    reverse = attributes.get("window_reversal", (False,) * spatial)
    rhs = np.flip(rhs, tuple(i + 2 for i in range(spatial) if reverse[i]))
    padding = attributes["padding"]
    lhs = pad_array(lhs, np.zeros((), lhs.dtype), (0, 0, *(0 for _ in padding)),
                    (0, 0, *(0 for _ in padding)),
                    (0, 0, *(step - 1 for step in attributes["lhs_dilation"])))
    lhs = pad_array(lhs, np.zeros((), lhs.dtype), (0, 0, *(low for low, _ in padding)),
                    (0, 0, *(high for _, high in padding)), (0,) * lhs.ndim)
    result = _product(operation, lhs, rhs, context,
                      lambda x, y: _convolve(x, y, operation))
    order = [0] * result.ndim
    for source, target in enumerate((attributes["output_batch_dimension"],
                                     attributes["output_feature_dimension"],
                                     *attributes["output_spatial_dimensions"])):
        order[target] = source
    return np.transpose(result, order)


def _convolve(lhs: Array, rhs: Array, operation: Operation) -> Array:
    """Convolve the input ``lhs`` with the filter ``rhs``, as ``operation`` specifies.

    The input has shape (batch, features, ...), the filter (outputs, features of a
    feature group, ...), and the result (batch, outputs, ...). The input is already padded and
    dilated.
    """
    attributes = operation.attributes
    groups, batches = attributes["feature_group_count"], attributes["batch_group_count"]
    batch, outputs = lhs.shape[0] // batches, rhs.shape[0]
    shape = tuple(operation.result.shape[i] for i in attributes["output_spatial_dimensions"])
    count = max(groups, batches)
    # A group maps its own features, or its own part of the batch, to its own outputs.
    if batches > 1:
        lhs = lhs.reshape(batches, batch, *lhs.shape[1:])
    else:
        split_features = lhs.reshape(batch, groups, lhs.shape[1] // max(groups, 1), *lhs.shape[2:])
        lhs = np.swapaxes(split_features, 0, 1)
    rhs = rhs.reshape(count, outputs // max(count, 1), *rhs.shape[1:])
    total = np.zeros((count, batch, *shape, outputs // max(count, 1)), lhs.dtype)
    for offset in np.ndindex(*rhs.shape[3:]):
        positions = [slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
                  if size else slice(0, 0)
                  for at, dilation, size, stride in zip(
                      offset, attributes["rhs_dilation"], shape, attributes["window_strides"],
                      strict=True)]
        window = np.moveaxis(lhs[(slice(None),) * 3 + tuple(positions)], 2, -1)
        weights = rhs[(slice(None),) * 3 + offset]
        flat = window.reshape(count, -1, window.shape[-1])
        total += np.matmul(flat, np.swapaxes(weights, 1, 2)).reshape(total.shape)
    # From shape (groups, batch, ..., outputs of a group) to (batch, outputs, ...).
    return np.moveaxis(np.moveaxis(total, 0, -2).reshape(batch, *shape, outputs), -1, 1)


@evaluates("phase_convolution")
def _phase_convolution(operation: Operation, operands: list[Array], context: Context) -> Array:
    lines, images, phases, positions, features = operands[0].shape
    whole = np.swapaxes(operands[0], 2, 3).reshape(lines, images, phases * positions, features)
    result, together = operation.result.shape, operation.attributes["columns"]
    columns = (*result[:2], result[2] * result[3] // together, result[4] * together)
    plain = Operation("convolution", operation.operands, (Value(TensorType(
        columns, operation.result.dtype)),), {
        **operation.attributes, "input_batch_dimension": 1, "input_feature_dimension": 3,
        "input_spatial_dimensions": (0, 2), "output_batch_dimension": 1,
        "output_feature_dimension": 3, "output_spatial_dimensions": (0, 2),
        "feature_group_count": 1, "batch_group_count": 1})
    found = _convolution(plain, [whole, operands[1]], context)
    return np.swapaxes(found.reshape(*result[:2], result[3], result[2], result[4]), 2, 3)


@evaluates("line_convolution")
def _line_convolution(operation: Operation, operands: list[Array], context: Context) -> Array:
    lines, filters = operands
    images, _, features, offsets, columns = lines.shape
    count, stride = operation.result.shape[0], operation.attributes["stride"]
    window = filters.shape[1] // (offsets * features)
    # The shape becomes (images, lines, offsets of lines, offsets, features, columns).
    windows = np.stack([lines[:, at:at + window] for at in range(0, count * stride, stride)], 1)
    deep = np.swapaxes(windows, 3, 4).reshape(images, count, filters.shape[1], columns)
    result = _product(operation, np.broadcast_to(filters, (images, count, *filters.shape)), deep,
                      context, np.matmul)
    return np.swapaxes(result, 0, 1)
