"""Evaluates operations whose operands are all constants.

The interpreter evaluates them, so a folded float is correctly rounded. Products are not folded,
because their result depends on the passes in which the device computes them. Loops are not folded
either, because they may run long.
"""

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.interpret import evaluate
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["fold_constants"]

_LARGEST = 1 << 16
"""Maximum number of elements of an operand or result of an operation that is folded."""
_KEPT = 1 << 12
"""Maximum number of elements of a new constant, unless all its elements are equal."""
_STAY = frozenset({"constant", "iota", "broadcast_in_dim", "while", "dot_general", "convolution",
                   "fusion", "relayout", "by_device", "exchange",
                   "pod_sum"})
_CHEAP = frozenset({"iota", "broadcast_in_dim"})
"""Kinds that are cheap to compute where they are used: they stay operations, but operations on
their results are folded."""


def fold_constants(graph: Graph) -> None:
    """Replace operations on constants by their results, including operations in regions."""
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
    """Return the numpy array of a constant, or of the result of a `_CHEAP` operation on constants.

    None for other values, and for values of more than `_LARGEST` elements.
    """
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
    """Return whether all elements of ``array`` have the same bits."""
    raw = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    return bool((raw == raw[0]).all())
