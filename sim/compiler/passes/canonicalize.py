"""Removes operations that have no effect, and merges successive operations that move elements.

Every rule preserves results bit by bit. For example, ``x + 0`` stays, because it turns -0 into +0,
and ``x + -0`` is replaced by ``x``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sim.compiler.graph.ir import DType, Graph, Operation, Value
from sim.compiler.kernels.products.dot import precision
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["canonicalize"]

_Result = Value | Sequence[Value] | None
_Rule = Callable[[Operation, Expansion], _Result]


def canonicalize(graph: Graph) -> None:
    """Rewrite each operation once, in order, by the rule of its kind; also within regions."""
    expand(graph, _apply)


def _apply(operation: Operation, at: Expansion) -> _Result:
    rules = _RULES
    if not all(value.type.size for value in operation.operands) and all(
            value.type.size for value in operation.results):
        rules = _EMPTY_RULES
    found = rules.get(operation.kind)
    return None if found is None else found(operation, at)


def _producer(value: Value, at: Expansion, kind: str) -> Operation | None:
    producer = at.producers.get(value)
    return producer if producer is not None and producer.kind == kind else None


def _scalar(value: Value, at: Expansion) -> Any:
    """Return the element that ``value`` repeats, if it is a splat constant; otherwise None."""
    while (broadcast := _producer(value, at, "broadcast_in_dim")) is not None:
        [value] = broadcast.operands
    constant = _producer(value, at, "constant")
    if constant is None or not value.type.size:
        return None
    array = np.asarray(constant.attributes["value"]).reshape(-1)
    raw = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return array[0] if array.size == 1 or (raw == raw[0]).all() else None


def _splat(operation: Operation, at: Expansion) -> _Result:
    """Replace a constant whose elements are all equal by a broadcast of a scalar constant."""
    result = operation.result
    if not result.shape or not result.type.size:
        return None
    array = np.asarray(operation.attributes["value"])
    if any(array.strides) or not array.size:
        raw = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
        if not (raw == raw[0]).all():
            return None
    scalar = at.add("constant", (), type(result.type)((), result.dtype),
                    value=array[(slice(1),) * array.ndim].reshape(()))
    return at.broadcast(scalar, result.shape, ())


def _reshape(operation: Operation, at: Expansion) -> _Result:
    [x], shape = operation.operands, operation.result.shape
    if x.shape == shape:
        return x
    inner = _producer(x, at, "reshape")
    if inner is not None:
        return at.reshape(inner.operands[0], shape)
    inner = _producer(x, at, "broadcast_in_dim")
    if inner is not None and not inner.operands[0].shape:
        return at.broadcast(inner.operands[0], shape, ())
    return None


def _transpose(operation: Operation, at: Expansion) -> _Result:
    [x], permutation = operation.operands, operation.attributes["permutation"]
    if permutation == tuple(range(len(permutation))):
        return x
    inner = _producer(x, at, "transpose")
    if inner is not None:
        before = inner.attributes["permutation"]
        return at.transpose(inner.operands[0], [before[i] for i in permutation])
    inner = _producer(x, at, "broadcast_in_dim")
    if inner is not None:
        places = [permutation.index(i) for i in inner.attributes["broadcast_dimensions"]]
        return at.broadcast(inner.operands[0], operation.result.shape, places)
    return None


def _broadcast(operation: Operation, at: Expansion) -> _Result:
    [x], dimensions = operation.operands, operation.attributes["broadcast_dimensions"]
    if x.shape == operation.result.shape and dimensions == tuple(range(len(dimensions))):
        return x
    inner = _producer(x, at, "broadcast_in_dim")
    if inner is None:
        return None
    return at.broadcast(inner.operands[0], operation.result.shape,
                        [dimensions[i] for i in inner.attributes["broadcast_dimensions"]])


def _convert(operation: Operation, at: Expansion) -> _Result:
    [x], dtype = operation.operands, operation.result.dtype
    if x.dtype is dtype:
        return x
    inner = _producer(x, at, "convert")
    if inner is not None and inner.operands[0].dtype is dtype is DType.BF16 and (
            x.dtype is DType.F32):
        return inner.operands[0]
    return None


def _product(operation: Operation, at: Expansion) -> _Result:
    """Replace a product's operands that are fp32 copies of bf16 values by these bf16 values.

    With DEFAULT precision, which rounds operands to bf16, the result has the same bits. The bf16
    values can then be packed, if they are inputs.
    """
    if precision(operation) != "DEFAULT":
        return None
    operands = [copy.operands[0] if (copy := _producer(value, at, "convert")) is not None
                and (copy.operands[0].dtype, value.dtype) == (DType.BF16, DType.F32) else value
                for value in operation.operands]
    if operands == list(operation.operands):
        return None
    return at.add("dot_general", operands, operation.result.type, **operation.attributes)


def _bitcast(operation: Operation, at: Expansion) -> _Result:
    [x] = operation.operands
    return x if x.type == operation.result.type else None


def _slice(operation: Operation, at: Expansion) -> _Result:
    [x] = operation.operands
    return x if x.shape == operation.result.shape else None


def _pad(operation: Operation, at: Expansion) -> _Result:
    attributes = operation.attributes
    changed = (*attributes["edge_padding_low"], *attributes["edge_padding_high"],
               *attributes["interior_padding"])
    return None if any(changed) else operation.operands[0]


def _concatenate(operation: Operation, at: Expansion) -> _Result:
    full = [value for value in operation.operands if value.type.size]
    if len(full) == 1:
        return full[0]
    if full and len(full) < len(operation.operands):
        return at.concatenate(full, operation.attributes["dimension"])
    return None


def _reverse(operation: Operation, at: Expansion) -> _Result:
    [x] = operation.operands
    moved = tuple(i for i in operation.attributes["dimensions"] if x.shape[i] > 1)
    if not moved:
        return x
    if len(moved) < len(operation.attributes["dimensions"]):
        return at.add("reverse", (x,), x.type, dimensions=moved)
    return None


def _dynamic_slice(operation: Operation, at: Expansion) -> _Result:
    x, *starts = operation.operands
    sizes = operation.attributes["slice_sizes"]
    if sizes == x.shape:
        return x
    known = [_scalar(start, at) for start in starts]
    if any(start is None for start in known):
        return None
    first = tuple(min(max(int(start), 0), whole - size)
                  for start, whole, size in zip(known, x.shape, sizes, strict=True))
    return at.add("slice", (x,), operation.result.type, start_indices=first,
                  limit_indices=tuple(a + b for a, b in zip(first, sizes, strict=True)),
                  strides=(1,) * len(sizes))


def _dynamic_update_slice(operation: Operation, at: Expansion) -> _Result:
    x, update, *_ = operation.operands
    return update if update.shape == x.shape else None


def _select(operation: Operation, at: Expansion) -> _Result:
    predicate, yes, no = operation.operands
    if yes is no:
        return yes
    known = _scalar(predicate, at)
    return None if known is None else yes if known else no


def _neutral(number: Any, kind: str, side: int) -> bool:
    """Return whether ``kind`` with ``number`` as one operand always returns the other operand.

    ``side`` is the position of ``number``: 0 is left, 1 is right.
    """
    if number.dtype == np.bool_:
        return bool(number) == (kind in ("and", "multiply")) and kind in (
            "and", "or", "multiply", "add")
    if number.dtype.kind in "iu":
        if kind == "and":
            return bool(~number == 0)
        if kind in ("multiply", "divide"):
            return number == 1 and (side == 1 or kind == "multiply")
        return number == 0 and (side == 1 or kind in ("add", "or", "xor"))
    zero = number == 0
    if kind == "add":
        return bool(zero and np.signbit(number))
    if kind == "subtract":
        return bool(side == 1 and zero and not np.signbit(number))
    return False


def _binary(operation: Operation, at: Expansion) -> _Result:
    for side, (value, other) in enumerate((operation.operands, operation.operands[::-1])):
        number = _scalar(value, at)
        if number is not None and _neutral(number, operation.kind, side):
            return other
    return None


def _involution(operation: Operation, at: Expansion) -> _Result:
    inner = _producer(operation.operands[0], at, operation.kind)
    return None if inner is None else inner.operands[0]


def _barrier(operation: Operation, at: Expansion) -> _Result:
    return operation.operands


def _case(operation: Operation, at: Expansion) -> _Result:
    """Replace a conditional by the operations of one branch, if only this branch can run."""
    index = _scalar(operation.operands[0], at)
    if index is None and len(operation.regions) > 1:
        return None
    last = len(operation.regions) - 1
    chosen = operation.regions[int(index) if index is not None and 0 <= index <= last else last]
    inner = dict(zip(chosen.inputs, operation.operands[1:], strict=True))
    for step in chosen.operations:
        step.operands = tuple(inner.get(value, value) for value in step.operands)
        at.graph.operations.append(step)
        at.producers.update(dict.fromkeys(step.results, step))
    return [inner.get(value, value) for value in chosen.outputs]


def _initial(operation: Operation, at: Expansion) -> _Result:
    """Replace a reduction of operands without elements by a broadcast of its initial values."""
    starts = operation.operands[len(operation.operands) // 2:]
    return [at.broadcast(start, result.shape, ())
            for start, result in zip(starts, operation.results, strict=True)]


def _filling(operation: Operation, at: Expansion) -> _Result:
    """Replace an operation whose operand has no elements by a broadcast of its last operand.

    The last operand is the scalar that fills the result.
    """
    return at.broadcast(operation.operands[-1], operation.result.shape, ())


def _zeros(operation: Operation, at: Expansion) -> _Result:
    """Replace a product that sums no terms by zeros."""
    result = operation.result
    return at.broadcast(at.constant(0, result.dtype), result.shape, ())


def _unchanged(operation: Operation, at: Expansion) -> _Result:
    """Rewrite an update or scatter that has an operand without elements.

    If the updates have no elements, replace the operation by the values to be updated. Otherwise
    the operation is a scatter whose index vectors have no elements: rewrite it by `_at_origin`.
    """
    *_, update = operation.operands if operation.kind == "scatter" else operation.operands[:2]
    if update.type.size:
        return _at_origin(operation, at) if operation.kind == "scatter" else None
    return operation.operands[:len(operation.results)]


def _at_origin(operation: Operation, at: Expansion) -> _Result:
    """Rewrite a gather or scatter whose index vectors have no elements.

    All its windows begin at the origin. The arrays in which the windows lie get one more dimension,
    of size 1. Each index vector gets one element: 0, the index in that dimension.
    """
    scatter, attributes = operation.kind == "scatter", operation.attributes
    count = len(operation.results)
    indices, vector = operation.operands[count], attributes["index_vector_dim"]
    shape = tuple(1 if d == vector else size for d, size in enumerate(indices.shape))
    zeros = at.broadcast(at.constant(0, indices.dtype), shape, ())
    rank = len(operation.operands[0].shape)
    inputs = [at.reshape(value, (*value.shape, 1)) for value in operation.operands[:count]]
    names = (("scatter_dims_to_operand_dims", "inserted_window_dims") if scatter
             else ("start_index_map", "collapsed_slice_dims"))
    changed = {name: (*attributes[name], rank) for name in names}
    if not scatter:
        changed["slice_sizes"] = (*attributes["slice_sizes"], 1)
    types = [value.type for value in (inputs if scatter else operation.results)]
    made = at.graph.add(operation.kind, [*inputs, zeros, *operation.operands[count + 1:]], types,
                        {**attributes, **changed}, operation.regions, operation.location)
    return [at.reshape(value, result.shape)
            for value, result in zip(made.results, operation.results, strict=True)]


_EMPTY_RULES: dict[str, _Rule] = {
    "reduce": _initial, "reduce_window": _initial, "pad": _filling,
    "select_and_scatter": _filling, "dot_general": _zeros, "convolution": _zeros,
    "dynamic_update_slice": _unchanged, "scatter": _unchanged, "gather": _at_origin,
    "concatenate": _concatenate, "case": _case,
}
"""Rules for operations that have an operand without elements, but results with elements."""

_RULES: dict[str, _Rule] = {
    "constant": _splat, "reshape": _reshape, "transpose": _transpose,
    "broadcast_in_dim": _broadcast, "convert": _convert, "bitcast_convert": _bitcast,
    "slice": _slice, "pad": _pad, "concatenate": _concatenate, "reverse": _reverse,
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice,
    "select": _select, "dot_general": _product, "negate": _involution, "not": _involution,
    "optimization_barrier": _barrier, "case": _case,
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "and", "or", "xor", "shift_left",
                     "shift_right_logical", "shift_right_arithmetic"), _binary),
}
