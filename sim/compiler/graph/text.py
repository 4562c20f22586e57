"""Writes a graph as readable text, for dumps."""

from itertools import count
from typing import Any

import numpy as np

from sim.compiler.graph.ir import Graph, Operation, Value

__all__ = ["to_text"]

_SHOWN = 8
"""Maximum number of elements of a constant that the text shows; it shows the first ones."""


def to_text(graph: Graph) -> str:
    """Write a graph as text: a line for each operation, with types, attributes and source line.

    Parameters
    ----------
    graph : Graph
        The graph to write.

    Returns
    -------
    str
        The text; it ends with a newline. A graph and its copies have equal texts.
    """
    return "\n".join(_Writer().graph(graph, "")) + "\n"


class _Writer:
    """Names the values, and writes the lines."""

    def __init__(self) -> None:
        self._names: dict[Value, str] = {}
        self._numbers = count()

    def name(self, value: Value) -> str:
        if value not in self._names:
            number = str(next(self._numbers))
            self._names[value] = f"%{value.name}_{number}" if value.name else f"%{number}"
        return self._names[value]

    def typed(self, values: tuple[Value, ...] | list[Value]) -> str:
        return ", ".join(f"{self.name(value)}: {value.type}" for value in values)

    def graph(self, graph: Graph, indent: str) -> list[str]:
        lines = [f"{indent}graph {graph.name}({self.typed(graph.inputs)}) {{"]
        for operation in graph.operations:
            lines.extend(self.operation(operation, indent + "  "))
        lines.append(f"{indent}  return {', '.join(map(self.name, graph.outputs))}")
        return [*lines, f"{indent}}}"]

    def operation(self, operation: Operation, indent: str) -> list[str]:
        attributes = ", ".join(f"{name}={_attribute(value)}"
                               for name, value in operation.attributes.items())
        line = (f"{indent}{self.typed(operation.results)} = {operation.kind}"
                f"({', '.join(map(self.name, operation.operands))})"
                f"{' {' + attributes + '}' if attributes else ''}")
        where = f"  # {operation.location}" if operation.location else ""
        return [line + where, *(text for region in operation.regions
                                for text in self.graph(region, indent + "  "))]


def _attribute(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return str(value)
    if value.size <= _SHOWN:
        return str(value.tolist())
    if (value == value.flat[0]).all():
        return f"all {value.flat[0]}"
    return f"[{', '.join(str(element) for element in value.flat[:_SHOWN].tolist())}, ...]"
