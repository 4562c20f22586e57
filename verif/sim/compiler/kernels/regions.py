"""Regions of scalars for tests: reducers, comparators, updates."""

from collections.abc import Sequence

from sim.compiler.graph.ir import DType, Graph, TensorType, Value

__all__ = ["apply", "arg_reducer", "less", "second"]


def _inputs(types: Sequence[DType]) -> list[Value]:
    return [Value(TensorType((), dtype)) for dtype in types]


def apply(kind: str, dtype: DType) -> Graph:
    """A region that applies an elementwise operation to its two inputs."""
    graph = Graph(_inputs([dtype] * 2))
    graph.outputs = [graph.add(kind, graph.inputs, TensorType((), dtype)).result]
    return graph


def second(dtype: DType) -> Graph:
    """A region that returns the second of its two inputs."""
    inputs = _inputs([dtype] * 2)
    return Graph(inputs, [], [inputs[1]])


def less(types: Sequence[DType], direction: str = "LT") -> Graph:
    """The comparator of a sort, which compares the left and right element of the first operand."""
    graph = Graph(_inputs([dtype for dtype in types for _ in range(2)]))
    kind = "FLOAT" if types[0].is_float else "SIGNED" if types[0].is_signed else "UNSIGNED"
    graph.outputs = [graph.add("compare", graph.inputs[:2], TensorType((), DType.PRED),
                               {"comparison_direction": direction, "compare_type": kind}).result]
    return graph


def arg_reducer(dtype: DType) -> Graph:
    """A region that returns the larger of two values and its index, for ties the lower index."""
    pred = TensorType((), DType.PRED)
    graph = Graph(_inputs([dtype, DType.S32] * 2))
    x, i, y, j = graph.inputs
    kind = {"compare_type": "FLOAT" if dtype.is_float else "SIGNED"}
    more = graph.add("compare", (x, y), pred, {"comparison_direction": "GT", **kind}).result
    same = graph.add("compare", (x, y), pred, {"comparison_direction": "EQ", **kind}).result
    lower = graph.add("compare", (i, j), pred,
                      {"comparison_direction": "LT", "compare_type": "SIGNED"}).result
    tie = graph.add("and", (same, lower), pred).result
    first = graph.add("or", (more, tie), pred).result
    graph.outputs = [graph.add("select", (more, x, y), x.type).result,
                     graph.add("select", (first, i, j), i.type).result]
    return graph
