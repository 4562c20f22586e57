"""The table of rules: what each kind of operation computes on numpy arrays."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Graph, Operation

__all__ = ["Context", "Rule", "evaluates", "rules"]


class Context(Protocol):
    """Services of the interpreter for rules."""

    @property
    def passes(self) -> bool:
        """Whether products round their operands as the device does for their precision."""

    @property
    def device(self) -> int | None:
        """Number of the device that executes the graph; None if there is one only."""

    def exchange(self, array: Array) -> Array:
        """Exchange arrays with the other device; wait until it calls this method."""

    def run(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Execute a region on arrays of the types of its inputs."""

    def apply(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Execute a region on scalars, for every element of arrays of one shape."""


Rule = Callable[[Operation, list[Array], Context], Array | Sequence[Array]]
"""Takes an operation and the arrays of its operands; returns the array of its result, or one for
each of its results."""

_R = TypeVar("_R", bound=Rule)
_RULES: dict[str, Rule] = {}


def evaluates(*kinds: str) -> Callable[[_R], _R]:
    """Register the rule of kinds of operations.

    Raises
    ------
    ValueError
        If a kind has a rule already.
    """
    def register(function: _R) -> _R:
        for kind in kinds:
            if kind in _RULES:
                raise ValueError(f"{kind} must have one rule, not two")
            _RULES[kind] = function
        return function

    return register


def rules() -> dict[str, Rule]:
    """All rules, by kind of operation."""
    return _RULES
