"""The reference semantics: executes a graph on numpy arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import sim.compiler.graph.semantics.control
import sim.compiler.graph.semantics.elementwise
import sim.compiler.graph.semantics.indexed
import sim.compiler.graph.semantics.movement
import sim.compiler.graph.semantics.products
import sim.compiler.graph.semantics.reductions
import sim.compiler.graph.semantics.windows  # noqa: F401  (the rules register themselves)
from sim.compiler.graph.arrays import Array, array_dtype
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.graph.semantics.rules import rules

__all__ = ["evaluate", "interpret", "knows"]


def interpret(graph: Graph, inputs: Sequence[Array], *, passes: bool = False) -> list[Array]:
    """Execute a graph.

    Integers are exact. Floats are float64 results rounded to their type, operation by operation
    (see `sim.compiler.graph.semantics.elementwise`); sums and products accumulate in float64.

    Parameters
    ----------
    graph : Graph
        What to execute.
    inputs : sequence of array
        An array for each input of the graph, of its shape and type.
    passes : bool
        Round the operands of products as the device does for their precision; else products take
        them as they are.

    Returns
    -------
    list of array
        One for each output of the graph.

    Raises
    ------
    ValueError
        If the arrays do not fit the inputs.
    NotImplementedError
        If an operation has no rule.
    """
    return _Interpreter(passes).run(graph, inputs)


def evaluate(operation: Operation, operands: Sequence[Array], *,
             passes: bool = False) -> list[Array]:
    """Execute one operation.

    Parameters
    ----------
    operation : Operation
        What to execute.
    operands : sequence of array
        An array for each operand, of its type.
    passes : bool
        As in `interpret`.

    Returns
    -------
    list of array
        One for each result.
    """
    return _Interpreter(passes).evaluate(operation, list(operands))


def knows(kind: str) -> bool:
    """Whether a kind of operation has a rule."""
    return kind in rules()


def _check(value: Value, array: Array, what: str) -> None:
    if array.shape != value.shape or array.dtype != array_dtype(value.dtype):
        raise ValueError(f"{what} must have shape {value.shape} and type {value.dtype.value}, "
                         f"not {array.shape} and {array.dtype}")


@dataclass(frozen=True)
class _Interpreter:
    passes: bool

    def run(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        if len(inputs) != len(graph.inputs):
            raise ValueError(f"inputs of {graph.name} must be {len(graph.inputs)} arrays, "
                             f"not {len(inputs)}")
        arrays = [np.asarray(array) for array in inputs]
        for index, (value, array) in enumerate(zip(graph.inputs, arrays, strict=True)):
            _check(value, array, f"input {index} of {graph.name}")
        known = dict(zip(graph.inputs, arrays, strict=True))
        for operation in graph.operations:
            results = self.evaluate(operation, [known[value] for value in operation.operands])
            for index, (value, array) in enumerate(zip(operation.results, results, strict=True)):
                _check(value, array, f"result {index} of {operation.kind}")
                known[value] = array
        return [known[value] for value in graph.outputs]

    def evaluate(self, operation: Operation, operands: list[Array]) -> list[Array]:
        rule = rules().get(operation.kind)
        if rule is None:
            raise NotImplementedError(f"{operation.kind} has no rule")
        with np.errstate(all="ignore"):
            results = rule(operation, operands, self)
        if isinstance(results, np.ndarray | np.generic):
            return [np.asarray(results)]
        return [np.asarray(result) for result in results]

    def apply(self, graph: Graph, inputs: Sequence[Array]) -> list[Array]:
        shape = np.broadcast_shapes(*(array.shape for array in inputs))
        if all(operation.kind in ELEMENTWISE or operation.kind == "constant"
               for operation in graph.operations):
            known = dict(zip(graph.inputs, inputs, strict=True))
            for operation in graph.operations:
                results = self.evaluate(operation, [known[value] for value in operation.operands])
                known.update(zip(operation.results, results, strict=True))
            return [np.broadcast_to(known[value], shape).copy() for value in graph.outputs]
        found = [np.empty(shape, array_dtype(value.dtype)) for value in graph.outputs]
        spread = [np.broadcast_to(array, shape) for array in inputs]
        for index in np.ndindex(*shape):
            results = self.run(graph, [np.asarray(array[index]) for array in spread])
            for array, result in zip(found, results, strict=True):
                array[index] = result
        return found
