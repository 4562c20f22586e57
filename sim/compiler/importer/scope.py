"""Values of a graph while it is imported, by the values of the MLIR program."""

from typing import Any

import numpy as np

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.importer.wide import Range

__all__ = ["Scope"]

_COPIED = 64
"""Constants of at most this many elements are copied into a region that reads them."""


class Scope:
    """A graph that is being made, in the one around it.

    MLIR's regions read values of the program around them. A region of the graph does not: such
    values become inputs, `captures`, and small constants are copied.

    Parameters
    ----------
    graph : Graph
        The graph that is made.
    ranges : dict of Value to (int, int)
        Ranges of integers of 64 bits, which those that regions read keep.
    parent : Scope, optional
        The one around it.
    """

    def __init__(self, graph: Graph, ranges: dict[Value, Range],
                 parent: "Scope | None" = None) -> None:
        self.graph = graph
        self.ranges = ranges
        self.parent = parent
        self.captures: dict[Value, Value] = {}
        self._values: dict[Any, Value | None] = {}
        self._constants: dict[Value, Operation] = {}

    def define(self, value: Any, known: Value | None) -> None:
        """Say what an MLIR value is; None if it is of something unsupported."""
        self._values[value] = known

    def add_constant(self, operation: Operation) -> None:
        """Note an operation that makes a constant."""
        self._constants[operation.result] = operation

    def constant(self, value: Value) -> Operation | None:
        """The operation that makes a value here, if it is a constant."""
        return self._constants.get(value)

    def find(self, value: Any) -> Value | None:
        """The value of the graph for an MLIR value."""
        if value in self._values:
            return self._values[value]
        if self.parent is None:
            raise KeyError(f"value must be defined, not {value}")
        outer = self.parent.find(value)
        found = None if outer is None else self._capture(outer, self.parent)
        self._values[value] = found
        return found

    def _capture(self, outer: Value, parent: "Scope") -> Value:
        if outer in self.captures:
            return self.captures[outer]
        inner = self._inner(outer, parent)
        if outer in self.ranges:
            self.ranges[inner] = self.ranges[outer]
        return inner

    def _inner(self, outer: Value, parent: "Scope") -> Value:
        """A copy of a small constant, or a new input."""
        constant = parent.constant(outer)
        if constant is not None and constant.result.type.size <= _COPIED:
            copy = self.graph.add("constant", (), outer.type,
                                  {"value": np.asarray(constant.attributes["value"])},
                                  location=constant.location)
            self.add_constant(copy)
            return copy.result
        self.captures[outer] = Value(outer.type, outer.name)
        return self.captures[outer]
