"""Random graphs: all kinds of operations with random shapes, types, attributes and values.

An operation's results are exact or rough. Exact results are the same on every correct
implementation: moved elements, integers, comparisons, and floats that are rounded once. Rough
results have an error: sums, products and elementary functions of floats. No other operation uses
them, so that the error remains that of one operation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.compiler.graph.arrays import Array, array_dtype
from sim.compiler.graph.infer import infer
from sim.compiler.graph.ir import (
    STACKED,
    DType,
    Graph,
    Operation,
    Sharding,
    TensorType,
    Value,
)
from sim.compiler.graph.verify import verify

__all__ = ["RandomGraph", "differences", "random_graph"]

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 11)
LARGE_SIZES = (1, 2, 3, 5, 8, 9, 12, 30, 33, 64, 100, 150)
SMALLEST_LIMIT, LARGEST_LIMIT = 150, 6000
"""Maximum numbers of elements of a value: in graphs that fit in the vector memory of `tiny`, and in
graphs that may not fit."""
DTYPES = (DType.F32, DType.S32, DType.U32, DType.PRED, DType.BF16)
INTEGERS = (DType.S32, DType.U32)
FLOATS = (DType.F32, DType.BF16)


@dataclass(frozen=True)
class RandomGraph:
    """A graph with arrays for its inputs.

    Attributes
    ----------
    seed : int
        Seed from which the graph was made.
    graph : Graph
        The graph, which `verify` has accepted.
    inputs : list of array
        An array for each input.
    exact : list of bool
        Whether each output is exact.
    """

    seed: int
    graph: Graph
    inputs: list[Array]
    exact: list[bool]


def random_graph(seed: int, operations: int = 6, kinds: Sequence[str] = (), *,
                 large: bool = False, exchanges: bool = False) -> RandomGraph:
    """Make a random graph.

    Parameters
    ----------
    seed : int
        Equal seeds give equal graphs.
    operations : int
        Number of makers that are called; each adds an operation, and some add helper operations.
    kinds : sequence of str, optional
        Names in `MAKERS` to choose from; all of them, if empty.
    large : bool
        Make values of up to three times the size of `tiny`'s vector memory.
    exchanges : bool
        Make a graph in which both cores of a chip exchange values and results of products. The
        first dimension of every array then has one index for each core.
    """
    maker = _Maker(np.random.default_rng(seed))
    if large:
        maker.sizes, maker.limit = LARGE_SIZES, LARGEST_LIMIT
    names = list(kinds) or sorted(MAKERS)
    while maker.made < operations:
        if exchanges:
            maker.choice((_exchange, _exchanged_product))(maker)
        MAKERS[names[int(maker.rng.integers(len(names)))]](maker)
        maker.made += 1
    used = {value for operation in maker.graph.operations for value in operation.operands}
    ends = [value for value in maker.pool if value not in used and value not in maker.graph.inputs]
    maker.graph.outputs = [*maker.rough, *ends] or maker.pool[-1:]
    if exchanges:
        maker.graph.sharding = Sharding((STACKED,) * len(maker.graph.inputs),
                                        (STACKED,) * len(maker.graph.outputs))
        # Core 1 has the same numbers at other places.
        maker.inputs = [np.stack([array, np.flip(array)]) for array in maker.inputs]
    verify(maker.graph)
    return RandomGraph(seed, maker.graph, maker.inputs,
                       [value not in maker.rough for value in maker.graph.outputs])


def differences(graph: RandomGraph, found: Sequence[Array], expected: Sequence[Array],
                tolerance: float) -> list[str]:
    """Describe results that differ; a subnormal number equals zero, and all NaN are equal.

    Parameters
    ----------
    graph : RandomGraph
        The graph that was executed.
    found, expected : sequence of array
        Results of the graph, and expected results.
    tolerance : float
        Allowed error of rough results, those that are not `RandomGraph.exact`. It is relative to
        the largest finite number of the array. A rough bf16 result may also be a neighbour of the
        expected number, because the error may change the direction in which it is rounded.
    """
    texts = []
    for index, (a, b, exact) in enumerate(zip(found, expected, graph.exact, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            texts.append(f"seed {graph.seed}, output {index}: {a.shape} {a.dtype}, "
                         f"not {b.shape} {b.dtype}")
            continue
        if a.dtype.kind in "biu":
            wrong = a != b
        else:
            x, y = (_flushed(array.astype(np.float64)) for array in (a, b))
            equal = (x == y) & (np.signbit(x) == np.signbit(y)) | (np.isnan(x) & np.isnan(y))
            if not exact:
                finite = np.abs(y[np.isfinite(y)]).max(initial=2.0**-100)
                with np.errstate(invalid="ignore"):
                    equal |= np.abs(x - y) <= tolerance * finite
                    if a.dtype == array_dtype(DType.BF16):
                        equal |= np.abs(x - y) <= np.exp2(np.frexp(y)[1] - 8.0)
            wrong = ~equal
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            texts.append(f"seed {graph.seed}, output {index} at {place}: {a[place]!r}, "
                         f"not {b[place]!r}")
    return texts


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)


@dataclass
class _Maker:
    rng: np.random.Generator
    graph: Graph = field(default_factory=Graph)
    inputs: list[Array] = field(default_factory=list)
    pool: list[Value] = field(default_factory=list)
    rough: list[Value] = field(default_factory=list)
    made: int = 0
    sizes: Sequence[int] = SIZES
    limit: int = SMALLEST_LIMIT

    def integer(self, low: int, high: int) -> int:
        """A random number from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def choice(self, items: Sequence[Any]) -> Any:
        return items[self.integer(0, len(items) - 1)]

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.integer(0, 4) if rank is None else rank
        while True:
            shape = tuple(self.choice(self.sizes) for _ in range(rank))
            if np.prod(shape, dtype=np.int64) <= self.limit:
                return shape

    def array(self, shape: tuple[int, ...], dtype: DType) -> Array:
        kind = array_dtype(dtype)
        if dtype is DType.PRED:
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.is_integer:
            info = np.iinfo(kind)
            small = self.rng.integers(max(info.min, -9), 9, shape)
            wide = self.rng.integers(info.min, int(info.max) + 1, shape)
            corners = self.rng.choice(np.array([info.min, info.max, 0, 1], np.int64), shape)
            pick = self.rng.integers(0, 4, shape)
            return np.where(pick < 2, small, np.where(pick == 2, wide, corners)
                            ).astype(kind)
        numbers = self.rng.normal(size=shape)
        corners = self.rng.choice(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e3, -0.5]), shape)
        mixed = np.where(self.rng.random(shape) < 0.85, numbers, corners)
        return np.asarray(mixed).astype(kind)

    def value(self, dtypes: Sequence[DType] = DTYPES, rank: int | None = None, least: int = 0,
              ) -> Value:
        """A value from the pool, or a new input or constant; its type is one of ``dtypes``."""
        fitting = [value for value in self.pool if value.dtype in dtypes
                   and value.type.rank >= least and rank in (None, value.type.rank)
                   and value.type.size <= self.limit]
        if fitting and self.rng.random() < 0.75:
            return self.choice(fitting)
        shape = self.shape(max(self.integer(0, 4), least) if rank is None else rank)
        return self.new(TensorType(shape, self.choice(dtypes)))

    def new(self, type: TensorType, *, finite: bool = False) -> Value:
        """A new input or constant; with ``finite``, it has neither an infinity nor a NaN."""
        array = self.array(type.shape, type.dtype)
        if finite and type.dtype.is_float:
            array = np.where(np.isfinite(array), array, np.ones_like(array))
        if self.rng.random() < 0.2:
            return self.constant(array, type)
        value = Value(type)
        self.graph.inputs.append(value)
        self.inputs.append(array)
        self.pool.append(value)
        return value

    def constant(self, array: Array, type: TensorType) -> Value:
        return self.graph.add("constant", (), type, {"value": np.asarray(array)}).result

    def number(self, number: int, dtype: DType = DType.S32) -> Value:
        return self.constant(np.array(number, array_dtype(dtype)), TensorType((), dtype))

    def like(self, value: Value, dtype: DType | None = None) -> Value:
        """A value of the same shape as another one."""
        type = TensorType(value.shape, dtype or value.dtype)
        fitting = [other for other in self.pool if other.type == type]
        return self.choice(fitting) if fitting and self.rng.random() < 0.7 else self.new(type)

    def add(self, kind: str, operands: Sequence[Value], type: TensorType | None = None,
            regions: Sequence[Graph] = (), *, rough: bool = False, **attributes: Any) -> None:
        """Append an operation.

        Later operations can use its results, unless the results are ``rough``, that is inexact.
        """
        operation = Operation(kind, tuple(operands), (), attributes, tuple(regions))
        if type is not None:
            operation.results = (Value(type),)
        types = infer(operation)
        operation.results = tuple(map(Value, types))
        self.graph.operations.append(operation)
        (self.rough if rough else self.pool).extend(operation.results)


