"""Computes what depends only on constants.

The interpreter computes it, so a folded float is the correctly rounded one. Products stay, because
their precision is a matter of the device's passes, and loops, because they may be long.
"""

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.interpret import evaluate
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["fold_constants"]

_LARGEST = 1 << 16
"""Elements of the largest value that is computed."""
_KEPT = 1 << 12
"""Elements of the largest constant that is made, unless all its elements are equal."""
_STAY = frozenset({"constant", "iota", "broadcast_in_dim", "while", "dot_general", "convolution",
                   "fusion", "relayout", "by_device", "exchange"})
_CHEAP = frozenset({"iota", "broadcast_in_dim"})
"""Made where they are needed: they stay operations, but operations on them are folded."""


def fold_constants(graph: Graph) -> None:
    """Replace operations on constants by their results, in regions too."""
    expand(graph, _fold)


def _fold(operation: Operation, at: Expansion) -> list[Value] | None:
    if operation.kind in _STAY or not operation.operands or any(
            value.type.size > _LARGEST for value in (*operation.operands, *operation.results)):
        return None
    known = [_known(value, at) for value in operation.operands]
    operands = [array for array in known if array is not None]
    if len(operands) < len(known):
        return None
    results = evaluate(operation, operands)
    splats = [array.size > 0 and _equal(array) for array in results]
    if any(array.size > _KEPT and not splat
           for array, splat in zip(results, splats, strict=True)):
        return None
    made = []
    for value, array, splat in zip(operation.results, results, splats, strict=True):
        if splat and value.shape:
            scalar = at.add("constant", (), type(value.type)((), value.dtype),
                            value=array.reshape(-1)[:1].reshape(()))
            made.append(at.broadcast(scalar, value.shape, ()))
        else:
            made.append(at.add("constant", (), value.type, value=np.ascontiguousarray(array)
                               .reshape(value.shape)))
    return made


def _known(value: Value, at: Expansion) -> Array | None:
    """The array of a value that is constant."""
    producer = at.producers.get(value)
    if producer is None or value.type.size > _LARGEST:
        return None
    if producer.kind == "constant":
        return np.asarray(producer.attributes["value"])
    if producer.kind not in _CHEAP:
        return None
    operands = [_known(operand, at) for operand in producer.operands]
    arrays = [array for array in operands if array is not None]
    return evaluate(producer, arrays)[0] if len(arrays) == len(operands) else None


def _equal(array: Array) -> bool:
    """Whether all elements have the same bits."""
    raw = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    return bool((raw == raw[0]).all())
