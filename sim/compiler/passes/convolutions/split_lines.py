"""Convolutions of few features, computed with image columns along the lanes.

`sim.compiler.kernels.products.lines` generates their machine code.

The columns of the result are sorted by phase. With *S* sublanes and *Q* phases, lane *q* · *S* +
*p* holds column *p* · *Q* + *q*: position *p* of phase *q*. So a transpose of the tiled dimensions
gives a value split into phases (`split_phases`).

The input's columns are brought to that order by products with constant matrices of ones and zeros.
There is a matrix for each distance between the columns of the input and of the result. The products
lose no precision, because the array rounds the input to bf16 in any case. But they multiply all
columns of a line by zeros, so an infinity or a NaN makes further results of its line NaN.
"""

import math
from collections.abc import Sequence
from copy import deepcopy

import numpy as np

from hdl.config import Config
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import Operation, TensorType, Value
from sim.compiler.passes.expansion import Expansion

__all__ = ["Order", "as_phases", "few_features", "line_convolution", "pooled", "pooled_phases"]

Order = tuple[int, int, int, int]
"""Numbers of a value's dimensions for image lines, images, image columns, and features."""


def few_features(operation: Operation, takes: Order, positions: int, config: Config) -> bool:
    """Return whether a convolution has so few features that columns should lie along the lanes.

    Parameters
    ----------
    operation : Operation
        The convolution.
    takes : Order
        Numbers of the input's dimensions: lines, images, columns, features.
    positions : int
        Columns in each phase of the result.
    config : Config
        The chip.
    """
    a, (lhs, rhs) = operation.attributes, operation.operands
    window = rhs.shape[a["kernel_spatial_dimensions"][1]]
    lines = [operation.result.shape[i] for i in a["output_spatial_dimensions"]]
    padded = (lines[0] - 1) * a["window_strides"][0] + rhs.shape[
        a["kernel_spatial_dimensions"][0]] - a["padding"][0][0]
    return (lhs.shape[takes[3]] * a["window_strides"][1] <= config.sublanes
            and window > 1 and lines[1] // positions * config.sublanes <= config.lanes
            and a["lhs_dilation"] == a["rhs_dilation"] == (1, 1)
            and not any(a["window_reversal"]) and a["padding"][0][0] >= 0
            and padded >= lhs.shape[takes[0]]
            and all(name == "DEFAULT" for name in a["precision_config"]))


