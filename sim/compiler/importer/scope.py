"""Maps values of an MLIR program to values of the graph while the graph is imported."""

from typing import Any

import numpy as np

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.importer.wide import Range

__all__ = ["Scope"]

_COPIED = 64
"""Constants with at most this number of elements are copied into each region that reads them."""


class Scope:
    """The values that are visible while a graph or a region is imported.

    A region of MLIR may read values of the program around it; a region of the graph may not. So
    such values become inputs of the region (`captures`), and small constants are copied.

    Parameters
    ----------
    graph : Graph
        The graph or region that receives the operations.
    ranges : dict of Value to (int, int)
        Ranges of values that have 64 bits in the program. A captured value gets the range of the
        outer value.
    parent : Scope, optional
        The scope of the graph around a region.

    Attributes
    ----------
    captures : dict of Value to Value
        The region's input for each outer value that it reads.
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
        """Record that ``known`` is the graph's value for an MLIR value.

        None means that the MLIR value is not supported.
        """
        self._values[value] = known

    def add_constant(self, operation: Operation) -> None:
        """Record an operation that makes a constant, so that regions can copy it."""
        self._constants[operation.result] = operation

    def constant(self, value: Value) -> Operation | None:
        """Return this scope's operation that makes the constant ``value``, or None."""
        return self._constants.get(value)

    def find(self, value: Any) -> Value | None:
        """Return the graph's value for an MLIR value; None if the MLIR value is not supported.

        A value of an outer scope is captured.

        Raises
        ------
        KeyError
            If the value is not defined.
        """
        if value in self._values:
            return self._values[value]
        if self.parent is None:
            raise KeyError(f"value {value} must be defined before it is used")
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
        """Return this scope's value for a value of ``parent``, the scope around it.

        It is a copy if the outer value is a small constant, otherwise a new input.
        """
        constant = parent.constant(outer)
        if constant is not None and constant.result.type.size <= _COPIED:
            copy = self.graph.add("constant", (), outer.type,
                                  {"value": np.asarray(constant.attributes["value"])},
                                  location=constant.location)
            self.add_constant(copy)
            return copy.result
        self.captures[outer] = Value(outer.type, outer.name)
        return self.captures[outer]
