"""The graph of dense layers, for one core or divided between two."""

from collections.abc import Sequence
from enum import Enum

import numpy as np

from sim.compiler.dense.layers import LayerKind
from sim.compiler.graph.ir import DType, Graph, Sharding, TensorType, Value

__all__ = ["Division", "layers_graph"]


class Division(Enum):
    """How two cores share layers.

    With ``ROWS`` or ``COLUMNS``, each core computes half of the rows or columns of every result.
    With ``NONE``, one core computes everything.
    """

    NONE = "none"
    ROWS = "rows"
    COLUMNS = "columns"


def layers_graph(rows: int, depth: int, kinds: Sequence[LayerKind], division: Division) -> Graph:
    """Write the graph of dense layers; each layer's input is the result of the layer before.

    Parameters
    ----------
    rows, depth : int
        Shape of the first layer's input. `Division.ROWS` rounds ``rows`` up to an even number.
    kinds : sequence of LayerKind
        Kinds of the layers. `Division.COLUMNS` rounds their numbers of columns up to even numbers.
    division : Division
        How the cores share the layers. By rows, the cores exchange nothing. By columns, they
        exchange their halves of each layer's result, except the last layer's.

    Returns
    -------
    Graph
        Inputs are the first layer's input, and for each layer its weights, followed by its bias if
        it has one; outputs are the results of all layers. All are float32, except weights, which
        have the types of the layers' kinds.
    """
    return _Writer(rows, depth, division).write(kinds)


class _Writer:
    """Writes the graph of dense layers, layer by layer."""

    def __init__(self, rows: int, depth: int, division: Division) -> None:
        self._division = division
        self._rows = -(-rows // 2) if division is Division.ROWS else rows
        self._graph = Graph(name="layers")
        self._cuts: list[int | None] = []
        self._x = self._input((self._rows, depth), 0 if division is Division.ROWS else None)

    def write(self, kinds: Sequence[LayerKind]) -> Graph:
        """Write and return the graph of layers of the kinds ``kinds``, in this order."""
        by_columns = self._division is Division.COLUMNS
        for number, kind in enumerate(kinds):
            result = self._layer(kind)
            self._graph.outputs.append(result)
            if by_columns and number + 1 < len(kinds):
                result = self._gathered(result, kind.columns)
            self._x = result
        if self._division is not Division.NONE:
            cut = int(by_columns)
            self._graph.sharding = Sharding(tuple(self._cuts), (cut,) * len(kinds))
        return self._graph

    def _layer(self, kind: LayerKind) -> Value:
        """Append a layer of kind ``kind`` to the graph, and return its result.

        With `Division.COLUMNS`, the result is this core's half of the columns.
        """
        depth, by_columns = self._x.shape[1], self._division is Division.COLUMNS
        columns = -(-kind.columns // 2) if by_columns else kind.columns
        side = 0 if kind.transpose else 1
        weights = self._input((columns, depth) if kind.transpose else (depth, columns),
                              side if by_columns else None, kind.dtype)
        shape = self._rows, columns
        # `in_order`: even if it is streamed, the product must have the bits of golden.mxu.dense.
        result = self._add("dot_general", (self._x, weights), shape, {
            "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
            "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1 - side,),
            "precision_config": ("DEFAULT", "DEFAULT"), "in_order": True})
        if kind.bias:
            bias = self._broadcast(self._input((columns,), 0 if by_columns else None), shape, (1,))
            result = self._add("add", (result, bias), shape)
        if kind.relu:
            zero = self._add("constant", (), (), {"value": np.zeros((), np.float32)})
            # In the core, `maximum` is fmax.
            result = self._add("maximum", (result, self._broadcast(zero, shape, ())), shape)
        return result

    def _gathered(self, half: Value, columns: int) -> Value:
        """Append the exchange of the cores' halves of a result; return the whole result.

        ``half`` is this core's half of the columns. The result has ``columns`` columns, without
        those that pad an odd number to an even one.
        """
        other = self._add("exchange", (half, half), half.shape)
        halves = [self._add("by_device", pair, half.shape)
                  for pair in ((half, other), (other, half))]
        whole = self._add("concatenate", halves, (self._rows, 2 * half.shape[1]), {"dimension": 1})
        if whole.shape[1] == columns:
            return whole
        return self._add("slice", (whole,), (self._rows, columns), {
            "start_indices": (0, 0), "limit_indices": (self._rows, columns), "strides": (1, 1)})

    def _input(self, shape: tuple[int, ...], cut: int | None,
               dtype: DType = DType.F32) -> Value:
        value = Value(TensorType(shape, dtype))
        self._graph.inputs.append(value)
        self._cuts.append(cut)
        return value

    def _broadcast(self, value: Value, shape: tuple[int, ...], along: tuple[int, ...]) -> Value:
        return self._add("broadcast_in_dim", (value,), shape, {"broadcast_dimensions": along})

    def _add(self, kind: str, operands: Sequence[Value], shape: tuple[int, ...],
             attributes: dict[str, object] | None = None) -> Value:
        return self._graph.add(kind, operands, TensorType(shape, DType.F32), attributes).result
