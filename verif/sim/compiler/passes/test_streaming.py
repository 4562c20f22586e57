"""Operations whose values do not fit in vector memory become streams of blocks."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import DType, Graph, TensorType, Value
from sim.compiler.graph.verify import verify
from sim.compiler.passes.streaming import stream_large
from systolith import Device
from verif.sim.compiler.program.common import TINY, Maker, arrays_for, check, f32, pred, s32

Ints = tuple[int, ...]


@pytest.fixture(scope="module")
def golden() -> Iterator[Device]:
    with Device.open("tiny", "golden") as opened:
        yield opened


@pytest.fixture(scope="module")
def rtl() -> Iterator[Device]:
    with Device.open("tiny", "rtl") as opened:
        yield opened


def number(m: Maker, value: float) -> Value:
    return m.constant(np.array(value, np.float32), f32())


def region(kind: str, result: TensorType | None = None, **attributes: str) -> Graph:
    made = Graph([Value(f32()), Value(f32())])
    made.outputs = [made.add(kind, made.inputs, result or f32(), attributes).result]
    return made


def elementwise(shape: Ints) -> Graph:
    m = Maker(f32(*shape), f32(*shape), f32(shape[-1]))
    rows = m.op("broadcast_in_dim", m.inputs[2], to=f32(*shape),
                broadcast_dimensions=(len(shape) - 1,))
    total = m.op("add", m.op("multiply", *m.inputs[:2]), rows)
    counts = [m.op("iota", to=f32(*shape), iota_dimension=along) for along in range(len(shape))]
    return m.returns(m.op("subtract", total, counts[0]), m.op("maximum", counts[-1], rows))


def reduction(shape: Ints, dimensions: Ints, kind: str = "add", initial: float = 3) -> Graph:
    m = Maker(f32(*shape))
    kept = f32(*(size for along, size in enumerate(shape) if along not in dimensions))
    return m.returns(m.graph.add("reduce", (m.inputs[0], number(m, initial)), kept,
                                 {"dimensions": dimensions}, (region(kind),)).result)


def reshape(before: Ints, after: Ints) -> Graph:
    m = Maker(f32(*before))
    return m.returns(m.op("reshape", m.inputs[0], to=f32(*after)))


def transpose(shape: Ints, permutation: Ints) -> Graph:
    m = Maker(f32(*shape))
    return m.returns(m.op("transpose", m.inputs[0], to=f32(*(shape[at] for at in permutation)),
                          permutation=permutation))


def sliced(shape: Ints, start: Ints, limit: Ints, strides: Ints) -> Graph:
    m = Maker(f32(*shape))
    size = (-(-(b - a) // step) for a, b, step in zip(start, limit, strides, strict=True))
    return m.returns(m.op("slice", m.inputs[0], to=f32(*size), start_indices=start,
                          limit_indices=limit, strides=strides))


def padded(shape: Ints, low: Ints, high: Ints, interior: Ints) -> Graph:
    m = Maker(f32(*shape))
    size = (n + a + b + (n - 1) * i for n, a, b, i in zip(shape, low, high, interior, strict=True))
    return m.returns(m.op("pad", m.inputs[0], number(m, 7), to=f32(*size), edge_padding_low=low,
                          edge_padding_high=high, interior_padding=interior))


def reverse(shape: Ints, dimensions: Ints) -> Graph:
    m = Maker(f32(*shape))
    return m.returns(m.op("reverse", m.inputs[0], dimensions=dimensions))


def concatenate(shapes: Sequence[Ints], along: int) -> Graph:
    m = Maker(*(f32(*shape) for shape in shapes))
    size = list(shapes[0])
    size[along] = sum(shape[along] for shape in shapes)
    return m.returns(m.op("concatenate", *m.inputs, to=f32(*size), dimension=along))


def product(rows: int, depth: int, columns: int, batch: Ints = ()) -> Graph:
    m = Maker(f32(*batch, rows, depth), f32(*batch, depth, columns))
    rank = len(batch)
    return m.returns(m.op(
        "dot_general", *m.inputs, to=f32(*batch, rows, columns),
        lhs_batching_dimensions=tuple(range(rank)), rhs_batching_dimensions=tuple(range(rank)),
        lhs_contracting_dimensions=(rank + 1,), rhs_contracting_dimensions=(rank,),
        precision_config=("DEFAULT", "DEFAULT")))


def convolution(batch: int, size: int, features: int, made: int, stride: int = 1) -> Graph:
    m = Maker(f32(batch, size, size, features), f32(3, 3, features, made))
    rows = (size - 1) // stride + 1
    return m.returns(m.op(
        "convolution", *m.inputs, to=f32(batch, rows, rows, made), window_strides=(stride,) * 2,
        padding=((1, 1), (1, 1)), lhs_dilation=(1, 1), rhs_dilation=(1, 1),
        window_reversal=(False, False), input_batch_dimension=0, input_feature_dimension=3,
        input_spatial_dimensions=(1, 2), kernel_input_feature_dimension=2,
        kernel_output_feature_dimension=3, kernel_spatial_dimensions=(0, 1),
        output_batch_dimension=0, output_feature_dimension=3, output_spatial_dimensions=(1, 2),
        feature_group_count=1, batch_group_count=1, precision_config=("DEFAULT", "DEFAULT")))


def windows(shape: Ints, size: Ints, strides: Ints, padding: Sequence[tuple[int, int]],
            kind: str = "maximum", initial: float = -np.inf) -> Graph:
    m = Maker(f32(*shape))
    result = f32(*((n + a + b - w) // step + 1 for n, (a, b), w, step
                   in zip(shape, padding, size, strides, strict=True)))
    ones = (1,) * len(shape)
    return m.returns(m.graph.add(
        "reduce_window", (m.inputs[0], number(m, initial)), result, {
            "window_dimensions": size, "window_strides": strides, "padding": tuple(padding),
            "base_dilations": ones, "window_dilations": ones}, (region(kind),)).result)


def dynamic(shape: Ints, size: Ints, start: int, *, update: bool) -> Graph:
    m = Maker(f32(*shape), s32(), *([f32(*size)] if update else []))
    zero, last = (m.constant(np.array(0, np.int32), s32()), len(shape) - 1)
    # Inputs of integers are small.
    first = m.op("add", m.inputs[1], m.constant(np.array(start, np.int32), s32()))
    starts = (*[zero] * last, first)
    if update:
        return m.returns(m.op("dynamic_update_slice", m.inputs[0], m.inputs[2], *starts))
    return m.returns(m.op("dynamic_slice", m.inputs[0], *starts, to=f32(*size), slice_sizes=size))


def sort(shape: Ints, along: int) -> Graph:
    m = Maker(f32(*shape))
    less = region("compare", pred(), comparison_direction="LT", compare_type="FLOAT")
    return m.returns(m.graph.add("sort", m.inputs, f32(*shape),
                                 {"dimension": along, "is_stable": True}, (less,)).result)


def pooled_gradient(shape: Ints, window: Ints) -> Graph:
    small = tuple(n // w for n, w in zip(shape, window, strict=True))
    m = Maker(f32(*shape), f32(*small))
    larger = region("compare", pred(), comparison_direction="GE", compare_type="FLOAT")
    return m.returns(m.graph.add(
        "select_and_scatter", (*m.inputs, number(m, 0)), f32(*shape), {
            "window_dimensions": window, "window_strides": window,
            "padding": ((0, 0),) * len(shape)}, (larger, region("add"))).result)


def indices(rows: int, count: int) -> np.ndarray:
    """Random indices, some of which are out of bounds."""
    return np.random.default_rng(5).integers(-3, rows + 3, (count, 1)).astype(np.int32)


def gather(rows: int, width: int, count: int) -> Graph:
    m = Maker(f32(rows, width))
    return m.returns(m.op(
        "gather", m.inputs[0], m.constant(indices(rows, count), s32(count, 1)),
        to=f32(count, width), offset_dims=(1,), collapsed_slice_dims=(0,),
        operand_batching_dims=(), start_indices_batching_dims=(), start_index_map=(0,),
        index_vector_dim=1, slice_sizes=(1, width), indices_are_sorted=False))


def embedding(rows: int, width: Ints, batch: Ints) -> Graph:
    """A lookup in a table by an array of indices with several dimensions."""
    m = Maker(f32(rows, *width), s32(*batch))
    table, given = m.inputs
    low, high = (m.op("broadcast_in_dim", m.constant(np.array(end, np.int32), s32()), to=given.type,
                      broadcast_dimensions=()) for end in (0, rows - 1))
    given = m.op("clamp", low, m.op("multiply", given, given), high, to=given.type)
    rank = len(batch)
    return m.returns(m.op(
        "gather", table, given, to=f32(*batch, *width),
        offset_dims=tuple(range(rank, rank + len(width))), collapsed_slice_dims=(0,),
        operand_batching_dims=(), start_indices_batching_dims=(), start_index_map=(0,),
        index_vector_dim=rank, slice_sizes=(1, *width), indices_are_sorted=False))


def scatter(rows: int, width: int, count: int) -> Graph:
    m = Maker(f32(rows, width), f32(count, width))
    operands = m.inputs[0], m.constant(indices(rows, count), s32(count, 1)), m.inputs[1]
    return m.returns(m.graph.add("scatter", operands, f32(rows, width), {
        "update_window_dims": (1,), "inserted_window_dims": (0,), "input_batching_dims": (),
        "scatter_indices_batching_dims": (), "scatter_dims_to_operand_dims": (0,),
        "index_vector_dim": 1, "indices_are_sorted": False, "unique_indices": False},
        (region("add"),)).result)


CASES: dict[str, Callable[[], Graph]] = {
    "elementwise, 1": lambda: elementwise((5003,)),
    "elementwise, 2": lambda: elementwise((101, 60)),
    "elementwise, 3": lambda: elementwise((21, 30, 12)),
    "sum of rows": lambda: reduction((101, 60), (0,)),
    "sum of columns": lambda: reduction((100, 61), (1,)),
    "sum of all": lambda: reduction((20, 30, 12), (0, 1, 2)),
    "maximum of outer and lanes": lambda: reduction((20, 30, 12), (0, 2), "maximum", -99),
    "reshape to more dimensions": lambda: reshape((100, 60), (10, 10, 60)),
    "reshape to fewer dimensions": lambda: reshape((20, 30, 12), (20, 360)),
    "reshape to a line": lambda: reshape((101, 60), (6060,)),
    "reshape to other rows": lambda: reshape((100, 60), (60, 100)),
    "transpose": lambda: transpose((100, 60), (1, 0)),
    "transpose of 3": lambda: transpose((20, 30, 12), (2, 0, 1)),
    "slice": lambda: sliced((100, 80), (3, 4), (99, 80), (1, 1)),
    "slice with strides": lambda: sliced((100, 80), (3, 5), (99, 78), (2, 1)),
    "pad": lambda: padded((100, 60), (3, 0), (2, 1), (0, 0)),
    "pad with whole blocks": lambda: padded((60, 60), (3, -2), (40, 5), (0, 0)),
    "pad of lanes with whole blocks": lambda: padded((200, 12), (0, 0), (0, 30), (0, 0)),
    "pad within": lambda: padded((50, 50), (1, 0), (1, 2), (1, 0)),
    "reverse": lambda: reverse((100, 60), (0, 1)),
    "concatenate rows": lambda: concatenate(((60, 60), (31, 60)), 0),
    "concatenate columns": lambda: concatenate(((60, 60), (60, 31)), 1),
    "concatenate images": lambda: concatenate(((30, 7, 9), (5, 7, 9), (21, 7, 9)), 0),
    "concatenate rows of images": lambda: concatenate(((30, 7, 9), (30, 8, 9)), 1),
    "slice of a line": lambda: sliced((5003,), (13,), (4001,), (1,)),
    "slice of one index": lambda: sliced((80, 9, 60), (3, 7, 9), (80, 8, 58), (1, 1, 1)),
    "reshape in two steps": lambda: reshape((33, 64), (1, 2, 1056)),
    "slice of long rows": lambda: sliced((2, 1103), (0, 501), (2, 1090), (1, 3)),
    "pad a line": lambda: padded((3001,), (13,), (4,), (0,)),
    "pad a line with whole blocks": lambda: padded((1501,), (700,), (-5,), (0,)),
    "crop long rows": lambda: padded((3, 1100), (0, -5), (1, 300), (0, 0)),
    "reverse a line": lambda: reverse((3001,), (0,)),
    "reverse long rows": lambda: reverse((3, 1100), (0, 1)),
    "concatenate lines": lambda: concatenate(((1001,), (3,), (2,), (700,), (1,)), 0),
    "concatenate long rows": lambda: concatenate(((3, 501), (3, 6), (3, 900)), 1),
    "slice of a line from a variable index": lambda: dynamic((1400,), (700,), 333, update=False),
    "slice of long rows from the end": lambda: dynamic((3, 900), (3, 600), 999, update=False),
    "update of a line": lambda: dynamic((1400,), (700,), 333, update=True),
    "update of a few": lambda: dynamic((1401,), (3,), -99, update=True),
    "update of long rows": lambda: dynamic((3, 900), (3, 600), 999, update=True),
    "product of many rows": lambda: product(200, 12, 12),
    "product of many columns": lambda: product(12, 12, 200),
    "product of depth": lambda: product(12, 400, 12),
    "product of rows and columns": lambda: product(120, 12, 120),
    "product of all": lambda: product(50, 60, 50),
    "products": lambda: product(16, 12, 20, (12,)),
    "convolution of a batch": lambda: convolution(8, 8, 4, 4),
    "convolution of an image": lambda: convolution(1, 16, 4, 4, 2),
    "convolution to many features": lambda: convolution(1, 5, 24, 24),
    "windows of images": lambda: windows((8, 12, 12, 4), (1, 3, 3, 1), (1, 2, 2, 1), (
        (0, 0), (1, 1), (1, 1), (0, 0))),
    "windows of rows": lambda: windows((150, 24), (3, 1), (2, 1), ((1, 1), (0, 0))),
    "cumulative maxima": lambda: windows((40, 80), (40, 1), (1, 1), ((39, 0), (0, 0))),
    "windows of a line": lambda: windows((3001,), (5,), (2,), ((2, 1),)),
    "cumulative maxima of a line": lambda: windows((1500,), (1500,), (1,), ((1499, 0),)),
    "maxima of the rest of a line": lambda: windows((1500,), (1500,), (1,), ((0, 1499),)),
    "maxima of the rest of columns": lambda: windows((900, 3), (900, 1), (1, 1), ((0, 899), (0, 0)),
                                                     initial=-0.2),
    "cumulative sums of a line": lambda: windows((1500,), (1500,), (1,), ((1499, 0),), "add",
                                                 initial=0.5),
    "sums of the rest of columns": lambda: windows((900, 3), (900, 1), (1, 1), ((0, 899), (0, 0)),
                                                   "add", initial=-2.0),
    "sort of columns": lambda: sort((40, 60), 0),
    "sort of rows": lambda: sort((60, 40), 1),
    "gradient of pooling": lambda: pooled_gradient((4, 8, 8, 8), (1, 2, 2, 1)),
    "gather from a large table": lambda: gather(500, 12, 20),
    "gather of many": lambda: gather(40, 12, 300),
    "gather of many from a large table": lambda: gather(300, 12, 300),
    "embedding": lambda: embedding(80, (5, 9), (3, 7)),
    "embedding of a scalar": lambda: embedding(150, (12,), ()),
    "scatter to a large table": lambda: scatter(500, 12, 20),
    "scatter of many": lambda: scatter(40, 12, 300),
}
ON_RTL = ("concatenate lines", "update of long rows", "maxima of the rest of columns", "pad a line",
          "reverse long rows", "elementwise, 3", "sum of rows", "transpose", "product of many rows",
          "convolution of a batch", "gather from a large table", "embedding",
          "scatter to a large table")


@pytest.mark.parametrize("name", CASES)
def test_operations_larger_than_vector_memory(golden: Device, name: str) -> None:
    check(CASES[name](), golden, runs=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_RTL)
def test_golden_and_rtl_agree(golden: Device, rtl: Device, name: str) -> None:
    graph = CASES[name]()
    arrays = arrays_for(graph)
    executable = check(graph, rtl, arrays, runs=1)
    for a, b in zip(golden.execute(executable, *arrays), rtl.execute(executable, *arrays),
                    strict=True):
        assert np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("name", CASES)
def test_streams_mean_the_same(name: str) -> None:
    graph = CASES[name]()
    arrays = arrays_for(graph)
    expected = interpret(graph, arrays)
    stream_large(graph, TINY, 2)
    verify(graph)
    assert any(operation.kind == "stream" or operation.attributes.get("in_hbm")
               for operation in graph.operations)
    for found, wanted in zip(interpret(graph, arrays), expected, strict=True):
        assert np.array_equal(found, wanted)


def test_what_fits_stays() -> None:
    graph = elementwise((5, 6))
    kinds = [operation.kind for operation in graph.operations]
    stream_large(graph, TINY)
    assert [operation.kind for operation in graph.operations] == kinds


@pytest.mark.parametrize(("share", "left"), [(0.45, False), (0.55, True)])
def test_what_slices_are_taken_from_stays_in_hbm(golden: Device, share: float, left: bool) -> None:
    """It stays there only if it fills most of vector memory, where others would evict it."""
    count = int(share * TINY.vmem_vectors)
    graph = Graph([Value(f32(count, TINY.sublanes, TINY.lanes)), *(Value(s32()) for _ in range(3))])
    graph.outputs = [graph.add("dynamic_slice", graph.inputs, f32(1, TINY.sublanes, TINY.lanes), {
        "slice_sizes": (1, TINY.sublanes, TINY.lanes)}).result]
    stream_large(graph, TINY)
    assert [bool(operation.attributes.get("in_hbm")) for operation in graph.operations] == [left]
    check(graph, golden, runs=1)


def test_windows_of_bf16_accumulate_from_an_infinity() -> None:
    line, scalar = TensorType((1500,), DType.BF16), TensorType((), DType.BF16)
    graph, larger = Graph([Value(line), Value(scalar)]), Graph([Value(scalar), Value(scalar)])
    larger.outputs = [larger.add("maximum", larger.inputs, scalar).result]
    graph.outputs = [graph.add("reduce_window", graph.inputs, line, {
        "window_dimensions": (1500,), "window_strides": (1,), "padding": ((1499, 0),),
        "base_dilations": (1,), "window_dilations": (1,)}, (larger,)).result]
    arrays = [np.arange(-1500, 0).astype(array_dtype(DType.BF16)),
              np.array(-1000, array_dtype(DType.BF16))]
    [expected] = interpret(graph, arrays)
    stream_large(graph, TINY, 2)
    verify(graph)
    assert np.array_equal(interpret(graph, arrays)[0], expected)


def test_sums_of_small_types_are_wide() -> None:
    """The products of bf16 blocks are added in f32, and the sum is rounded once."""
    kind = TensorType((4, 800), DType.BF16)
    graph = Graph([Value(kind), Value(kind)])
    result = graph.add("dot_general", graph.inputs, TensorType((4, 4), DType.BF16), {
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
        "precision_config": ("DEFAULT", "DEFAULT")}).result
    graph.outputs = [result]
    stream_large(graph, TINY)
    [stream] = [operation for operation in graph.operations if operation.kind == "stream"]
    assert [value.dtype for value in stream.results] == [DType.F32]
    assert [operation.kind for operation in graph.operations][-1] == "convert"


def test_initial_values_count_once(golden: Device) -> None:
    """Any initial value is combined once, with the final result, and not with each block."""
    factors = np.random.default_rng(5).choice(np.array([-1, 0.5, 1, 2], np.float32), (20, 30, 12),
                                              p=(0.45, 0.05, 0.45, 0.05))
    check(reduction((20, 30, 12), (0, 1, 2), "multiply", 2), golden, [factors], runs=1)


def test_sums_of_bf16_are_rounded_once(golden: Device) -> None:
    kind, scalar = TensorType((20, 30, 12), DType.BF16), TensorType((), DType.BF16)
    graph, add = Graph([Value(kind)]), Graph([Value(scalar), Value(scalar)])
    add.outputs = [add.add("add", add.inputs, scalar).result]
    dtype = array_dtype(DType.BF16)
    three = graph.add("constant", (), scalar, {"value": np.array(3, dtype)}).result
    graph.outputs = [graph.add("reduce", (graph.inputs[0], three), scalar,
                               {"dimensions": (0, 1, 2)}, (add,)).result]
    array = np.random.default_rng(6).uniform(1, 2, kind.shape).astype(dtype)
    check(graph, golden, [array], runs=1)
