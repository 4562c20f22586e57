"""Removes operations that compute only values without elements, and such values from loops."""

from collections.abc import Sequence

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import Graph, Operation, Value

__all__ = ["drop_empty"]


def drop_empty(graph: Graph) -> None:
    """Drop operations whose results have no elements, and empty values from control flow.

    The inputs and outputs of the graph itself stay. An empty output that is not an input becomes a
    constant.
    """
    wanted = {value for value in graph.outputs if _empty(value)} - set(graph.inputs)
    kept = [Operation("constant", (), (value,),
                      {"value": np.empty(value.shape, array_dtype(value.dtype))})
            for value in dict.fromkeys(graph.outputs) if value in wanted]
    for operation in graph.operations:
        if operation.results and all(map(_empty, operation.results)):
            continue
        if operation.kind == "while":
            _narrow(operation, 0)
        elif operation.kind == "case":
            _narrow(operation, 1)
        kept.append(operation)
    graph.operations = kept


def _empty(value: Value) -> bool:
    return value.type.size == 0


def _full(values: Sequence[Value]) -> list[Value]:
    return [value for value in values if not _empty(value)]


def _narrow(operation: Operation, first: int) -> None:
    """Drop empty values from a loop or conditional.

    ``first`` is the number of the first operand that is passed to the regions.
    """
    operation.operands = (*operation.operands[:first], *_full(operation.operands[first:]))
    operation.results = tuple(_full(operation.results))
    for region in operation.regions:
        region.inputs = _full(region.inputs)
        region.outputs = _full(region.outputs)
        drop_empty(region)
