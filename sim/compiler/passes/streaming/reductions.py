"""How reductions, sorts and products can be computed block by block: their axes."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.reductions import reducer_kind
from sim.compiler.kernels.reduce import identity
from sim.compiler.passes.expansion import Expansion
from sim.compiler.passes.streaming.axes import Axis, Block, Part, Write, axes, same_kind, trimmed
from sim.compiler.words import from_words

__all__ = ["mapped", "sum_type"]


@axes("reduce")
def _reduce(operation: Operation) -> Iterator[Axis]:
    count = len(operation.results)
    values, initial = operation.operands[:count], operation.operands[count:]
    reduced = operation.attributes["dimensions"]
    kept = [along for along in range(values[0].type.rank) if along not in reduced]
    whole = tuple((value, None) for value in initial)
    for number, along in enumerate(kept):
        results = (number,) * count
        yield Axis(values[0].shape[along], (*((value, Part(along)) for value in values), *whole),
                   results, same_kind(operation, results))
    kind = reducer_kind(operation.regions[0])
    wide = [sum_type(value.dtype, kind) for value in values]
    for along in reduced:
        yield Axis(values[0].shape[along], (*((value, Part(along)) for value in values), *whole),
                   (None,) * count, lambda at, operands, block: _combined(
                       operation, at, operands, block),
                   lambda at: [at.broadcast(at.convert(value, dtype), result.shape, ())
                               for value, dtype, result
                               in zip(initial, wide, operation.results, strict=True)])


def sum_type(dtype: DType, kind: str | None) -> DType:
    """Return the type in which a reduction combines numbers of type ``dtype``.

    ``kind`` is the reducer's kind as `reducer_kind` returns it, None for a reducer of another form.
    The type is F32 for sums and products of BF16 numbers, and otherwise ``dtype``. The kernel of a
    reduction uses the same type.
    """
    return DType.F32 if dtype is DType.BF16 and kind in ("add", "multiply") else dtype


def _combined(operation: Operation, at: Expansion, operands: Sequence[Value],
              block: Block) -> Sequence[Value]:
    """Reduce a block, and combine the result with the carried values.

    ``operands`` are the parts of the operation's operands that belong to the block. The carried
    values begin as the operation's initial values. So that these count only once, the reduction of
    a block begins with the reducer's identity. Simple reducers have a known identity; for other
    reducers, StableHLO requires the initial values to be identities.
    """
    count, [region] = len(operation.results), operation.regions
    values, initial, types = operands[:count], operands[count:], [
        value.type for value in operation.results]
    kind = reducer_kind(region)
    if kind is not None:
        [result], dtype = operation.results, sum_type(values[0].dtype, kind)
        scalar, types = TensorType((), dtype), [TensorType(result.shape, dtype)]
        word = np.array(identity(kind, dtype), np.uint32)
        initial = [at.add("constant", (), scalar, value=from_words(word, array_dtype(dtype)))]
        values = [at.convert(values[0], dtype)]
        region = Graph([Value(scalar), Value(scalar)])
        region.outputs = [region.add(kind, region.inputs, scalar).result]
    found = at.graph.add("reduce", [*values, *initial], types, operation.attributes,
                         [region.renewed()], operation.location).results
    return mapped(at, region, [*block.carried, *found])


def mapped(at: Expansion, region: Graph, operands: Sequence[Value]) -> list[Value]:
    """Apply ``region``, a function of scalars, to whole ``operands`` of equal shapes."""
    shape = operands[0].shape
    known = dict(zip(region.inputs, operands, strict=True))
    for inner in region.operations:
        kind = TensorType(shape, inner.result.dtype)
        attributes = dict(inner.attributes)
        if inner.kind == "constant":
            attributes["value"] = np.broadcast_to(attributes["value"], shape)
        known[inner.result] = at.graph.add(
            inner.kind, [known[value] for value in inner.operands], kind, attributes,
            inner.regions, at.location).result
    return [known[value] for value in region.outputs]


@axes("sort")
def _sort(operation: Operation) -> Iterator[Axis]:
    for along, size in enumerate(operation.results[0].shape):
        if along != operation.attributes["dimension"]:
            results = (along,) * len(operation.results)
            yield Axis(size, tuple((value, Part(along)) for value in operation.operands), results,
                       same_kind(operation, results))


@axes("reduce_window")
def _reduce_window(operation: Operation) -> Iterator[Axis]:
    count, attributes = len(operation.results), operation.attributes
    values, initial = operation.operands[:count], operation.operands[count:]
    for along, size in enumerate(operation.results[0].shape):
        if attributes["base_dilations"][along] != 1:
            continue
        window = (attributes["window_dimensions"][along] - 1) * (
            attributes["window_dilations"][along]) + 1
        part = Part(along, -attributes["padding"][along][0], attributes["window_strides"][along],
                    window)
        yield Axis(size, (*((value, part) for value in values),
                          *((value, None) for value in initial)), (along,) * count,
                   _windows(operation, along), loose=True)


def _windows(operation: Operation, along: int) -> Write:
    """Return the `Write` function of a ``reduce_window`` for blocks along dimension ``along``."""
    count, padding = len(operation.results), operation.attributes["padding"]

    def write(at: Expansion, operands: Sequence[Value], block: Block) -> Sequence[Value]:
        before, behind = block.padding[0]
        given = [trimmed(at, value, along, before, block.extra[0]) for value in operands[:count]]
        pads = (*padding[:along], (given[0][1], behind), *padding[along + 1:])
        return same_kind(operation, (along,) * count, lambda block: {"padding": pads})(
            at, [*(value for value, _ in given), *operands[count:]], block)

    return write


@axes("select_and_scatter")
def _select_and_scatter(operation: Operation) -> Iterator[Axis]:
    value, source, initial = operation.operands
    attributes = operation.attributes
    for along, size in enumerate(source.shape):
        stride = attributes["window_strides"][along]
        if (attributes["window_dimensions"][along] == stride
                and attributes["padding"][along] == (0, 0) and size * stride == value.shape[along]):
            # Windows do not overlap.
            yield Axis(size, ((value, Part(along, 0, stride, stride)), (source, Part(along)),
                              (initial, None)), (along,),
                       same_kind(operation, (along,), scale=stride), scale=stride)


# Products: a contracted dimension is summed over blocks; floats are summed in f32.


def _summed(operation: Operation) -> tuple[Callable[..., Sequence[Value]],
                                           Callable[[Expansion], Sequence[Value]]]:
    result = operation.result
    wide = TensorType(result.shape, DType.F32) if result.dtype.is_float else result.type

    def write(at: Expansion, operands: Sequence[Value], block: Block) -> Sequence[Value]:
        found = at.graph.add(operation.kind, operands, wide, operation.attributes, (),
                             operation.location).result
        kind = "or" if result.dtype is DType.PRED else "add"
        return [at.binary(kind, block.carried[0], found)]

    def initial(at: Expansion) -> Sequence[Value]:
        # The sum of -0 and any number is that number.
        zero = np.array(-0.0 if wide.dtype.is_float else 0, array_dtype(wide.dtype))
        return [at.add("constant", (), wide, value=np.broadcast_to(zero, wide.shape))]

    return write, initial


@axes("dot_general")
def _dot(operation: Operation) -> Iterator[Axis]:
    lhs, rhs = operation.operands
    attributes = operation.attributes
    batch = attributes["lhs_batching_dimensions"], attributes["rhs_batching_dimensions"]
    depth = attributes["lhs_contracting_dimensions"], attributes["rhs_contracting_dimensions"]
    free = [[along for along in range(value.type.rank) if along not in (*taken, *summed)]
            for value, taken, summed in zip((lhs, rhs), batch, depth, strict=True)]
    for number, (a, b) in enumerate(zip(*batch, strict=True)):
        yield Axis(lhs.shape[a], ((lhs, Part(a)), (rhs, Part(b))), (number,),
                   same_kind(operation, (number,)))
    results = iter(range(len(batch[0]), operation.result.type.rank))
    for along in free[0]:
        number = next(results)
        yield Axis(lhs.shape[along], ((lhs, Part(along)), (rhs, None)), (number,),
                   same_kind(operation, (number,)))
    for along in free[1]:
        number = next(results)
        yield Axis(rhs.shape[along], ((lhs, None), (rhs, Part(along))), (number,),
                   same_kind(operation, (number,)))
    for a, b in zip(*depth, strict=True):
        write, initial = _summed(operation)
        # A block of one tile of the depth keeps the order of additions of the whole product.
        yield Axis(lhs.shape[a], ((lhs, Part(a)), (rhs, Part(b))), (None,), write, initial,
                   smallest=attributes.get("in_order", False))


@axes("convolution")
def _convolution(operation: Operation) -> Iterator[Axis]:
    lhs, rhs = operation.operands
    attributes = operation.attributes
    groups = attributes["feature_group_count"], attributes["batch_group_count"]
    shape = operation.result.shape
    if groups[1] == 1:
        along = attributes["output_batch_dimension"]
        yield Axis(shape[along], ((lhs, Part(attributes["input_batch_dimension"])), (rhs, None)),
                   (along,), same_kind(operation, (along,)))
    if groups == (1, 1):
        along = attributes["output_feature_dimension"]
        yield Axis(shape[along], ((lhs, None), (
            rhs, Part(attributes["kernel_output_feature_dimension"]))), (along,),
            same_kind(operation, (along,)))
        a, b = (attributes[name] for name in ("input_feature_dimension",
                                              "kernel_input_feature_dimension"))
        write, initial = _summed(operation)
        yield Axis(lhs.shape[a], ((lhs, Part(a)), (rhs, Part(b))), (None,), write, initial)
    for number, along in enumerate(attributes["output_spatial_dimensions"]):
        if attributes["lhs_dilation"][number] == 1:
            yield _rows_of_windows(operation, number, along)


def _rows_of_windows(operation: Operation, number: int, along: int) -> Axis:
    """Return the axis that divides a convolution along spatial dimension ``number``.

    ``along`` is the number of that dimension in the result.
    """
    cut = operation.attributes["input_spatial_dimensions"][number]
    return _windowed(operation, number, cut, along)


def _windowed(operation: Operation, number: int, cut: int, along: int) -> Axis:
    """Return the axis that divides a convolution along a dimension with windows.

    Adjacent blocks share elements of the input at their edges.

    Parameters
    ----------
    operation : Operation
        The convolution.
    number : int
        Number of the dimension among the spatial ones.
    cut, along : int
        Number of that dimension in the input, and in the result.
    """
    (lhs, rhs), attributes = operation.operands, operation.attributes
    taps = rhs.shape[attributes["kernel_spatial_dimensions"][number]]
    part = Part(cut, -attributes["padding"][number][0], attributes["window_strides"][number],
                (taps - 1) * attributes["rhs_dilation"][number] + 1)

    def change(block: Block) -> dict[str, object]:
        padding = attributes["padding"]
        return {"padding": (*padding[:number], block.padding[0], *padding[number + 1:])}

    return Axis(operation.result.shape[along], ((lhs, part), (rhs, None)), (along,),
                same_kind(operation, (along,), change))


@axes("phase_convolution")
def _phase_convolution(operation: Operation) -> Iterator[Axis]:
    (lhs, rhs), attributes = operation.operands, operation.attributes
    _, images, _, _, made = operation.result.shape
    yield Axis(images, ((lhs, Part(1)), (rhs, None)), (1,), same_kind(operation, (1,)))
    if attributes["lhs_dilation"][0] == 1:
        yield _windowed(operation, 0, 0, 0)
    if attributes["columns"] == 1:
        yield Axis(made, ((lhs, None), (rhs, Part(attributes["kernel_output_feature_dimension"]))),
                   (4,), same_kind(operation, (4,)))
    write, initial = _summed(operation)
    yield Axis(lhs.shape[4], ((lhs, Part(4)), (
        rhs, Part(attributes["kernel_input_feature_dimension"]))), (None,), write, initial)


@axes("line_convolution")
def _line_convolution(operation: Operation) -> Iterator[Axis]:
    (lines, filters), stride = operation.operands, operation.attributes["stride"]
    count, images, outputs, _ = operation.result.shape
    window = filters.shape[1] // (lines.shape[2] * lines.shape[3])
    yield Axis(images, ((lines, Part(0)), (filters, None)), (1,), same_kind(operation, (1,)))
    yield Axis(count, ((lines, Part(1, 0, stride, window)), (filters, None)), (0,),
               same_kind(operation, (0,)))
    yield Axis(outputs, ((lines, None), (filters, Part(0))), (2,), same_kind(operation, (2,)))
