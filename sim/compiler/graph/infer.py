"""Type inference: the types of an operation's results, from its operands and attributes.

An inference rule returns the types of an operation's results, or raises ValueError if operands or
attributes are wrong. If the operands do not determine the type of a result, such as the shape of a
``reshape``, the rule checks the declared type and returns it.
"""

from collections.abc import Callable, Sequence

from sim.compiler.graph.arrays import array_dtype, type_of
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.graph.semantics.elementwise import ELEMENTWISE

__all__ = ["infer"]

_Rule = Callable[[Operation], "TensorType | Sequence[TensorType]"]
_RULES: dict[str, _Rule] = {}


def infer(operation: Operation) -> tuple[TensorType, ...]:
    """Return the types that the results of an operation must have.

    Raises
    ------
    ValueError
        If operands, attributes or regions are wrong; the message says which.
    """
    rule = _RULES.get(operation.kind)
    if rule is None:
        rule = _elementwise if operation.kind in ELEMENTWISE else _declared
    types = rule(operation)
    return (types,) if isinstance(types, TensorType) else tuple(types)


def _infers(*kinds: str) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _declared(operation: Operation) -> tuple[TensorType, ...]:
    return tuple(result.type for result in operation.results)


def _dimensions(dimensions: Sequence[int], rank: int, name: str) -> None:
    """Raise ValueError unless ``dimensions`` are distinct and from 0 to ``rank`` - 1.

    The message calls them ``name``.
    """
    _require(all(0 <= i < rank for i in dimensions) and len(set(dimensions)) == len(dimensions),
             f"{name} must be different dimensions below {rank}, not {tuple(dimensions)}")


def _region(region: Graph, inputs: Sequence[TensorType], outputs: Sequence[TensorType],
            name: str) -> None:
    """Raise ValueError unless a region's inputs and outputs have the given types.

    The message calls the region ``name``.
    """
    found = [value.type for value in region.inputs], [value.type for value in region.outputs]
    _require(found == (list(inputs), list(outputs)),
             f"{name} must take {', '.join(map(str, inputs)) or 'nothing'} and return "
             f"{', '.join(map(str, outputs))}, not {', '.join(map(str, found[0]))} and "
             f"{', '.join(map(str, found[1]))}")


_FLOAT_ONLY = frozenset({
    "cbrt", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "log",
    "log_plus_one", "logistic", "round_nearest_afz", "round_nearest_even", "rsqrt", "sine", "sqrt",
    "tan", "tanh", "atan2", "is_finite", "reduce_precision"})
_INTEGER_ONLY = frozenset({"popcnt", "count_leading_zeros", "shift_left", "shift_right_logical",
                           "shift_right_arithmetic"})
_NOT_FLOAT = frozenset({"and", "or", "xor", "not"})
_SCALARS_TOO = {"select": (0,), "clamp": (0, 2)}
"""For a kind of operation, the positions, from 0, of the operands that may be scalars although the
other operands are arrays."""


def _elementwise(operation: Operation) -> TensorType:
    kind, operands = operation.kind, operation.operands
    typed = operands[1:] if kind == "select" else operands
    dtype, full = typed[0].dtype, operands[1] if kind in _SCALARS_TOO else operands[0]
    # Most operations are elementwise, so messages are only made for those that are wrong.
    if any(value.dtype is not dtype for value in typed):
        names = ", ".join(value.dtype.value for value in typed)
        raise ValueError(f"operands must have one type, not {names}")
    for index, value in enumerate(operands):
        if value.shape != full.shape and (value.shape or index not in _SCALARS_TOO.get(kind, ())):
            raise ValueError(f"operand {index} must have shape {full.shape}, not {value.shape}")
    if kind in _FLOAT_ONLY and not dtype.is_float:
        raise ValueError(f"operands must be floating-point numbers, not {dtype.value}")
    if kind in _INTEGER_ONLY and not dtype.is_integer:
        raise ValueError(f"operands must be integers, not {dtype.value}")
    if kind in _NOT_FLOAT and dtype.is_float:
        raise ValueError(f"operands must be integers or predicates, not {dtype.value}")
    if kind in ("compare", "is_finite"):
        return TensorType(full.shape, DType.PRED)
    if kind == "select":
        _require(operands[0].dtype is DType.PRED,
                 f"operand 0 must be a predicate, not {operands[0].dtype.value}")
    if kind == "convert":
        return TensorType(full.shape, operation.result.dtype)
    return TensorType(full.shape, dtype)