def reducer(kind: str, dtype: DType) -> Graph:
    """A region that applies an operation to two scalars."""
    scalar = TensorType((), dtype)
    region = Graph([Value(scalar), Value(scalar)], name=kind)
    region.outputs = [region.add(kind, region.inputs, scalar).result]
    return region


def _unary_exact(at: _Maker) -> None:
    kind = at.choice(("abs", "negate", "sign", "floor", "ceil", "not", "is_finite", "popcnt",
                      "count_leading_zeros", "round_nearest_even", "round_nearest_afz"))
    dtypes: Sequence[DType] = {"not": (*INTEGERS, DType.PRED), "popcnt": INTEGERS,
                               "count_leading_zeros": INTEGERS,
                               "abs": (DType.F32, DType.BF16, DType.S32),
                               "sign": (DType.F32, DType.BF16, DType.S32),
                               "negate": (*FLOATS, *INTEGERS)}.get(kind, FLOATS)
    at.add(kind, [at.value(dtypes)])


def _unary_rough(at: _Maker) -> None:
    kind = at.choice(("exponential", "tanh", "logistic", "sine", "cosine", "sqrt", "log",
                      "rsqrt", "exponential_minus_one", "log_plus_one", "cbrt", "tan"))
    at.add(kind, [at.value(FLOATS)], rough=True)