def line_convolution(operation: Operation, takes: Order, positions: int, config: Config,
                     to: Expansion) -> Value:
    """Replace a convolution by a `line_convolution`, whose columns run along the lanes.

    The parameters are those of `few_features`, which must return True for them.

    Returns
    -------
    Value
        The result, shape (lines, images, outputs, phases * sublanes).
    """
    a, (lhs, rhs) = operation.attributes, operation.operands
    columns = operation.result.shape[a["output_spatial_dimensions"][1]]
    size = rhs.shape[a["kernel_spatial_dimensions"][1]]
    low, stride = a["padding"][1][0], a["window_strides"][1]
    first = -(low // stride) - (low % stride > 0)
    offsets = (size - 1 - low) // stride - first + 1
    source = _lines(operation, takes, config, to)
    order = _selection(columns, positions, config.sublanes, range(first, first + offsets))
    ones = to.add("constant", (), TensorType(order.shape, lhs.dtype),
                  value=order.astype(array_dtype(lhs.dtype)))
    lines = to.add(
        "dot_general", (source, ones),
        TensorType((*source.shape[:3], *order.shape[:2]), lhs.dtype),
        lhs_batching_dimensions=(), rhs_batching_dimensions=(), lhs_contracting_dimensions=(3,),
        rhs_contracting_dimensions=(2,), precision_config=("DEFAULT", "DEFAULT"))
    filters = _filters(operation, -low - stride * first, offsets * stride, source.shape[2], to)
    images = lhs.shape[takes[1]]
    height = operation.result.shape[a["output_spatial_dimensions"][0]]
    return to.add(
        "line_convolution", (lines, filters),
        TensorType((height, images, filters.shape[0], order.shape[1]), operation.result.dtype),
        stride=a["window_strides"][0], precision_config=a["precision_config"])


def _lines(operation: Operation, takes: Order, config: Config, to: Expansion) -> Value:
    """Reshape the input to (images, padded lines, features of a group, columns of the result).

    Adjacent columns of the input form a group; the number of columns in a group is the stride of
    columns. Zeros pad the features of a group to a multiple of the sublanes. ``takes`` has the
    numbers of the input's dimensions: lines, images, columns, features.
    """
    a, (lhs, rhs) = operation.attributes, operation.operands
    stride = a["window_strides"][1]
    lines, images, columns, features = (lhs.shape[dimension] for dimension in takes)
    height, width = (operation.result.shape[i] for i in a["output_spatial_dimensions"])
    split = to.reshape(to.transpose(lhs, (takes[1], takes[0], *takes[2:])),
                       (images, lines, columns // stride, stride, features))
    flat = to.reshape(to.transpose(split, (0, 1, 3, 4, 2)),
                      (images, lines, stride * features, width))
    low = a["padding"][0][0]
    whole = (height - 1) * a["window_strides"][0] + rhs.shape[a["kernel_spatial_dimensions"][0]]
    return _padded(flat, {1: (low, whole - low - lines),
                          2: (0, -stride * features % config.sublanes)}, to)


def _filters(operation: Operation, low: int, columns: int, features: int, to: Expansion) -> Value:
    """Reshape the filter to (outputs, lines * (columns / stride) * features).

    Zeros pad the filter to ``columns`` columns; ``low`` columns of zeros precede its own. Adjacent
    columns form a group; the number of columns in a group is the stride. Zeros also pad the input
    features of a group to ``features``.
    """
    a, rhs = operation.attributes, operation.operands[1]
    order = (*a["kernel_spatial_dimensions"], a["kernel_input_feature_dimension"],
             a["kernel_output_feature_dimension"])
    filters = to.transpose(rhs, order)
    lines, size, inputs, outputs = filters.shape
    filters = _padded(filters, {1: (low, columns - low - size)}, to)
    stride = a["window_strides"][1]
    filters = to.reshape(filters, (lines, columns // stride, stride * inputs, outputs))
    filters = _padded(filters, {2: (0, features - stride * inputs)}, to)
    return to.transpose(to.reshape(filters, (math.prod(filters.shape[:3]), outputs)), (1, 0))


def _padded(value: Value, pads: dict[int, tuple[int, int]], to: Expansion,
            fill: Value | None = None) -> Value:
    """Pad dimensions of a value with zeros, or with ``fill``.

    ``pads`` maps a dimension to the numbers of elements before and after it.
    """
    if not any(map(any, pads.values())):
        return value
    low, high = ([pads.get(number, (0, 0))[side] for number in range(len(value.shape))]
                 for side in (0, 1))
    shape = tuple(size + a + b for size, a, b in zip(value.shape, low, high, strict=True))
    return to.add("pad", (value, fill or to.constant(0, value.dtype)),
                  TensorType(shape, value.dtype), edge_padding_low=tuple(low),
                  edge_padding_high=tuple(high), interior_padding=(0,) * len(shape))


def _selection(columns: int, positions: int, sublanes: int, distances: Sequence[int]
               ) -> "np.ndarray[tuple[int, int, int], np.dtype[np.float32]]":
    """Return matrices that select columns, shape (distances, lanes, columns).

    A line of ``columns`` columns has ``positions`` positions in each of its phases; each phase has
    ``sublanes`` lanes. The lane at position p of phase q has column p * phases + q of the line. In
    the matrix of a distance, the element at (lane, column) is 1 if ``column`` is the lane's column
    plus the distance; otherwise it is 0.
    """
    phases = columns // positions
    found = np.zeros((len(distances), phases * sublanes, columns), np.float32)
    for number, distance in enumerate(distances):
        for column in range(columns):
            position, phase = divmod(column, phases)
            if 0 <= column + distance < columns:
                found[number, phase * sublanes + position, column + distance] = 1
    return found


def as_phases(value: Value, positions: int, sublanes: int, to: Expansion) -> Value:
    """Split a value, whose columns run along the lanes, into phases.

    Parameters
    ----------
    value : Value
        Shape (lines, images, features, phases * sublanes).
    positions : int
        Columns in each phase.
    sublanes : int
        Sublanes of the chip.
    to : Expansion
        Receives the operations.

    Returns
    -------
    Value
        Shape (lines, images, phases, positions, features).
    """
    lines, images, features, lanes = value.shape
    rows = to.reshape(to.transpose(value, (0, 1, 3, 2)),
                      (lines, images, lanes // sublanes, sublanes, features))
    return to.slice(rows, 3, 0, positions)


def pooled(operation: Operation, value: Value, dimension: int, along: int, to: Expansion,
           padding: tuple[int, int] | None = None) -> Value:
    """Apply a ``reduce_window`` along a single dimension.

    Parameters
    ----------
    operation : Operation
        The ``reduce_window``.
    value : Value
        The operand, perhaps with its dimensions in another order or split.
    dimension, along : int
        The number of that dimension in ``value``, and in the operation's attributes.
    to : Expansion
        Receives the operation.
    padding : tuple of (int, int), optional
        Padding of the dimension; by default that of the operation.
    """
    a, rank = operation.attributes, len(value.shape)
    pads = a["padding"][along] if padding is None else padding

    def alone(number: int) -> tuple[int, ...]:
        return tuple(number if each == dimension else 1 for each in range(rank))

    window, stride = a["window_dimensions"][along], a["window_strides"][along]
    count = (value.shape[dimension] + sum(pads) - window) // stride + 1
    shape = (*value.shape[:dimension], count, *value.shape[dimension + 1:])
    return to.add(
        "reduce_window", (value, operation.operands[1]), TensorType(shape, value.dtype),
        deepcopy(operation.regions), window_dimensions=alone(window), window_strides=alone(stride),
        padding=tuple(tuple(pads) if each == dimension else (0, 0) for each in range(rank)),
        base_dilations=(1,) * rank, window_dilations=(1,) * rank)


def pooled_phases(operation: Operation, value: Value, along: int, to: Expansion) -> Value | None:
    """Apply a ``reduce_window`` along the columns of a value that is split into phases.

    Parameters
    ----------
    operation : Operation
        The ``reduce_window``.
    value : Value
        The operand, shape (lines, images, phases, positions, features).
    along : int
        The dimension of columns, as numbered in the operation's attributes.
    to : Expansion
        Receives the operations.

    Returns
    -------
    Value or None
        The result, split into phases; None if the windows do not match the phases.
    """
    a, (_, _, phases, positions, _) = operation.attributes, value.shape
    window, stride = a["window_dimensions"][along], a["window_strides"][along]
    low, high = a["padding"][along]
    columns = (phases * positions + low + high - window) // stride + 1
    if phases % stride or columns * stride != phases * positions:
        return None
    # The windows of the last phase end here. Phase number `phases` + n is phase n of the next
    # position.
    end = (phases // stride - 1) * stride + window - low
    if not 0 <= low <= phases or not 0 < end <= 2 * phases:
        return None
    fill, parts = operation.operands[1], []
    if low:
        last = to.slice(value, 2, phases - low, low)
        parts.append(_padded(to.slice(last, 3, 0, positions - 1), {3: (1, 0)}, to, fill)
                     if positions > 1 else _filled(last, fill, to))
    parts.append(to.slice(value, 2, 0, min(phases, end)))
    if end > phases:
        first = to.slice(value, 2, 0, end - phases)
        parts.append(_padded(to.slice(first, 3, 1, positions - 1), {3: (0, 1)}, to, fill)
                     if positions > 1 else _filled(first, fill, to))
    return pooled(operation, to.concatenate(parts, 2), 2, along, to, (0, 0))


def _filled(value: Value, fill: Value, to: Expansion) -> Value:
    return to.broadcast(fill, value.shape, ())
