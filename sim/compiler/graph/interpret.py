"""Interpreter: the reference semantics of a graph, executed on numpy arrays."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError

import numpy as np

import sim.compiler.graph.semantics.control
import sim.compiler.graph.semantics.elementwise
import sim.compiler.graph.semantics.indexed
import sim.compiler.graph.semantics.movement
import sim.compiler.graph.semantics.products
import sim.compiler.graph.semantics.reductions
import sim.compiler.graph.semantics.windows  # noqa: F401  (the rules register themselves)
from sim.compiler.graph.arrays import Array, array_dtype, shard, unshard
from sim.compiler.graph.ir import Graph, Operation, Sharding, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.graph.semantics.rules import rules

__all__ = ["evaluate", "interpret", "knows"]


def interpret(graph: Graph, inputs: Sequence[Array], *, passes: bool = False) -> list[Array]:
    """Execute a graph.

    Integers are exact. Each operation on floats is computed in float64, and its result is rounded
    to its type (see `sim.compiler.graph.semantics.elementwise`). Sums and products of matrices
    accumulate in float64.

    Parameters
    ----------
    graph : Graph
        The graph to execute.
    inputs : sequence of array
        An array for each input of the graph, with the input's shape and type. If the graph has a
        sharding, the arrays are whole, and are split here.
    passes : bool
        Whether to compute products in passes, as the device does: operands are split into bf16
        parts, whose number depends on the product's precision. Otherwise operands are not split.

    Returns
    -------
    list of array
        An array for each output of the graph; the whole array, if the graph has a sharding.

    Raises
    ------
    ValueError
        If the arrays do not match the graph's inputs.
    NotImplementedError
        If an operation has no rule.
    """
    if graph.sharding is None:
        return _Interpreter(passes).run(graph, inputs)
    return _run_all(graph, graph.sharding, inputs, passes)


def evaluate(operation: Operation, operands: Sequence[Array], *,
             passes: bool = False) -> list[Array]:
    """Execute one operation.

    Parameters
    ----------
    operation : Operation
        The operation to execute.
    operands : sequence of array
        An array for each operand, with the operand's shape and type.
    passes : bool
        Whether to compute products in passes of bf16 parts, as the device does.

    Returns
    -------
    list of array
        An array for each result.

    Raises
    ------
    NotImplementedError
        If the operation has no rule.
    """
    return _Interpreter(passes).evaluate(operation, list(operands))


def knows(kind: str) -> bool:
    """Return whether the interpreter has a rule for a kind of operation."""
    return kind in rules()


def _check(value: Value, array: Array, what: str) -> None:
    if array.shape != value.shape or array.dtype != array_dtype(value.dtype):
        raise ValueError(f"{what} must have shape {value.shape} and type {value.dtype.value}, "
                         f"not {array.shape} and {array.dtype}")


def _run_all(graph: Graph, sharding: Sharding, inputs: Sequence[Array],
             passes: bool) -> list[Array]:
    """Execute a graph on all devices, each in a thread; they wait for each other at exchanges.

    ``inputs`` are whole arrays; ``sharding`` says how they, and the returned arrays, are split.
    ``passes`` tells whether products are computed in passes of bf16 parts, as on the device.
    """
    devices = sharding.torus.devices
    link = _Link([np.empty(0)] * devices, Barrier(devices))
    with ThreadPoolExecutor(devices) as pool:
        def execute(device: int) -> list[Array]:
            try:
                return _Interpreter(passes, device, link).run(
                    graph, _parts(sharding, inputs, device))
            except BaseException:
                link.barrier.abort()
                raise

        tasks = [pool.submit(execute, device) for device in range(devices)]
        failures = [error for task in tasks if (error := task.exception()) is not None]
        for error in failures:
            if not isinstance(error, BrokenBarrierError) or len(failures) == 1:
                raise error
        results = zip(*(task.result() for task in tasks), strict=True)
    if sharding.pod is None:
        return [unshard(parts, dimension)
                for parts, dimension in zip(results, sharding.outputs, strict=True)]
    return [parts[0] if division is None else division.join(parts)
            for parts, division in zip(results, sharding.pod.outputs, strict=True)]


def _parts(sharding: Sharding, inputs: Sequence[Array], device: int) -> list[Array]:
    """Return a device's parts of the whole arrays ``inputs``."""
    if sharding.pod is None:
        return [shard(array, dimension)[device]
                for array, dimension in zip(inputs, sharding.inputs, strict=True)]
    return [array if division is None else division.part(np.asarray(array), device)
            for array, division in zip(inputs, sharding.pod.inputs, strict=True)]


@dataclass(frozen=True)
class _Link:
    """Objects that the devices' threads share: the array that each one sends, and a barrier."""

    sent: list[Array]
    barrier: Barrier


@dataclass(frozen=True)
class _Interpreter:
    passes: bool
    device: int | None = None
    link: _Link | None = None

    def exchange(self, array: Array, source: int) -> Array:
        assert self.link is not None
        assert self.device is not None
        self.link.sent[self.device] = array
        self.link.barrier.wait()
        received = self.link.sent[source]
        # The next exchange must not overwrite an array that another device has not read.
        self.link.barrier.wait()
        return received

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
            raise NotImplementedError(f"{operation.kind} has no rule in the interpreter")
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