def _binary_rough(at: _Maker) -> None:
    x = at.value(FLOATS)
    at.add(at.choice(("divide", "power", "atan2")), [x, at.like(x)], rough=True)


def _bitcast(at: _Maker) -> None:
    # No pattern becomes a float, because it may be a subnormal number, which counts as zero; and no
    # computed float becomes a pattern, because NaN has several.
    x = at.value(INTEGERS) if at.rng.random() < 0.5 else at.new(TensorType(at.shape(), DType.F32))
    at.add("bitcast_convert", [x], TensorType(x.shape, at.choice(INTEGERS)))


def _binary(at: _Maker) -> None:
    kind = at.choice(("add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor",
                      "shift_left", "shift_right_logical", "shift_right_arithmetic", "divide",
                      "remainder"))
    dtypes: Sequence[DType] = (*FLOATS, *INTEGERS)
    if kind in ("and", "or", "xor"):
        dtypes = (*INTEGERS, DType.PRED)
    elif kind.startswith("shift") or kind in ("divide", "remainder"):
        dtypes = INTEGERS
    x = at.value(dtypes)
    at.add(kind, [x, at.like(x)])


def _compare(at: _Maker) -> None:
    x = at.value()
    kind = "FLOAT" if x.dtype.is_float else "SIGNED" if x.dtype.is_signed else "UNSIGNED"
    at.add("compare", [x, at.like(x)], compare_type=kind,
           comparison_direction=at.choice(("EQ", "NE", "LT", "LE", "GT", "GE")))


def _select(at: _Maker) -> None:
    x = at.value()
    shape = x.shape if at.rng.random() < 0.7 else ()
    predicate = at.new(TensorType(shape, DType.PRED))
    at.add("select", [predicate, x, at.like(x)])


def _clamp(at: _Maker) -> None:
    x = at.value((*FLOATS, *INTEGERS))
    bounds = [at.new(TensorType((), x.dtype)) for _ in range(2)]
    at.add("clamp", [bounds[0], x, bounds[1]])


def _convert(at: _Maker) -> None:
    x = at.value()
    at.add("convert", [x], TensorType(x.shape, at.choice(DTYPES)))


def _broadcast(at: _Maker) -> None:
    x = at.value()
    rank = at.integer(x.type.rank, min(x.type.rank + 2, 4))
    places = tuple(sorted(at.rng.permutation(rank)[:x.type.rank].tolist()))
    shape = [at.choice(SIZES[:5]) for _ in range(rank)]
    for size, place in zip(x.shape, places, strict=True):
        shape[place] = shape[place] if size == 1 else size
    if np.prod(shape, dtype=np.int64) <= 2 * at.limit:
        at.add("broadcast_in_dim", [x], TensorType(tuple(shape), x.dtype),
               broadcast_dimensions=places)


