"""Rewrites ``map``, and bitcasts between types of different widths, as whole-array operations."""

from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["expand_elements"]

_SCALAR = frozenset({"constant", "reshape", "broadcast_in_dim"})
"""Kinds, in addition to elementwise ones, that the region of a ``map`` may contain; ``reshape`` and
``broadcast_in_dim`` leave a scalar unchanged."""


def expand_elements(graph: Graph) -> None:
    """Expand each ``map``, and each ``bitcast_convert`` between different widths, of a graph."""
    expand(graph, _expanded)


def _expanded(operation: Operation, to: Expansion) -> Value | None:
    if operation.kind == "map":
        return _mapped(operation, to)
    if operation.kind == "bitcast_convert" and (
            operation.operands[0].shape != operation.result.shape):
        return _bitcast(operation, to)
    return None


def _mapped(operation: Operation, to: Expansion) -> Value | None:
    """Apply the region's operations to whole arrays; None if an operation is not elementwise."""
    [region], shape = operation.regions, operation.result.shape
    if any(inner.kind not in ELEMENTWISE | _SCALAR for inner in region.operations):
        return None
    known = dict(zip(region.inputs, operation.operands, strict=True))
    for inner in region.operations:
        operands = [known[value] for value in inner.operands]
        if inner.kind == "constant":
            scalar = to.add("constant", (), inner.result.type, **inner.attributes)
            known[inner.result] = to.broadcast(scalar, shape, ())
        elif inner.kind in _SCALAR:
            known[inner.result] = operands[0]
        else:
            known[inner.result] = to.add(inner.kind, operands,
                                         TensorType(shape, inner.result.dtype), inner.regions,
                                         **inner.attributes)
    return known[region.outputs[0]]


def _bitcast(operation: Operation, to: Expansion) -> Value:
    [x], result = operation.operands, operation.result
    if len(x.shape) < len(result.shape):
        return _split(_bits(x, to), result, to)
    return _joined(_bits(x, to), result, to)


def _unsigned(dtype: DType) -> DType:
    return {1: DType.U8, 8: DType.U8, 16: DType.U16, 32: DType.U32}[dtype.bits]


def _bits(x: Value, to: Expansion) -> Value:
    """Return the bits of each element of ``x`` as uint32, extended by zeros."""
    same = to.add("bitcast_convert", (x,), TensorType(x.shape, _unsigned(x.dtype)))
    return to.convert(same, DType.U32)


def _as(bits: Value, dtype: DType, to: Expansion) -> Value:
    """Return elements of type ``dtype`` whose bits are the low bits of uint32 numbers."""
    narrow = to.convert(bits, _unsigned(dtype))
    return to.add("bitcast_convert", (narrow,), TensorType(bits.shape, dtype))


def _split(bits: Value, result: Value, to: Expansion) -> Value:
    """Split each element into narrower ones along a new last dimension, the lowest bits first.

    ``bits`` has the bits of the elements as uint32; ``result`` has the type of the result.
    """
    whole = to.broadcast(bits, result.shape, range(len(bits.shape)))
    type = TensorType(result.shape, DType.U32)
    part = to.add("iota", (), type, iota_dimension=len(bits.shape))
    width = to.broadcast(to.constant(result.dtype.bits, DType.U32), result.shape, ())
    distance = to.binary("multiply", part, width)
    return _as(to.binary("shift_right_logical", whole, distance), result.dtype, to)


def _joined(bits: Value, result: Value, to: Expansion) -> Value:
    """Join the elements along the last dimension into one wider element, the lowest bits first.

    ``bits`` has the bits of the elements as uint32; ``result`` has the type of the result.
    """
    last = len(bits.shape) - 1
    count = bits.shape[last]
    whole = None
    for number in range(count):
        part = to.reshape(to.slice(bits, last, number, 1), result.shape)
        distance = to.broadcast(to.constant(number * result.dtype.bits // count, DType.U32),
                                result.shape, ())
        moved = to.binary("shift_left", part, distance)
        whole = moved if whole is None else to.binary("or", whole, moved)
    assert whole is not None
    return _as(whole, result.dtype, to)