@_infers("bitcast_convert")
def _bitcast_convert(operation: Operation) -> TensorType:
    [x], result = operation.operands, operation.result
    before, after = array_dtype(x.dtype).itemsize, array_dtype(result.dtype).itemsize
    shape = x.shape
    if after < before:
        shape = (*shape, before // after)
    elif after > before:
        _require(shape[-1:] == (after // before,),
                 f"the last dimension of {x.type} must be {after // before}")
        shape = shape[:-1]
    return TensorType(shape, result.dtype)


@_infers("constant")
def _constant(operation: Operation) -> TensorType:
    return type_of(operation.attributes["value"])


@_infers("device_constant")
def _device_constant(operation: Operation) -> TensorType:
    values = operation.attributes["values"]
    _require(values.ndim == 1, f"values must have one dimension, not {values.ndim}")
    return type_of(values[0])


@_infers("iota")
def _iota(operation: Operation) -> TensorType:
    _dimensions([operation.attributes["iota_dimension"]], operation.result.type.rank,
                "iota_dimension")
    return operation.result.type


@_infers("broadcast_in_dim")
def _broadcast_in_dim(operation: Operation) -> TensorType:
    [x], result = operation.operands, operation.result
    dimensions = operation.attributes["broadcast_dimensions"]
    _require(len(dimensions) == x.type.rank,
             f"broadcast_dimensions must be {x.type.rank} dimensions, not {dimensions}")
    _dimensions(dimensions, result.type.rank, "broadcast_dimensions")
    for size, dimension in zip(x.shape, dimensions, strict=True):
        _require(size in (1, result.shape[dimension]),
                 f"dimension {dimension} of {result.type} must be {size}")
    return TensorType(result.shape, x.dtype)


@_infers("reshape", "relayout")
def _reshape(operation: Operation) -> TensorType:
    [x], result = operation.operands, operation.result
    _require(x.type.size == result.type.size,
             f"elements of {result.type} must be {x.type.size}, not {result.type.size}")
    return TensorType(result.shape, x.dtype)


@_infers("transpose")
def _transpose(operation: Operation) -> TensorType:
    [x], permutation = operation.operands, operation.attributes["permutation"]
    _require(sorted(permutation) == list(range(x.type.rank)),
             f"permutation must order all {x.type.rank} dimensions, not {permutation}")
    return TensorType(tuple(x.shape[i] for i in permutation), x.dtype)


@_infers("slice")
def _slice(operation: Operation) -> TensorType:
    [x], attributes = operation.operands, operation.attributes
    shape = []
    for size, start, limit, stride in zip(x.shape, attributes["start_indices"],
                                          attributes["limit_indices"], attributes["strides"],
                                          strict=True):
        _require(0 <= start <= limit <= size and stride > 0,
                 f"a slice of {size} elements must lie within them, not {start}:{limit}:{stride}")
        shape.append(-(-(limit - start) // stride))
    return TensorType(tuple(shape), x.dtype)


@_infers("pad")
def _pad(operation: Operation) -> TensorType:
    (x, value), attributes = operation.operands, operation.attributes
    _require(value.type == TensorType((), x.dtype), f"operand 1 must be a scalar {x.dtype.value}, "
             f"not {value.type}")
    shape = []
    for size, low, high, gap in zip(x.shape, attributes["edge_padding_low"],
                                    attributes["edge_padding_high"],
                                    attributes["interior_padding"], strict=True):
        _require(gap >= 0, f"interior_padding must not be negative, not {gap}")
        shape.append(max(low + size + max(size - 1, 0) * gap + high, 0))
    return TensorType(tuple(shape), x.dtype)


@_infers("concatenate")
def _concatenate(operation: Operation) -> TensorType:
    first, dimension = operation.operands[0], operation.attributes["dimension"]
    _dimensions([dimension], first.type.rank, "dimension")
    for value in operation.operands:
        _require(value.dtype is first.dtype and value.type.rank == first.type.rank and all(
            a == b or i == dimension for i, (a, b) in enumerate(
                zip(value.shape, first.shape, strict=True))),
            f"{value.type} must equal {first.type} except in dimension {dimension}")
    shape = list(first.shape)
    shape[dimension] = sum(value.shape[dimension] for value in operation.operands)
    return TensorType(tuple(shape), first.dtype)


@_infers("reverse")
def _reverse(operation: Operation) -> TensorType:
    [x] = operation.operands
    _dimensions(operation.attributes["dimensions"], x.type.rank, "dimensions")
    return x.type


@_infers("optimization_barrier")
def _barrier(operation: Operation) -> list[TensorType]:
    return [value.type for value in operation.operands]


def _scalar_starts(starts: Sequence[Value], rank: int) -> None:
    _require(len(starts) == rank and all(
        not start.shape and start.dtype.is_integer for start in starts),
        f"starts must be {rank} scalar integers, not {', '.join(str(s.type) for s in starts)}")


@_infers("dynamic_slice")
def _dynamic_slice(operation: Operation) -> TensorType:
    x, *starts = operation.operands
    sizes = operation.attributes["slice_sizes"]
    _scalar_starts(starts, x.type.rank)
    _require(len(sizes) == x.type.rank, f"slice_sizes must have {x.type.rank} sizes: {sizes}")
    _require(all(0 <= size <= whole for size, whole in zip(sizes, x.shape, strict=True)),
             f"slice_sizes must lie within {x.type}, not {sizes}")
    return TensorType(tuple(sizes), x.dtype)


@_infers("dynamic_update_slice")
def _dynamic_update_slice(operation: Operation) -> TensorType:
    x, update, *starts = operation.operands
    _scalar_starts(starts, x.type.rank)
    _require(update.dtype is x.dtype and update.type.rank == x.type.rank and all(
        size <= whole for size, whole in zip(update.shape, x.shape, strict=True)),
        f"update must lie within {x.type}, not {update.type}")
    return x.type


@_infers("gather")
def _gather(operation: Operation) -> TensorType:
    (x, indices), attributes = operation.operands, operation.attributes
    sizes, vector = attributes["slice_sizes"], attributes["index_vector_dim"]
    _require(len(sizes) == x.type.rank and all(
        0 <= size <= whole for size, whole in zip(sizes, x.shape, strict=True)),
        f"slice_sizes must lie within {x.type}, not {sizes}")
    _require(indices.dtype.is_integer, f"indices must be integers, not {indices.dtype.value}")
    dropped = {*attributes["collapsed_slice_dims"], *attributes["operand_batching_dims"]}
    window = [size for i, size in enumerate(sizes) if i not in dropped]
    batch = [size for i, size in enumerate(indices.shape) if i != vector]
    offset = attributes["offset_dims"]
    _require(len(offset) == len(window),
             f"offset_dims must be {len(window)} dimensions, not {offset}")
    rank = len(window) + len(batch)
    _dimensions(offset, rank, "offset_dims")
    window_sizes, batch_sizes = iter(window), iter(batch)
    shape = [next(window_sizes) if i in offset else next(batch_sizes) for i in range(rank)]
    return TensorType(tuple(shape), x.dtype)


@_infers("scatter")
def _scatter(operation: Operation) -> list[TensorType]:
    count = len(operation.operands) // 2
    inputs, updates = operation.operands[:count], operation.operands[count + 1:]
    _require(len(updates) == count, "operands must be inputs, indices, and as many updates")
    _require(operation.operands[count].dtype.is_integer, "indices must be integers")
    _require(all(a.dtype is b.dtype for a, b in zip(inputs, updates, strict=True)),
             "updates must have the types of the inputs")
    scalars = [TensorType((), value.dtype) for value in inputs]
    _region(operation.regions[0], scalars * 2, scalars, "the region")
    return [value.type for value in inputs]


@_infers("reduce")
def _reduce(operation: Operation) -> list[TensorType]:
    count = len(operation.operands) // 2
    inputs, initial = operation.operands[:count], operation.operands[count:]
    dimensions = operation.attributes["dimensions"]
    _dimensions(dimensions, inputs[0].type.rank, "dimensions")
    _require(all(value.shape == inputs[0].shape for value in inputs), "inputs must have one shape")
    scalars = [TensorType((), value.dtype) for value in inputs]
    _require([value.type for value in initial] == scalars,
             "initial values must be scalars of the inputs' types")
    _region(operation.regions[0], scalars * 2, scalars, "the region")
    shape = tuple(size for i, size in enumerate(inputs[0].shape) if i not in dimensions)
    return [TensorType(shape, value.dtype) for value in inputs]


def _windows(shape: Sequence[int], size: Sequence[int], stride: Sequence[int],
             padding: Sequence[tuple[int, int]], base: Sequence[int], dilation: Sequence[int],
             ) -> tuple[int, ...]:
    """Return the number of windows over an input, in each dimension.

    All parameters have an item for each dimension. ``shape`` is the input's shape, and ``size`` the
    number of elements of a window. ``stride`` is the distance between windows, and ``padding`` the
    number of positions added before and after the input. In the padded input, neighbouring elements
    of the input are ``base`` positions apart, and neighbouring elements of a window ``dilation``
    positions.
    """
    found = []
    for n, w, s, (low, high), b, d in zip(shape, size, stride, padding, base, dilation,
                                          strict=True):
        _require(w > 0 and s > 0 and b > 0 and d > 0,
                 "sizes, strides and dilations of windows must be positive")
        spread = (low + (0 if n == 0 else (n - 1) * b + 1) + high)
        reach = (w - 1) * d + 1
        found.append(0 if spread <= 0 or reach > spread else (spread - reach) // s + 1)
    return tuple(found)


@_infers("reduce_window")
def _reduce_window(operation: Operation) -> list[TensorType]:
    count, attributes = len(operation.operands) // 2, operation.attributes
    inputs = operation.operands[:count]
    scalars = [TensorType((), value.dtype) for value in inputs]
    _require([value.type for value in operation.operands[count:]] == scalars,
             "initial values must be scalars of the inputs' types")
    _region(operation.regions[0], scalars * 2, scalars, "the region")
    shape = _windows(inputs[0].shape, attributes["window_dimensions"],
                     attributes["window_strides"], attributes["padding"],
                     attributes["base_dilations"], attributes["window_dilations"])
    return [TensorType(shape, value.dtype) for value in inputs]


@_infers("select_and_scatter")
def _select_and_scatter(operation: Operation) -> TensorType:
    x, source, initial = operation.operands
    attributes, ones = operation.attributes, (1,) * x.type.rank
    shape = _windows(x.shape, attributes["window_dimensions"], attributes["window_strides"],
                     attributes["padding"], ones, ones)
    _require(source.type == TensorType(shape, x.dtype),
             f"source must be {TensorType(shape, x.dtype)}, not {source.type}")
    scalar = TensorType((), x.dtype)
    _require(initial.type == scalar, f"the initial value must be {scalar}, not {initial.type}")
    _region(operation.regions[0], [scalar] * 2, [TensorType((), DType.PRED)], "select")
    _region(operation.regions[1], [scalar] * 2, [scalar], "scatter")
    return x.type


@_infers("sort")
def _sort(operation: Operation) -> list[TensorType]:
    types = [value.type for value in operation.operands]
    _dimensions([operation.attributes["dimension"]], types[0].rank, "dimension")
    _require(all(type.shape == types[0].shape for type in types), "operands must have one shape")
    pairs = [TensorType((), type.dtype) for type in types for _ in range(2)]
    _region(operation.regions[0], pairs, [TensorType((), DType.PRED)], "the comparator")
    return types


@_infers("dot_general")
def _dot_general(operation: Operation) -> TensorType:
    (a, b), attributes = operation.operands, operation.attributes
    batch_a, batch_b = (attributes[f"{side}_batching_dimensions"] for side in ("lhs", "rhs"))
    deep_a, deep_b = (attributes[f"{side}_contracting_dimensions"] for side in ("lhs", "rhs"))
    _dimensions([*batch_a, *deep_a], a.type.rank, "dimensions of the left operand")
    _dimensions([*batch_b, *deep_b], b.type.rank, "dimensions of the right operand")
    for left, right in ((batch_a, batch_b), (deep_a, deep_b)):
        _require([a.shape[i] for i in left] == [b.shape[i] for i in right],
                 f"dimensions {left} of {a.type} must equal dimensions {right} of {b.type}")
    shape = [a.shape[i] for i in batch_a]
    shape += [size for i, size in enumerate(a.shape) if i not in (*batch_a, *deep_a)]
    shape += [size for i, size in enumerate(b.shape) if i not in (*batch_b, *deep_b)]
    return TensorType(tuple(shape), operation.result.dtype)


@_infers("convolution")
def _convolution(operation: Operation) -> TensorType:
    (lhs, rhs), attributes = operation.operands, operation.attributes
    features = lhs.shape[attributes["input_feature_dimension"]]
    depth = rhs.shape[attributes["kernel_input_feature_dimension"]]
    outputs = rhs.shape[attributes["kernel_output_feature_dimension"]]
    groups, batches = attributes["feature_group_count"], attributes["batch_group_count"]
    batch = lhs.shape[attributes["input_batch_dimension"]]
    _require(features == depth * groups, f"input features must be {depth * groups}, not {features}")
    _require(min(groups, batches) == 1 and outputs % groups == 0 and outputs % batches == 0
             and batch % batches == 0,
             "groups must divide output features and batch, and one of the two counts must be 1")
    spatial = _windows([lhs.shape[i] for i in attributes["input_spatial_dimensions"]],
                       [rhs.shape[i] for i in attributes["kernel_spatial_dimensions"]],
                       attributes["window_strides"], attributes["padding"],
                       attributes["lhs_dilation"], attributes["rhs_dilation"])
    shape = [0] * lhs.type.rank
    shape[attributes["output_batch_dimension"]] = batch // batches
    shape[attributes["output_feature_dimension"]] = outputs
    for dimension, size in zip(attributes["output_spatial_dimensions"], spatial, strict=True):
        shape[dimension] = size
    return TensorType(tuple(shape), operation.result.dtype)


@_infers("phase_convolution")
def _phase_convolution(operation: Operation) -> TensorType:
    (lhs, rhs), attributes = operation.operands, operation.attributes
    _require(lhs.type.rank == 5, f"the input must have 5 dimensions, not {lhs.type.rank}")
    lines, images, phases, positions, features = lhs.shape
    depth = rhs.shape[attributes["kernel_input_feature_dimension"]]
    _require(features == depth, f"input features must be {depth}, not {features}")
    result = _windows([lines, phases * positions],
                      [rhs.shape[i] for i in attributes["kernel_spatial_dimensions"]],
                      attributes["window_strides"], attributes["padding"],
                      attributes["lhs_dilation"], attributes["rhs_dilation"])
    found = phases * attributes["lhs_dilation"][1] // attributes["window_strides"][1]
    width = found * positions
    _require(result[1] == width, f"columns must be {width}, not {result[1]}")
    outputs = rhs.shape[attributes["kernel_output_feature_dimension"]]
    columns = attributes["columns"]
    _require(columns > 0 and outputs % columns == 0,
             f"output features must be a multiple of {columns}, not {outputs}")
    return TensorType((result[0], images, found * columns, positions, outputs // columns),
                      operation.result.dtype)


@_infers("line_convolution")
def _line_convolution(operation: Operation) -> TensorType:
    (lines, filters), stride = operation.operands, operation.attributes["stride"]
    ranks = lines.type.rank, filters.type.rank
    _require(ranks == (5, 2),
             f"operands must have 5 and 2 dimensions, not {ranks[0]} and {ranks[1]}")
    images, count, features, offsets, columns = lines.shape
    _require(filters.shape[1] % (features * offsets) == 0,
             f"depth must be a multiple of {features * offsets}, not {filters.shape[1]}")
    window = filters.shape[1] // (features * offsets)
    _require(stride >= 1 and window <= count, f"the filter must have {count} lines or fewer")
    return TensorType(((count - window) // stride + 1, images, filters.shape[0], columns),
                      operation.result.dtype)


@_infers("map")
def _map(operation: Operation) -> TensorType:
    scalars = [TensorType((), value.dtype) for value in operation.operands]
    result = operation.result.type
    _region(operation.regions[0], scalars, [TensorType((), result.dtype)], "the region")
    return TensorType(operation.operands[0].shape, result.dtype)


@_infers("while")
def _while(operation: Operation) -> list[TensorType]:
    types = [value.type for value in operation.operands]
    condition, body = operation.regions
    _region(condition, types, [TensorType((), DType.PRED)], "the condition")
    _region(body, types, types, "the body")
    return types


@_infers("case")
def _case(operation: Operation) -> list[TensorType]:
    index, *taken = operation.operands
    _require(index.type == TensorType((), DType.S32), f"the index must be i32, not {index.type}")
    types = [value.type for value in operation.results]
    for branch in operation.regions:
        _region(branch, [value.type for value in taken], types, "a branch")
    return types


@_infers("stream")
def _stream(operation: Operation) -> list[TensorType]:
    attributes, types = operation.attributes, [value.type for value in operation.results]
    cut, put = attributes["operand_dimensions"], attributes["result_dimensions"]
    _require(len(put) == len(types), "result_dimensions must have an entry for each result")
    carried = [kind for kind, along in zip(types, put, strict=True) if along < 0]
    given = [value.type for value in operation.operands]
    _require(given[len(cut):] == carried, "the last operands must have the carried results' types")
    tables = [attributes[name] for name in ("counts", "starts", "steps")]
    _require(all(len(table) == len(operation.regions) for table in tables),
             "counts, starts and steps must have an entry for each region")
    sizes = [0] * len(types)
    for region, count, starts, steps in zip(operation.regions, *tables, strict=True):
        _require(count > 0 and len(starts) == len(steps) == len(cut),
                 "counts must be positive, and starts and steps have an entry for each operand "
                 "before the carried ones")
        blocks = [_block(kind, along, value.shape) for kind, along, value
                  in zip(given, cut, region.inputs, strict=False)]
        for kind, along, block, start, step in zip(
                given[:len(cut)], cut, blocks, starts, steps, strict=True):
            last = start + (count - 1) * step
            _require(along < 0 or (min(start, last) >= 0 and
                                   max(start, last) + block.shape[along] <= kind.shape[along]),
                     f"blocks must lie in operands of type {kind}")
        outputs = [_block(kind, along, value.shape) for kind, along, value
                   in zip(types, put, region.outputs, strict=True)]
        _region(region, [*blocks, *carried], outputs, "a region")
        sizes = [size + count * output.shape[along] if along >= 0 else 0
                 for size, output, along in zip(sizes, outputs, put, strict=True)]
    _require(all(along < 0 or kind.shape[along] == size
                 for kind, along, size in zip(types, put, sizes, strict=True)),
             "blocks must fill the results")
    return types


def _block(whole: TensorType, along: int, shape: tuple[int, ...]) -> TensorType:
    """Return the type of a block of a value of type ``whole``.

    The block has the size of ``shape`` in dimension ``along``, and that of ``whole`` in all others.
    If ``along`` is negative, the block is the whole value.
    """
    if along < 0:
        return whole
    _require(along < whole.rank and whole.rank == len(shape),
             f"{along} must be a dimension of the value and of its block")
    return TensorType((*whole.shape[:along], shape[along], *whole.shape[along + 1:]), whole.dtype)


@_infers("by_device", "exchange")
def _devices(operation: Operation) -> TensorType:
    types = list(dict.fromkeys(value.type for value in operation.operands))
    _require(len(types) == 1, "operands must have one type, not " + " and ".join(map(str, types)))
    sources = operation.attributes.get("sources", (1, 0))
    _require(operation.kind == "by_device"
             or sorted(sources) == list(range(len(operation.operands))),
             f"sources must be a permutation of {len(operation.operands)} devices, not {sources}")
    return types[0]


@_infers("pod_sum")
def _pod_sum(operation: Operation) -> list[TensorType]:
    types = [value.type for value in operation.operands]
    _require(all(kind.dtype is DType.F32 for kind in types),
             "operands must be of type f32, not " + " and ".join(map(str, types)))
    for region in operation.regions:
        _region(region, types, types, "the region")
    return types


@_infers("fusion")
def _fusion(operation: Operation) -> list[TensorType]:
    types = [value.type for value in operation.results]
    [region] = operation.regions
    _region(region, [value.type for value in operation.operands], types, "the region")
    return types