def _reshape(at: _Maker) -> None:
    x = at.value()
    shape: list[int] = []
    left = x.type.size
    while left > 1 and len(shape) < 3:
        size = at.choice([d for d in range(1, left + 1) if left % d == 0])
        shape.append(size)
        left //= size
    shape.append(left)
    at.add("reshape", [x], TensorType(tuple(at.rng.permutation(shape).tolist()), x.dtype))


def _transpose(at: _Maker) -> None:
    x = at.value(least=1)
    at.add("transpose", [x], permutation=tuple(at.rng.permutation(x.type.rank).tolist()))


def _slice(at: _Maker) -> None:
    x = at.value(least=1)
    starts = tuple(at.integer(0, size - 1) for size in x.shape)
    limits = tuple(at.integer(start + 1, size) for start, size in zip(starts, x.shape, strict=True))
    at.add("slice", [x], start_indices=starts, limit_indices=limits,
           strides=tuple(at.integer(1, 3) for _ in x.shape))


def _pad(at: _Maker) -> None:
    x = at.value(least=1)
    amounts = [tuple(at.integer(-1 if size > 3 else 0, 2) for size in x.shape) for _ in range(2)]
    at.add("pad", [x, at.new(TensorType((), x.dtype))], edge_padding_low=amounts[0],
           edge_padding_high=amounts[1], interior_padding=tuple(
               at.choice((0, 0, 1)) for _ in x.shape))


def _concatenate(at: _Maker) -> None:
    x = at.value(least=1)
    dimension = at.integer(0, x.type.rank - 1)
    others = []
    for _ in range(at.integer(0, 2)):
        shape = list(x.shape)
        shape[dimension] = at.choice(SIZES[:4])
        others.append(at.new(TensorType(tuple(shape), x.dtype)))
    at.add("concatenate", [x, *others], dimension=dimension)


def _reverse(at: _Maker) -> None:
    x = at.value(least=1)
    count = at.integer(1, x.type.rank)
    at.add("reverse", [x], dimensions=tuple(at.rng.permutation(x.type.rank)[:count].tolist()))


def _iota(at: _Maker) -> None:
    shape = at.shape(at.integer(1, 3))
    at.add("iota", [], TensorType(shape, at.choice((DType.F32, *INTEGERS))),
           iota_dimension=at.integer(0, len(shape) - 1))


def _starts(at: _Maker, x: Value) -> list[Value]:
    return [at.number(at.integer(-1, size)) if at.rng.random() < 0.3
            else at.new(TensorType((), DType.S32)) for size in x.shape]


def _dynamic_slice(at: _Maker) -> None:
    x = at.value(least=1)
    at.add("dynamic_slice", [x, *_starts(at, x)],
           slice_sizes=tuple(at.integer(1, size) for size in x.shape))


def _dynamic_update_slice(at: _Maker) -> None:
    x = at.value(least=1)
    update = at.new(TensorType(tuple(at.integer(1, size) for size in x.shape), x.dtype))
    at.add("dynamic_update_slice", [x, update, *_starts(at, x)])


def _gather(at: _Maker) -> None:
    x = at.value(least=1)
    dimension = at.integer(0, x.type.rank - 1)
    count = at.choice(SIZES[:5])
    sizes = tuple(1 if i == dimension else size for i, size in enumerate(x.shape))
    at.add("gather", [x, at.new(TensorType((count, 1), DType.S32))],
           offset_dims=tuple(range(1, x.type.rank)), collapsed_slice_dims=(dimension,),
           operand_batching_dims=(), start_indices_batching_dims=(), start_index_map=(dimension,),
           index_vector_dim=1, slice_sizes=sizes, indices_are_sorted=False)


def _scatter(at: _Maker) -> None:
    x = at.value((*INTEGERS, DType.F32), least=1)
    count = at.choice(SIZES[:5])
    kind = at.choice(("add", "maximum") if x.dtype.is_integer else ("maximum", "minimum"))
    updates = at.new(TensorType((count, *x.shape[1:]), x.dtype))
    at.add("scatter", [x, at.new(TensorType((count, 1), DType.S32)), updates],
           regions=[reducer(kind, x.dtype)], update_window_dims=tuple(range(1, x.type.rank)),
           inserted_window_dims=(0,), input_batching_dims=(), scatter_indices_batching_dims=(),
           scatter_dims_to_operand_dims=(0,), index_vector_dim=1, indices_are_sorted=False,
           unique_indices=False)


