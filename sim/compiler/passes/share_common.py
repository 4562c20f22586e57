"""Common subexpression elimination: equal operations on the same operands are computed once."""

from typing import Any

import numpy as np

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.graph.text import to_text
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["share_common"]


def share_common(graph: Graph) -> None:
    """Replace each operation by an equal earlier one of its graph or region, if there is one."""
    known: dict[tuple[int, Any], Operation] = {}

    def rule(operation: Operation, at: Expansion) -> tuple[Value, ...] | None:
        key = (id(at.graph), _key(operation))
        first = known.setdefault(key, operation)
        return None if first is operation else first.results

    expand(graph, rule)


def _key(operation: Operation) -> Any:
    attributes = tuple((name, _attribute(value))
                       for name, value in sorted(operation.attributes.items()))
    types = tuple(value.type for value in operation.results)
    regions = tuple(_region(region) for region in operation.regions)
    return operation.kind, tuple(map(id, operation.operands)), attributes, types, regions


def _attribute(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return value


def _region(region: Graph) -> Any:
    """Return a key of a region: its text, and the elements of constants that the text shortens."""
    return to_text(_bare(region)), tuple(
        _attribute(operation.attributes["value"]) for operation in region.walk()
        if operation.kind == "constant")


def _bare(graph: Graph) -> Graph:
    """Return a copy of a graph without source locations and name."""
    return Graph(graph.inputs, [
        Operation(operation.kind, operation.operands, operation.results, operation.attributes,
                  tuple(map(_bare, operation.regions))) for operation in graph.operations],
        graph.outputs, "region")
