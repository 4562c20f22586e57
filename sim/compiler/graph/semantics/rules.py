"""The interpreter's table of rules, which compute operations on numpy arrays."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Graph, Operation

__all__ = ["Context", "Rule", "evaluates", "rules"]


class Context(Protocol):
    """The part of the interpreter that the rules use."""

    @property
    def passes(self) -> bool:
        """Whether products are computed in passes of bf16 parts, as on the device."""

    @property
    def device(self) -> int | None:
        """Number of the device that executes the graph; None if there is only one device."""

    def exchange(self, array: Array, source: int) -> Array:
        """Send an array, and return the array that device ``source`` sends.

        This waits until all other devices call this method, too.
        """

    def run(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Execute a region on arrays that match its inputs; return the arrays of its outputs."""

    def apply(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        """Apply a region, a function of scalars, to each element; return an array for each output.

        The arrays ``inputs`` are broadcast to one shape.
        """


Rule = Callable[[Operation, list[Array], Context], Array | Sequence[Array]]
"""Computes an operation. Receives the operation, the arrays of its operands, and the interpreter;
returns the array of the only result, or an array for each result."""

_R = TypeVar("_R", bound=Rule)
_RULES: dict[str, Rule] = {}


def evaluates(*kinds: str) -> Callable[[_R], _R]:
    """Register the decorated function as the rule of kinds of operations.

    Raises
    ------
    ValueError
        If a kind has a rule already.
    """
    def register(function: _R) -> _R:
        for kind in kinds:
            if kind in _RULES:
                raise ValueError(f"{kind} must have only one interpreter rule; a second one was "
                                 f"registered")
            _RULES[kind] = function
        return function

    return register


def rules() -> dict[str, Rule]:
    """Return all rules, by kind of operation."""
    return _RULES