def _reducer_of(at: _Maker, dtype: DType) -> str:
    if dtype is DType.PRED:
        return str(at.choice(("and", "or")))
    kinds = ("add", "maximum", "minimum", "multiply") if dtype.is_integer else (
        "add", "maximum", "minimum")
    return str(at.choice(kinds))


def _reduce(at: _Maker) -> None:
    x = at.value(least=1)
    kind = _reducer_of(at, x.dtype)
    count = at.integer(1, x.type.rank)
    dimensions = tuple(sorted(at.rng.permutation(x.type.rank)[:count].tolist()))
    at.add("reduce", [x, at.new(TensorType((), x.dtype))], regions=[reducer(kind, x.dtype)],
           rough=kind == "add" and x.dtype.is_float, dimensions=dimensions)


def _reduce_window(at: _Maker) -> None:
    x = at.value((DType.F32, *INTEGERS), least=1)
    kind = _reducer_of(at, x.dtype)
    ones = (1,) * x.type.rank
    at.add("reduce_window", [x, at.new(TensorType((), x.dtype))],
           regions=[reducer(kind, x.dtype)], rough=kind == "add" and x.dtype.is_float,
           window_dimensions=tuple(at.integer(1, min(size, 3)) for size in x.shape),
           window_strides=tuple(at.integer(1, 2) for _ in x.shape),
           padding=tuple((at.integer(0, 1), at.integer(0, 1)) for _ in x.shape),
           base_dilations=ones, window_dilations=ones)


def _sort(at: _Maker) -> None:
    x = at.value(INTEGERS, least=1)
    scalar = TensorType((), x.dtype)
    region = Graph([Value(scalar), Value(scalar)])
    region.outputs = [region.add("compare", region.inputs, TensorType((), DType.PRED), {
        "comparison_direction": "LT",
        "compare_type": "SIGNED" if x.dtype.is_signed else "UNSIGNED"}).result]
    others = [at.like(x, at.choice(DTYPES)) for _ in range(at.integer(0, 1))]
    for other in others:
        region.inputs += [Value(TensorType((), other.dtype)) for _ in range(2)]
    at.add("sort", [x, *others], regions=[region], dimension=at.integer(0, x.type.rank - 1),
           is_stable=True)


def _dot_general(at: _Maker) -> None:
    a = at.value((DType.F32, DType.BF16, *INTEGERS), least=1)
    deep = at.integer(0, a.type.rank - 1)
    batch = [i for i in range(a.type.rank) if i != deep and at.rng.random() < 0.3]
    columns = at.choice(SIZES[:6])
    sizes = [a.shape[deep], columns, *(a.shape[i] for i in batch)]
    order = at.rng.permutation(len(sizes)).tolist()
    if a.type.size * columns > 4 * at.limit:
        return
    b = at.new(TensorType(tuple(sizes[i] for i in order), a.dtype))
    at.add("dot_general", [a, b], TensorType((), a.dtype), rough=a.dtype.is_float,
           lhs_batching_dimensions=tuple(batch),
           rhs_batching_dimensions=tuple(order.index(2 + i) for i in range(len(batch))),
           lhs_contracting_dimensions=(deep,), rhs_contracting_dimensions=(order.index(0),),
           precision_config=(at.choice(("DEFAULT", "HIGH", "HIGHEST")),) * 2)


