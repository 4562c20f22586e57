"""Interpreter rules for reductions, and recognition of simple reducers.

A sum of floats is accumulated in float64 and rounded once, so it is a reference for any order of
additions. The reducer ``multiply`` accumulates bf16 numbers in fp32.
"""

from typing import Any

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Graph, Operation
from sim.compiler.graph.semantics.elementwise import round_to
from sim.compiler.graph.semantics.rules import Context, evaluates

__all__ = ["fold", "reducer_kind"]

_SIMPLE = {"add", "multiply", "maximum", "minimum", "and", "or", "xor"}


def reducer_kind(region: Graph) -> str | None:
    """Return the kind of a region that applies one commutative operation to its two inputs.

    Returns
    -------
    str or None
        ``add``, ``multiply``, ``maximum``, ``minimum``, ``and``, ``or`` or ``xor``; None if the
        region has another form.
    """
    if len(region.inputs) != 2 or len(region.operations) != 1 or len(region.outputs) != 1:
        return None
    [operation] = region.operations
    if operation.kind not in _SIMPLE or set(operation.operands) != set(region.inputs):
        return None
    return operation.kind if region.outputs[0] in operation.results else None


def _wide(array: Array, kind: str | None) -> Array:
    """Convert an array of floats to float64 if the reducer's ``kind`` is ``add``."""
    return array.astype(np.float64) if kind == "add" and array.dtype.kind not in "biu" else array


def fold(region: Graph, totals: list[Array], terms: list[list[Array]],
         context: Context) -> list[Array]:
    """Combine accumulators with terms by a reducer, in order.

    Parameters
    ----------
    region : Graph
        The reducer, a function of scalars.
    totals : list of array
        Initial value of each accumulator.
    terms : list of list of array
        Terms in the order in which they are combined; each is a list with one array for each
        accumulator, of the accumulator's shape. The reducer's first inputs are the accumulators,
        the others are a term.
    context : Context
        The interpreter.

    Returns
    -------
    list of array
        Final value of each accumulator.
    """
    kind = reducer_kind(region)
    dtypes: list[np.dtype[Any]] = [total.dtype for total in totals]
    if kind == "add" and dtypes[0].kind not in "biu":
        total = totals[0].astype(np.float64)
        for [term] in terms:
            total = total + _wide(term, kind)
        return [round_to(total, dtypes[0])]
    if kind == "multiply" and dtypes[0].kind not in "biu" and dtypes[0].itemsize == 2:
        product = totals[0].astype(np.float32)
        for [term] in terms:
            product = product * term.astype(np.float32)
        return [round_to(product, dtypes[0])]
    for step in terms:
        totals = context.apply(region, [*totals, *step])
    return totals


@evaluates("reduce")
def _reduce(operation: Operation, operands: list[Array], context: Context) -> list[Array]:
    count = len(operands) // 2
    arrays, initial = operands[:count], operands[count:]
    dimensions = tuple(operation.attributes["dimensions"])
    kept = tuple(i for i in range(arrays[0].ndim) if i not in dimensions)
    shape = tuple(arrays[0].shape[i] for i in kept)
    # Move the reduced dimensions to the front, and merge them into one.
    flat = [np.transpose(array, (*dimensions, *kept)).reshape(-1, *shape) if array.size else
            np.zeros((0, *shape), array.dtype) for array in arrays]
    totals = [np.broadcast_to(value, shape).copy() for value in initial]
    if not flat[0].size:
        return totals
    region = operation.regions[0]
    if reducer_kind(region) == "add" and totals[0].dtype.kind not in "biu":
        total = flat[0].astype(np.float64).sum(axis=0) + totals[0].astype(np.float64)
        return [round_to(total, totals[0].dtype)]
    return fold(region, totals, [[array[i] for array in flat] for i in range(len(flat[0]))],
                context)
