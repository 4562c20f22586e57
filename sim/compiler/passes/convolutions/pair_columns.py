"""Puts pairs of image columns in one row, for convolutions that fill at most half of the lanes.

For example, a filter of 3 x 3 offsets with 64 input and 64 output features fills half of the
array's 128 columns. A filter that is one image column wider, padded with zeros, computes the
outputs of two adjacent image columns at once. This halves the number of rows. The four offsets in a
line of the wider filter fill two weight tiles; three offsets would leave half of the second one
empty.

Columns are paired only if all operations that use the result are elementwise, or 1 x 1
convolutions. Elementwise operations keep the pairs. The filter of such a 1 x 1 convolution becomes
block diagonal, with two copies of itself.

The zeros in these filters are multiplied by numbers that the original convolution does not use. So
an infinity or a NaN in one column of a pair makes the result of the other column NaN, too.
"""

import math
from typing import Any

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.passes.expansion import Expansion

__all__ = ["Pairing", "block_diagonal", "for_two_columns", "repeated_twice"]

_REPEATED = frozenset({"broadcast_in_dim", "constant"})


class Pairing:
    """Chooses the convolutions of a graph that compute two columns at once.

    Parameters
    ----------
    graph : Graph
        The graph, before its convolutions are rewritten.
    config : Config
        The chip.

    Attributes
    ----------
    made : frozenset of Value
        Results of the chosen convolutions.
    """

    def __init__(self, graph: Graph, config: Config) -> None:
        self._config = config
        self._users = graph.users()
        self._producers = graph.producers()
        self._outputs = set(graph.outputs)
        self.made = frozenset(operation.result for operation in graph.operations
                              if self._gains(operation) and self._stays_paired(operation.result))

    def _gains(self, operation: Operation) -> bool:
        """Return whether computing two columns at once needs fewer weight tiles."""
        if operation.kind != "convolution":
            return False
        a, filters, lanes = operation.attributes, operation.operands[1].shape, self._config.lanes
        if len(a["window_strides"]) != 2 or not filters or 0 in filters:
            return False
        features = filters[a["kernel_input_feature_dimension"]]
        outputs = filters[a["kernel_output_feature_dimension"]]
        width = filters[a["kernel_spatial_dimensions"][1]]
        steps = *a["window_strides"], *a["lhs_dilation"], *a["rhs_dilation"]
        if (set(steps) != {1} or any(a["window_reversal"]) or width == 1
                or features % self._config.sublanes or lanes % features or 2 * outputs > lanes):
            return False
        together = lanes // features
        return -(-(width + 1) // together) < 2 * -(-width // together)

    def _stays_paired(self, result: Value) -> bool:
        """Return whether all uses of a result accept paired columns, and one use is a convolution.

        A 1 x 1 convolution accepts them (`takes_pairs`). An elementwise operation accepts them if
        its other operands can be paired, and all uses of its result accept them. Other operations,
        and outputs of the graph, do not accept them.
        """
        values, convolutions = [result], 0
        for value in values:
            if value in self._outputs:
                return False
            for user in self._users.get(value, ()):
                if user.kind in ELEMENTWISE:
                    if any(operand not in values and operand.shape and (
                            operand not in self._producers
                            or self._producers[operand].kind not in _REPEATED)
                           for operand in user.operands):
                        return False
                    if user.result not in values:
                        values.append(user.result)
                elif self.takes_pairs(user) and user.operands[1] is not value:
                    convolutions += 1
                else:
                    return False
        return convolutions > 0

    def takes_pairs(self, operation: Operation) -> bool:
        """Return whether an operation accepts paired columns as its input.

        It does if it is a 1 x 1 convolution whose output features fill whole rows.
        """
        if operation.kind != "convolution":
            return False
        a, filters = operation.attributes, operation.operands[1].shape
        steps = *a["window_strides"], *a["lhs_dilation"], *a["rhs_dilation"]
        return (set(steps) == {1} and not any(map(any, a["padding"]))
                and math.prod(filters[i] for i in a["kernel_spatial_dimensions"]) == 1
                and a["feature_group_count"] * a["batch_group_count"] == 1
                and filters[a["kernel_output_feature_dimension"]] % self._config.lanes == 0)


def for_two_columns(filters: Value, attributes: dict[str, Any], to: Expansion
                    ) -> tuple[Value, dict[str, Any]]:
    """Return a filter that computes the outputs of two adjacent columns at once.

    ``filters`` is the filter for one column, and ``attributes`` are those of the convolution. Also
    return the attributes that change with the filter.
    """
    plain = _in_order(filters, attributes, to)
    strides = attributes["window_strides"]
    return (to.concatenate([_padded(plain, 1, 0, 1, to), _padded(plain, 1, 1, 0, to)], 3),
            {**_ORDER, "window_strides": (strides[0], 2 * strides[1])})


def block_diagonal(filters: Value, attributes: dict[str, Any], to: Expansion
                   ) -> tuple[Value, dict[str, Any]]:
    """Return a block diagonal filter, whose two blocks are copies of a 1 x 1 filter.

    ``filters`` is the 1 x 1 filter, and ``attributes`` are those of the convolution. Also return
    the attributes that change with the filter.
    """
    plain = _in_order(filters, attributes, to)
    outputs = plain.shape[3]
    return (to.concatenate([_padded(plain, 3, 0, outputs, to), _padded(plain, 3, outputs, 0, to)],
                           2), {**_ORDER, "columns": 2})


def repeated_twice(value: Value, to: Expansion) -> Value:
    """Concatenate a value with itself along its last dimension, as one broadcast.

    The value must be the result of a broadcast.
    """
    producer = to.producers[value]
    [source], dimensions = producer.operands, producer.attributes["broadcast_dimensions"]
    last = len(value.shape) - 1
    if last in dimensions and source.shape[dimensions.index(last)] > 1:
        source = to.concatenate([source, source], dimensions.index(last))
    return to.broadcast(source, (*value.shape[:last], 2 * value.shape[last]), dimensions)


_ORDER = {"kernel_spatial_dimensions": (0, 1), "kernel_input_feature_dimension": 2,
          "kernel_output_feature_dimension": 3}


def _in_order(filters: Value, attributes: dict[str, Any], to: Expansion) -> Value:
    """Transpose a filter to dimensions (lines, columns, inputs, outputs).

    ``attributes`` are those of the convolution; they number the filter's present dimensions.
    """
    return to.transpose(filters, (*attributes["kernel_spatial_dimensions"],
                                  attributes["kernel_input_feature_dimension"],
                                  attributes["kernel_output_feature_dimension"]))


def _padded(value: Value, dimension: int, low: int, high: int, to: Expansion) -> Value:
    """Pad one dimension of a value with ``low`` zeros before and ``high`` zeros after it."""
    rank = range(len(value.shape))
    pads = [tuple(pad * (number == dimension) for number in rank) for pad in (low, high)]
    shape = tuple(size + before + behind for size, before, behind in zip(
        value.shape, *pads, strict=True))
    return to.add("pad", (value, to.constant(0, value.dtype)), TensorType(shape, value.dtype),
                  edge_padding_low=pads[0], edge_padding_high=pads[1],
                  interior_padding=(0,) * len(shape))