def _convolution(at: _Maker) -> None:
    """A convolution of one or two spatial dimensions: batch first, features last.

    The image is finite: an infinity or a NaN may reach more results than it should
    (docs/compiler.md, "Convolutions").
    """
    spatial = at.integer(1, 2)
    sizes = [at.integer(1, 5) for _ in range(spatial)]
    features, groups = at.integer(1, 5), at.choice((1, 1, 2))
    type = TensorType((at.integer(1, 2), *sizes, features * groups),
                      at.choice((*FLOATS, *INTEGERS)))
    kernel = TensorType((*(at.integer(1, min(size, 3)) for size in sizes), features,
                         at.integer(1, 4) * groups), type.dtype)
    middle, ones = tuple(range(1, spatial + 1)), (1,) * spatial
    # Groups of one feature are multiplied in fp32, whatever the precision.
    precision = "HIGHEST" if features == 1 < groups else at.choice(("DEFAULT", "HIGH", "HIGHEST"))
    at.add("convolution", [at.new(type, finite=True), at.new(kernel)], TensorType((), type.dtype),
           rough=type.dtype.is_float, window_strides=tuple(at.integer(1, 2) for _ in sizes),
           padding=tuple((at.integer(0, 1), at.integer(0, 1)) for _ in sizes), lhs_dilation=ones,
           rhs_dilation=ones, window_reversal=tuple(at.rng.random() < 0.3 for _ in sizes),
           input_batch_dimension=0, input_feature_dimension=spatial + 1,
           input_spatial_dimensions=middle, kernel_input_feature_dimension=spatial,
           kernel_output_feature_dimension=spatial + 1,
           kernel_spatial_dimensions=tuple(range(spatial)), output_batch_dimension=0,
           output_feature_dimension=spatial + 1, output_spatial_dimensions=middle,
           feature_group_count=groups, batch_group_count=1, precision_config=(precision,) * 2)


def _case(at: _Maker) -> None:
    x = at.value((DType.F32, *INTEGERS))
    y = at.like(x)
    branches = []
    for kind in at.choice((("add",), ("maximum", "add"), ("minimum", "subtract", "maximum"))):
        branch = Graph([Value(x.type), Value(y.type)], name=kind)
        branch.outputs = [branch.add(kind, branch.inputs, x.type).result]
        branches.append(branch)
    at.add("case", [at.new(TensorType((), DType.S32)), x, y], x.type, branches)


def _while(at: _Maker) -> None:
    """A loop of a few iterations that adds a value, which it carries unchanged, to another one."""
    x = at.value((DType.F32, *INTEGERS))
    step, scalar = at.like(x), TensorType((), DType.S32)
    types = [scalar, x.type, step.type]
    condition, body = (Graph([Value(type) for type in types], name=name)
                       for name in ("condition", "body"))
    limit = condition.add("constant", (), scalar,
                          {"value": np.array(at.integer(0, 4), np.int32)}).result
    condition.outputs = [condition.add("compare", (condition.inputs[0], limit),
                                       TensorType((), DType.PRED), {
        "comparison_direction": "LT", "compare_type": "SIGNED"}).result]
    one = body.add("constant", (), scalar, {"value": np.array(1, np.int32)}).result
    body.outputs = [body.add("add", (body.inputs[0], one), scalar).result,
                    body.add("add", body.inputs[1:], x.type).result, body.inputs[2]]
    at.add("while", [at.number(0), x, step], regions=[condition, body])


def _exchange(at: _Maker) -> None:
    x = at.value()
    at.add("exchange", [x, x if at.rng.random() < 0.5 else at.like(x)])


def _exchanged_product(at: _Maker) -> None:
    """A product that is sent in two parts to the other core, and its sum with the received one."""
    rows, depth, columns = (at.integer(*sizes) for sizes in ((9, 20), (1, 12), (9, 20)))
    operands = [at.new(TensorType(shape, DType.F32), finite=True)
                for shape in ((rows, depth), (depth, columns))]
    at.add("dot_general", operands, TensorType((rows, columns), DType.F32), rough=True,
           lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
           lhs_batching_dimensions=(), rhs_batching_dimensions=(),
           precision_config=(at.choice(("DEFAULT", "HIGHEST")),) * 2)
    product = at.rough[-1]
    at.add("exchange", [product, product], rough=True)
    at.add("add", [at.rough[-1], product], rough=True)


MAKERS: dict[str, Callable[[_Maker], None]] = {
    "unary_exact": _unary_exact, "unary_rough": _unary_rough, "binary": _binary,
    "binary_rough": _binary_rough, "bitcast_convert": _bitcast, "convolution": _convolution,
    "compare": _compare, "select": _select, "clamp": _clamp, "convert": _convert,
    "broadcast": _broadcast, "reshape": _reshape, "transpose": _transpose, "slice": _slice,
    "pad": _pad, "concatenate": _concatenate, "reverse": _reverse, "iota": _iota,
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather, "scatter": _scatter, "reduce": _reduce, "reduce_window": _reduce_window,
    "sort": _sort, "dot_general": _dot_general, "case": _case, "while": _while,
}
"""Functions that add an operation to a graph, by name."""
