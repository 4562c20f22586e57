"""Operations that move elements along axes: slices, padding, reshapes, transposes and others."""

from collections.abc import Sequence
from dataclasses import replace

from hdl.config import Config
from sim.compiler.graph.ir import DType, Operation, Value
from sim.compiler.kernels.lowering import Choice, Lowering, Place, chooses, lowers
from sim.compiler.kernels.moving.copy import Axis, copy, relayout
from sim.compiler.kernels.moving.packing import widen
from sim.compiler.machine import Builder, SReg
from sim.compiler.machine.ir import IndexLike
from sim.compiler.tiling import Tiling, standard

__all__ = ["clamped", "fill"]


def fill(at: Lowering, destination: Place, value: Value) -> None:
    """Write code that stores the only element of ``value`` in all elements of ``destination``."""
    vector = at.builder.load(at.place(value).buffer, 0)
    with at.builder.loop(destination.tiling.vectors) as i:
        at.builder.store(vector, destination.buffer, i)


def like(shape: Sequence[int], tiling: Tiling) -> Tiling:
    """Return a tiling for another shape of the same rank, with the same order of dimensions."""
    return replace(tiling, shape=tuple(shape))


@chooses("slice", "reverse", "pad", "dynamic_slice", "dynamic_update_slice", "concatenate")
def _same_order(op: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    """Choose the tilings of an operation: all values get the first operand's order of dimensions.

    Values of another rank get the standard tiling.

    If the operands of a ``concatenate`` differ in order, all get the standard order.
    """
    rank = len(op.result.shape)
    first = operands[0]
    full = operands if op.kind == "concatenate" else operands[:1]
    if any((tiling.order, tiling.along_lanes) != (first.order, first.along_lanes)
           for tiling in full):
        first = standard(first.shape, config)
    # A scalar has only one tiling, the standard one.
    return Choice(tuple(like(value.shape, first) if rank and len(value.shape) == rank
                        else standard(value.shape, config) for value in op.operands),
                  (like(op.result.shape, first) if rank else standard((), config),))


@chooses("transpose", "broadcast_in_dim")
def _from_any(op: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    """Choose tilings: the operand keeps its own, and the result gets the standard tiling."""
    return Choice(operands, (standard(op.result.shape, config),))


@lowers("slice")
def _slice(op: Operation, at: Lowering) -> None:
    source, destination = at.place(op.operands[0]), at.place(op.result)
    starts, strides = op.attributes["start_indices"], op.attributes["strides"]
    copy(at, source, destination,
         [Axis(size, d, d, strides[d]) for d, size in enumerate(op.result.shape)],
         (starts, [0] * len(starts)))


@lowers("pad")
def _pad(op: Operation, at: Lowering) -> None:
    source, destination = at.place(op.operands[0]), at.place(op.result)
    low, interior = op.attributes["edge_padding_low"], op.attributes["interior_padding"]
    fill(at, destination, op.operands[1])
    axes, starts, ends = [], [], []
    for d, (old, new) in enumerate(zip(op.operands[0].shape, op.result.shape, strict=True)):
        step = interior[d] + 1
        # Elements first to last - 1 of the operand remain; negative padding removes the others.
        first = max(0, -(low[d] // step))
        last = min(old, -((low[d] - new) // step))
        if first >= last:
            return
        axes.append(Axis(last - first, d, d, 1, step))
        starts.append(first)
        ends.append(low[d] + first * step)
    copy(at, source, destination, axes, (starts, ends))


@lowers("concatenate")
def _concatenate(op: Operation, at: Lowering) -> None:
    destination, dimension, position = at.place(op.result), op.attributes["dimension"], 0
    for operand in op.operands:
        starts = [position if d == dimension else 0 for d in range(len(operand.shape))]
        copy(at, at.place(operand), destination,
             [Axis(size, d, d) for d, size in enumerate(operand.shape)],
             ([0] * len(starts), starts))
        position += operand.shape[dimension]


@lowers("reverse")
def _reverse(op: Operation, at: Lowering) -> None:
    dimensions, shape = op.attributes["dimensions"], op.result.shape
    copy(at, at.place(op.operands[0]), at.place(op.result),
         [Axis(size, d, d, -1 if d in dimensions else 1) for d, size in enumerate(shape)],
         ([size - 1 if d in dimensions else 0 for d, size in enumerate(shape)], [0] * len(shape)))


@lowers("transpose")
def _transpose(op: Operation, at: Lowering) -> None:
    copy(at, at.place(op.operands[0]), at.place(op.result),
         [Axis(op.result.shape[new], old, new)
          for new, old in enumerate(op.attributes["permutation"])])


@lowers("broadcast_in_dim")
def _broadcast(op: Operation, at: Lowering) -> None:
    dimensions, shape = op.attributes["broadcast_dimensions"], op.operands[0].shape
    axes = []
    for new, size in enumerate(op.result.shape):
        old = dimensions.index(new) if new in dimensions else None
        axes.append(Axis(size, None if old is None or shape[old] == 1 else old, new))
    copy(at, at.place(op.operands[0]), at.place(op.result), axes)


@lowers("relayout")
def _relayout(op: Operation, at: Lowering) -> None:
    source, result = at.place(op.operands[0]), at.place(op.result)
    if source.tiling.packed:
        widen(at.builder, source, result.buffer)
    else:
        relayout(at, source, result, at.meanwhile)


def clamped(b: Builder, start: SReg, limit: int, dtype: DType) -> SReg:
    """Clamp a start index, an integer of type ``dtype``, to the range 0 to ``limit``."""
    if dtype is DType.U32:
        # Unsigned numbers from 2**31 on are large, not negative.
        high = b.scalar("sar", start, 31)
        start = b.scalar("xor", b.scalar("or", start, high), b.scalar("shl", high, 31))
    return b.scalar("min", b.scalar("max", start, 0), limit)


def _starts(at: Lowering, starts: Sequence[Value], shape: Sequence[int],
            sizes: Sequence[int]) -> list[IndexLike]:
    """Write code that reads start indices, and clamps them so that a slice lies within its value.

    ``sizes`` is the shape of the slice, and ``shape`` that of the value.
    """
    return [0 if whole == part else
            clamped(at.builder, at.scalar(value), whole - part, value.dtype)
            for value, whole, part in zip(starts, shape, sizes, strict=True)]


@lowers("dynamic_slice")
def _dynamic_slice(op: Operation, at: Lowering) -> None:
    operand, *starts = op.operands
    shape = op.result.shape
    copy(at, at.place(operand), at.place(op.result),
         [Axis(size, d, d) for d, size in enumerate(shape)],
         (_starts(at, starts, operand.shape, shape), [0] * len(shape)))


@lowers("dynamic_update_slice")
def _dynamic_update_slice(op: Operation, at: Lowering) -> None:
    operand, update, *starts = op.operands
    destination, shape = at.place(op.result), update.shape
    if at.place(operand) != destination:
        relayout(at, at.place(operand), destination)
    copy(at, at.place(update), destination, [Axis(size, d, d) for d, size in enumerate(shape)],
         ([0] * len(shape), _starts(at, starts, operand.shape, shape)))
