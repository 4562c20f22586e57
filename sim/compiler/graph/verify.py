"""Checks that a graph is well formed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sim.compiler.graph.infer import infer
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.graph.kinds import KINDS

__all__ = ["GraphError", "verify"]


class GraphError(ValueError):
    """Raised if a graph is malformed, which is a bug in the pass or importer that made it."""


def verify(graph: Graph) -> None:
    """Check single assignment, attributes, regions and types of all operations.

    Raises
    ------
    GraphError
        If the graph is malformed; the message names the graph, and the operation by number and
        kind.
    """
    known: set[Value] = set()
    defined: set[Value] = set()
    _verify(graph, known, defined)


def _verify(graph: Graph, known: set[Value], defined: set[Value]) -> None:
    def define(values: "list[Value] | tuple[Value, ...]", what: str) -> None:
        for value in values:
            if value in defined:
                raise GraphError(f"{what} of {graph.name} must be defined only once")
            defined.add(value)
            known.add(value)

    define(graph.inputs, "inputs")
    for number, operation in enumerate(graph.operations):
        where = f"operation {number} ({operation.kind}) of {graph.name}"
        if any(value not in known for value in operation.operands):
            raise GraphError(f"{where}: operands must be defined before they are used")
        try:
            _check(operation)
            types = infer(operation)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise GraphError(f"{where}: {error}") from error
        for region in operation.regions:
            _verify(region, set(), defined)
        found = tuple(value.type for value in operation.results)
        if types != found:
            raise GraphError(f"{where}: results must be {', '.join(map(str, types))}, "
                             f"not {', '.join(map(str, found))}")
        define(operation.results, f"results of {where}")
    if any(value not in known for value in graph.outputs):
        raise GraphError(f"outputs of {graph.name} must be defined")


def _integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(item) is int for item in value)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "i": lambda value: type(value) is int, "is": _integers,
    "pairs": lambda value: isinstance(value, tuple) and all(
        _integers(item) and len(item) == 2 for item in value),
    "table": lambda value: isinstance(value, tuple) and all(map(_integers, value)),
    "s": lambda value: isinstance(value, str),
    "ss": lambda value: isinstance(value, tuple) and all(isinstance(x, str) for x in value),
    "b": lambda value: type(value) is bool,
    "bs": lambda value: isinstance(value, tuple) and all(type(x) is bool for x in value),
    "array": lambda value: isinstance(value, np.ndarray),
}


def _check(operation: Operation) -> None:
    """Check an operation's numbers of operands, results and regions, and its attributes' types."""
    kind = KINDS.get(operation.kind)
    if kind is None:
        raise ValueError("kind must be a key of sim.compiler.graph.kinds.KINDS, "
                         f"not {operation.kind!r}")
    numbers = {"operands": (len(operation.operands), kind.operands),
               "regions": (len(operation.regions), kind.regions)}
    if not kind.variadic:
        numbers["results"] = (len(operation.results), kind.results)
    for what, (found, needed) in numbers.items():
        if found < needed or (found > needed and not kind.variadic):
            raise ValueError(f"number of {what} must be {needed}, not {found}")
    for name, code in kind.attributes.items():
        if name not in operation.attributes:
            raise ValueError(f"attribute {name} must be present")
        if not _TYPES[code](operation.attributes[name]):
            raise ValueError(f"attribute {name} must be of type code {code!r} "
                             "(sim/compiler/graph/kinds.py), "
                             f"not {operation.attributes[name]!r}")
