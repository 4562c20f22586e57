"""Axes along which gathers and scatters can be computed block by block."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from sim.compiler.passes.expansion import Expansion
from sim.compiler.passes.streaming.axes import Axis, Block, Part, axes, resized, same_kind

__all__: list[str] = []


@axes("gather")
def _gather(operation: Operation) -> Iterator[Axis]:
    operand, indices = operation.operands
    attributes = operation.attributes
    offset, sizes = attributes["offset_dims"], attributes["slice_sizes"]
    batch = [along for along in range(operation.result.type.rank) if along not in offset]
    places = [along for along in range(indices.type.rank)
              if along != attributes["index_vector_dim"]]
    paired = dict(zip(attributes["start_indices_batching_dims"],
                      attributes["operand_batching_dims"], strict=True))
    for along, place in zip(batch, places, strict=True):
        part = Part(paired[place]) if place in paired else None
        yield Axis(indices.shape[place], ((operand, part), (indices, Part(place))), (along,),
                   same_kind(operation, (along,)))
    gone = {*attributes["collapsed_slice_dims"], *attributes["operand_batching_dims"]}
    windows = [along for along in range(operand.type.rank) if along not in gone]
    for along, cut in zip(offset, windows, strict=True):
        if sizes[cut] == operand.shape[cut]:
            yield Axis(sizes[cut], ((operand, Part(cut)), (indices, None)), (along,),
                       same_kind(operation, (along,), partial(_sizes, sizes, cut)))
    for number, cut in enumerate(attributes["start_index_map"]):
        if sizes[cut] == 1:
            yield _table_axis(operation, number, cut)


def _sizes(sizes: tuple[int, ...], cut: int, block: Block) -> dict[str, object]:
    return {"slice_sizes": (*sizes[:cut], block.size, *sizes[cut + 1:])}


def _table_axis(operation: Operation, number: int, cut: int) -> Axis:
    """Return the axis that divides a gather's operand along dimension ``cut``.

    Component ``number`` of each index vector is an index of that dimension. The whole result is
    carried from block to block. Each block sets those elements of the result that its part of the
    operand contains.
    """
    operand, indices = operation.operands

    def write(at: Expansion, operands: Sequence[Value], block: Block) -> Sequence[Value]:
        [carried] = block.carried
        table, given = operands
        assert block.first is not None
        given = _clamped(at, operation, given, number, operand.shape[cut] - 1)
        given = _less(at, operation, given, number, block.first)
        found = at.graph.add("gather", (table, given), carried.type, operation.attributes, (),
                             operation.location).result
        inside = _inside(at, operation, given, number, block.size)
        offset = operation.attributes["offset_dims"]
        batch = tuple(along for along in range(carried.type.rank) if along not in offset)
        return [at.add("select", (at.broadcast(inside, carried.shape, batch), found, carried),
                       carried.type)]

    def initial(at: Expansion) -> Sequence[Value]:
        kind = operation.result.type
        zero = np.zeros((), array_dtype(kind.dtype))
        return [at.add("constant", (), kind, value=np.broadcast_to(zero, kind.shape))]

    return Axis(operand.shape[cut], ((operand, Part(cut)), (indices, None)), (None,), write,
                initial, numbered=True)


def _vector(at: Expansion, operation: Operation, indices: Value, numbers: Sequence[int]) -> Value:
    """Return index vectors of the shape of ``indices``, all with the components ``numbers``.

    ``operation`` is the gather or scatter; it says along which dimension index vectors lie.
    """
    along = operation.attributes["index_vector_dim"]
    if along == indices.type.rank:
        return at.broadcast(at.constant(numbers[0], indices.dtype), indices.shape, ())
    line = at.add("constant", (), TensorType((len(numbers),), indices.dtype),
                  value=np.array(numbers, array_dtype(indices.dtype)))
    return at.broadcast(line, indices.shape, (along,))


def _length(operation: Operation, indices: Value) -> int:
    along = operation.attributes["index_vector_dim"]
    return 1 if along == indices.type.rank else indices.shape[along]


def _clamped(at: Expansion, operation: Operation, indices: Value, number: int,
             last: int) -> Value:
    """Clamp component ``number`` of all index vectors in ``indices`` to 0 … ``last``.

    ``operation`` is the gather or scatter; it says along which dimension index vectors lie.
    """
    ends = np.iinfo(array_dtype(indices.dtype))
    low = [int(ends.min)] * _length(operation, indices)
    high = [int(ends.max)] * len(low)
    low[number], high[number] = 0, min(last, int(ends.max))
    return at.add("clamp", (_vector(at, operation, indices, low), indices,
                            _vector(at, operation, indices, high)), indices.type)


def _less(at: Expansion, operation: Operation, indices: Value, number: int,
          first: Value) -> Value:
    """Convert index vectors to s32, and subtract the scalar ``first`` from one component of each.

    ``indices`` has the index vectors, and ``number`` is the number of the component. ``operation``
    is the gather or scatter.
    """
    indices = at.convert(indices, DType.S32)
    chosen = [0] * _length(operation, indices)
    chosen[number] = 1
    moved = at.binary("multiply", _vector(at, operation, indices, chosen),
                      at.broadcast(first, indices.shape, ()))
    return at.binary("subtract", indices, moved)


def _inside(at: Expansion, operation: Operation, indices: Value, number: int,
            size: int) -> Value:
    """Compute, for each index vector, whether one component is in 0 … ``size - 1``.

    ``indices`` has the index vectors, and ``number`` is the number of the component. ``operation``
    is the gather or scatter.
    """
    along = operation.attributes["index_vector_dim"]
    if along < indices.type.rank:
        indices = at.slice(indices, along, number, 1)
        shape = (*indices.shape[:along], *indices.shape[along + 1:])
        indices = at.reshape(indices, shape)
    # As unsigned numbers, negative numbers are large.
    plain = at.convert(indices, DType.U32)
    limit = at.broadcast(at.constant(size, DType.U32), plain.shape, ())
    return at.add("compare", (plain, limit), TensorType(plain.shape, DType.PRED),
                  comparison_direction="LT", compare_type="UNSIGNED")


@axes("scatter")
def _scatter(operation: Operation) -> Iterator[Axis]:
    if len(operation.results) != 1:
        return
    operand, indices, updates = operation.operands
    attributes = operation.attributes
    mapped = attributes["scatter_dims_to_operand_dims"]
    gone = {*attributes["inserted_window_dims"], *attributes["input_batching_dims"]}
    windows = [along for along in range(operand.type.rank) if along not in gone]
    for along, cut in zip(attributes["update_window_dims"], windows, strict=True):
        if updates.shape[along] == operand.shape[cut] and cut not in mapped:
            yield Axis(operand.shape[cut], ((operand, Part(cut)), (indices, None),
                                            (updates, Part(along))), (cut,),
                       same_kind(operation, (cut,)))
    for number, cut in enumerate(mapped):
        if cut in attributes["inserted_window_dims"]:
            yield _target_axis(operation, number, cut)
    batch = [along for along in range(updates.type.rank)
             if along not in attributes["update_window_dims"]]
    places = [along for along in range(indices.type.rank)
              if along != attributes["index_vector_dim"]]
    for along, place in zip(batch, places, strict=True):
        if place not in attributes["scatter_indices_batching_dims"]:
            yield Axis(indices.shape[place], ((indices, Part(place)), (updates, Part(along))),
                       (None,), lambda at, operands, block: [at.add(
                           "scatter", (*block.carried, *operands), operation.result.type,
                           [region.renewed() for region in operation.regions], **attributes)],
                       lambda at: [operand])


def _target_axis(operation: Operation, number: int, cut: int) -> Axis:
    """Return the axis that divides a scatter's operand along dimension ``cut``.

    Component ``number`` of each index vector is an index of that dimension. Each block ignores
    updates at indices outside of its part of the operand.
    """
    operand, indices, updates = operation.operands

    def write(at: Expansion, operands: Sequence[Value], block: Block) -> Sequence[Value]:
        target, given, new = operands
        assert block.first is not None
        given = _less(at, operation, given, number, block.first)
        return [at.add("scatter", (target, given, new),
                       resized(operation.result.type, cut, block.size),
                       [region.renewed() for region in operation.regions],
                       **operation.attributes)]

    return Axis(operand.shape[cut], ((operand, Part(cut)), (indices, None), (updates, None)),
                (cut,), write, numbered=True)
