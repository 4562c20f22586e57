"""Two adjacent columns in a row: for convolutions whose features fill half of the lanes.

A kernel that is wider than one column, of 64 features for 64, say, fills half of the array's 128
columns. A kernel that is one column wider can make the outputs of two adjacent columns at once: the
rows are half as many, and their offsets fill the lanes better. If only elementwise operations and
convolutions of one offset use the result, its columns stay in pairs until then, and the kernel of
such a convolution gets two blocks on its diagonal.

The zeros in these kernels meet numbers that the convolution itself does not multiply: an infinity
or a NaN in a column makes a NaN of the other result of a pair, too.
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
    """Which convolutions of a graph make two columns at once.

    Parameters
    ----------
    graph : Graph
        With plain convolutions.
    config : Config

    Attributes
    ----------
    made : frozenset of Value
        Results of these convolutions.
    """

    def __init__(self, graph: Graph, config: Config) -> None:
        self._config = config
        self._users = graph.users()
        self._producers = graph.producers()
        self._outputs = set(graph.outputs)
        self.made = frozenset(operation.result for operation in graph.operations
                              if self._gains(operation) and self._stays_paired(operation.result))

    def _gains(self, operation: Operation) -> bool:
        """Whether a convolution needs fewer tiles if it makes two columns at once."""
        if operation.kind != "convolution":
            return False
        a, kernel, lanes = operation.attributes, operation.operands[1].shape, self._config.lanes
        if len(a["window_strides"]) != 2 or not kernel or 0 in kernel:
            return False
        features = kernel[a["kernel_input_feature_dimension"]]
        outputs = kernel[a["kernel_output_feature_dimension"]]
        width = kernel[a["kernel_spatial_dimensions"][1]]
        steps = *a["window_strides"], *a["lhs_dilation"], *a["rhs_dilation"]
        if (set(steps) != {1} or any(a["window_reversal"]) or width == 1
                or features % self._config.sublanes or lanes % features or 2 * outputs > lanes):
            return False
        together = lanes // features
        return -(-(width + 1) // together) < 2 * -(-width // together)

    def _stays_paired(self, result: Value) -> bool:
        """Whether all that uses a result takes pairs of columns."""
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
        """Whether an operation is a convolution of one offset, whose results fill the lanes."""
        if operation.kind != "convolution":
            return False
        a, kernel = operation.attributes, operation.operands[1].shape
        steps = *a["window_strides"], *a["lhs_dilation"], *a["rhs_dilation"]
        return (set(steps) == {1} and not any(map(any, a["padding"]))
                and math.prod(kernel[i] for i in a["kernel_spatial_dimensions"]) == 1
                and a["feature_group_count"] * a["batch_group_count"] == 1
                and kernel[a["kernel_output_feature_dimension"]] % self._config.lanes == 0)


def for_two_columns(kernel: Value, attributes: dict[str, Any], to: Expansion
                    ) -> tuple[Value, dict[str, Any]]:
    """A kernel that makes the outputs of two columns, and attributes of its convolution."""
    plain = _in_order(kernel, attributes, to)
    strides = attributes["window_strides"]
    return (to.concatenate([_padded(plain, 1, 0, 1, to), _padded(plain, 1, 1, 0, to)], 3),
            {**_ORDER, "window_strides": (strides[0], 2 * strides[1])})


def block_diagonal(kernel: Value, attributes: dict[str, Any], to: Expansion
                   ) -> tuple[Value, dict[str, Any]]:
    """A kernel of one offset, twice on the diagonal, and attributes of its convolution."""
    plain = _in_order(kernel, attributes, to)
    outputs = plain.shape[3]
    return (to.concatenate([_padded(plain, 3, 0, outputs, to), _padded(plain, 3, outputs, 0, to)],
                           2), {**_ORDER, "columns": 2})


def repeated_twice(value: Value, to: Expansion) -> Value:
    """A broadcast, with its last dimension twice."""
    producer = to.producers[value]
    [source], dimensions = producer.operands, producer.attributes["broadcast_dimensions"]
    last = len(value.shape) - 1
    if last in dimensions and source.shape[dimensions.index(last)] > 1:
        source = to.concatenate([source, source], dimensions.index(last))
    return to.broadcast(source, (*value.shape[:last], 2 * value.shape[last]), dimensions)


_ORDER = {"kernel_spatial_dimensions": (0, 1), "kernel_input_feature_dimension": 2,
          "kernel_output_feature_dimension": 3}


def _in_order(kernel: Value, attributes: dict[str, Any], to: Expansion) -> Value:
    """A kernel as (lines, columns, inputs, outputs)."""
    return to.transpose(kernel, (*attributes["kernel_spatial_dimensions"],
                                 attributes["kernel_input_feature_dimension"],
                                 attributes["kernel_output_feature_dimension"]))


def _padded(value: Value, dimension: int, low: int, high: int, to: Expansion) -> Value:
    """A value with zeros before and behind a dimension."""
    rank = range(len(value.shape))
    pads = [tuple(pad * (number == dimension) for number in rank) for pad in (low, high)]
    shape = tuple(size + before + behind for size, before, behind in zip(
        value.shape, *pads, strict=True))
    return to.add("pad", (value, to.constant(0, value.dtype)), TensorType(shape, value.dtype),
                  edge_padding_low=pads[0], edge_padding_high=pads[1],
                  interior_padding=(0,) * len(shape))
