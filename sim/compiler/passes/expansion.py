"""Helpers for passes that replace operations by others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Graph, Location, Operation, TensorType, Value

__all__ = ["Expansion", "expand"]


@dataclass
class Expansion:
    """Appends operations to a graph, with the source location of the operation they replace.

    All methods append at most one operation, unless they say otherwise, and return its result.

    Attributes
    ----------
    graph : Graph
        The graph that receives the operations.
    location : Location or None
        Source location of all appended operations.
    """

    graph: Graph
    location: Location | None
    producers: dict[Value, Operation] = field(default_factory=dict)
    """The operation that computes each value, for the part of the graph that has been rewritten."""

    def add(self, kind: str, operands: Sequence[Value], type: TensorType,
            regions: Sequence[Graph] = (), **attributes: Any) -> Value:
        """Append an operation of any kind with one result of type ``type``; return the result.

        The parameters are those of `Graph.add`.
        """
        operation = self.graph.add(kind, operands, type, attributes, regions, self.location)
        self.producers[operation.result] = operation
        return operation.result

    def constant(self, number: float, dtype: DType) -> Value:
        """Append a scalar constant of type ``dtype`` and return it."""
        return self.add("constant", (), TensorType((), dtype),
                        value=np.asarray(number, array_dtype(dtype)))

    def convert(self, value: Value, dtype: DType) -> Value:
        """Convert a value's elements to ``dtype``; return a value of that type unchanged."""
        if value.dtype is dtype:
            return value
        return self.add("convert", (value,), TensorType(value.shape, dtype))

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """Return the reshaped value, or the value itself if it already has that shape."""
        if value.shape == tuple(shape):
            return value
        return self.add("reshape", (value,), TensorType(tuple(shape), value.dtype))

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Transpose a value, whose dimension ``permutation[n]`` is dimension n of the result."""
        if list(permutation) == list(range(len(value.shape))):
            return value
        shape = tuple(value.shape[dimension] for dimension in permutation)
        return self.add("transpose", (value,), TensorType(shape, value.dtype),
                        permutation=tuple(permutation))

    def broadcast(self, value: Value, shape: Sequence[int], dimensions: Sequence[int]) -> Value:
        """Broadcast a value to ``shape``; its dimension n becomes dimension ``dimensions[n]``."""
        return self.add("broadcast_in_dim", (value,), TensorType(tuple(shape), value.dtype),
                        broadcast_dimensions=tuple(dimensions))

    def slice(self, value: Value, dimension: int, start: int, count: int, step: int = 1) -> Value:
        """Slice one dimension of a value: ``count`` indices from ``start`` on, ``step`` apart."""
        limit = start + (count - 1) * step + 1
        if (start, limit, step) == (0, value.shape[dimension], 1):
            return value
        rank = len(value.shape)
        starts, limits, steps = [0] * rank, list(value.shape), [1] * rank
        starts[dimension], limits[dimension], steps[dimension] = start, limit, step
        shape = list(value.shape)
        shape[dimension] = count
        return self.add("slice", (value,), TensorType(tuple(shape), value.dtype),
                        start_indices=tuple(starts), limit_indices=tuple(limits),
                        strides=tuple(steps))

    def concatenate(self, values: Sequence[Value], dimension: int) -> Value:
        """Concatenate values along a dimension."""
        if len(values) == 1:
            return values[0]
        shape = list(values[0].shape)
        shape[dimension] = sum(value.shape[dimension] for value in values)
        return self.add("concatenate", values, TensorType(tuple(shape), values[0].dtype),
                        dimension=dimension)

    def binary(self, kind: str, a: Value, b: Value) -> Value:
        """Append an operation of kind ``kind`` on two values of one type.

        Return its result, which has the same type.
        """
        return self.add(kind, (a, b), a.type)

    def total(self, values: Sequence[Value]) -> Value:
        """Add values of one type in the given order; append an ``add`` for all but the first."""
        return reduce(partial(self.binary, "add"), values)

    def sum(self, value: Value, dimensions: Sequence[int]) -> Value:
        """Sum a value over dimensions, which are removed from its shape."""
        if not dimensions:
            return value
        scalar = TensorType((), value.dtype)
        region = Graph([Value(scalar), Value(scalar)])
        region.outputs = [region.add("add", region.inputs, scalar).result]
        shape = tuple(size for dimension, size in enumerate(value.shape)
                      if dimension not in dimensions)
        return self.add("reduce", (value, self.constant(0, value.dtype)),
                        TensorType(shape, value.dtype), (region,), dimensions=tuple(dimensions))


def expand(graph: Graph,
           rule: Callable[[Operation, Expansion], Value | Sequence[Value] | None]) -> None:
    """Apply a rewriting rule to all operations of a graph and of their regions, in order.

    Parameters
    ----------
    graph : Graph
        The graph; it is changed in place.
    rule : callable
        Receives an operation, whose operands and regions have been rewritten, and an `Expansion`
        for new operations. Returns the value that replaces the operation's result (or one value for
        each result), or None to keep the operation.
    """
    replaced: dict[Value, Value] = {}
    producers: dict[Value, Operation] = {}
    operations, graph.operations = graph.operations, []
    for operation in operations:
        operation.operands = tuple(replaced.get(value, value) for value in operation.operands)
        for region in operation.regions:
            expand(region, rule)
        results = rule(operation, Expansion(graph, operation.location, producers))
        if results is None:
            graph.operations.append(operation)
            producers.update(dict.fromkeys(operation.results, operation))
        else:
            new = [results] if isinstance(results, Value) else results
            replaced.update(zip(operation.results, new, strict=True))
    graph.outputs = [replaced.get(value, value) for value in graph.outputs]
