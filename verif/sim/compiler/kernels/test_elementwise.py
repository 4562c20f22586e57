"""Elementwise kernels on the golden core against the reference semantics."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.interpret import evaluate
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.kernels.elementwise import broadcast_tiling
from sim.compiler.kernels.lowering import Choice
from sim.compiler.tiling import Tiling, column, standard
from systolith import Device
from verif.sim.compiler.kernels.harness import CONFIG, build, build_as, check, execute, run

F32, BF16, S32, U32, PRED = DType.F32, DType.BF16, DType.S32, DType.U32, DType.PRED
TYPES = (F32, BF16, S32, U32, PRED, DType.S8, DType.U8, DType.S16, DType.U16)

FLOATS = np.array([
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 2.0, 3.0, -3.0, 1e-30, -1e30, 3.4e38, 1.2e-38,
    np.inf, -np.inf, np.nan, 88.5, -87.0, 100.25, 2.0**23, -(2.0**31), 2.0**31, 127.5, 300.0,
    0.49999997, 65536.0, 1.0000001], np.float32)
WORDS = np.array([0, 1, 2, 3, 7, 31, 32, 33, 0x7FF, 0x800, 0x12345678, 0x3FFFFF, 0x7FFFFFFF,
                  0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFF0000, 1000003], np.uint32)

SHAPES = [(), (1,), (3,), (4,), (9,), (2, 4), (5, 6), (3, 1), (1, 9), (2, 3, 4), (3, 2, 5, 3)]


def operation(kind: str, shape: tuple[int, ...], types: list[DType], result: DType,
              **attributes: object) -> Operation:
    return Operation(kind, tuple(Value(TensorType(shape, dtype)) for dtype in types),
                     (Value(TensorType(shape, result)),), attributes)


def values(rng: np.random.Generator, count: int, dtype: DType) -> np.ndarray:
    """Corner values and random ones of all magnitudes."""
    target = array_dtype(dtype)
    if dtype is PRED:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_float:
        with np.errstate(all="ignore"):
            random = (rng.standard_normal(count) * 2.0 ** rng.integers(-20, 20, count))
            chosen = np.where(rng.random(count) < 0.4, rng.choice(FLOATS, count), random)
            return chosen.astype(np.float32).astype(target)
    random = (rng.integers(0, 1 << 32, count, dtype=np.uint64)
              >> rng.integers(0, 32, count).astype(np.uint64)).astype(np.uint32)
    return np.where(rng.random(count) < 0.4, rng.choice(WORDS, count), random).astype(target)


def close(ulps: float) -> Callable[[np.ndarray, np.ndarray], bool]:
    """Whether numbers agree to within some ulps, and zeros, infinities and NaN exactly."""

    def agree(got: np.ndarray, want: np.ndarray) -> bool:
        if got.dtype.kind in "iub":
            return bool(np.array_equal(got, want))
        significant = 24 if got.dtype == np.float32 else 8
        a, b = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(all="ignore"):
            exponent = np.floor(np.log2(np.maximum(np.abs(b), 2.0**-126)))
            near = np.abs(a - b) <= ulps * 2.0 ** (exponent - significant + 1)
        tiny = (np.abs(a) <= 2.0**-126) & (np.abs(b) <= 2.0**-126)
        edge = (np.abs(a) >= 2.0**127.99) & (np.abs(b) >= 2.0**127.99) & (a * b > 0)
        return bool(np.all((a == b) | near | tiny | edge | (np.isnan(a) & np.isnan(b))))

    return agree


UNARY = {"abs": 0, "negate": 0, "sign": 0, "floor": 0, "ceil": 0, "round_nearest_even": 0,
         "round_nearest_afz": 0, "exponential": 1, "exponential_minus_one": 3, "log": 2,
         "log_plus_one": 3, "logistic": 3, "tanh": 1, "sqrt": 1, "cbrt": 2, "sine": 3,
         "cosine": 3, "tan": 5}
BINARY = {"add": 0, "subtract": 0, "multiply": 0, "divide": 3, "maximum": 0, "minimum": 0,
          "power": 2, "atan2": 4}


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("kind", UNARY)
def test_unary_operations_of_floats(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    x = values(rng, 60, dtype)
    check(operation(kind, x.shape, [dtype], dtype), [x],
          same=close(UNARY[kind] if dtype is F32 else min(UNARY[kind], 1)))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("kind", BINARY)
def test_binary_operations_of_floats(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(2)
    x, y = values(rng, 400, dtype), values(rng, 400, dtype)
    check(operation(kind, x.shape, [dtype, dtype], dtype), [x, y],
          same=close(BINARY[kind] if dtype is F32 else min(BINARY[kind], 1)))


def test_rsqrt_is_that_of_the_vector_unit() -> None:
    x = values(np.random.default_rng(3), 60, F32)
    x = np.where((x == 0) & np.signbit(x), np.float32(0), x)
    check(operation("rsqrt", x.shape, [F32], F32), [x], same=close(1))


@pytest.mark.parametrize("dtype", [S32, U32])
@pytest.mark.parametrize("kind", [
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "and", "or", "xor",
    "shift_left", "shift_right_logical", "shift_right_arithmetic"])
def test_binary_operations_of_integers(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    x, y = (array.ravel().astype(array_dtype(dtype)) for array in np.meshgrid(WORDS, WORDS))
    x, y = (np.concatenate([a, values(rng, 200, dtype)]) for a in (x, y))
    check(operation(kind, x.shape, [dtype, dtype], dtype), [x, y])


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_remainder_of_floats_is_exact(dtype: DType) -> None:
    rng = np.random.default_rng(15)
    x, y = (array.ravel().astype(array_dtype(dtype)) for array in np.meshgrid(FLOATS, FLOATS))
    check(operation("remainder", x.shape, [dtype, dtype], dtype), [x, y])
    x, y = (values(rng, 60, dtype) for _ in range(2))
    check(operation("remainder", x.shape, [dtype, dtype], dtype), [x, y])


@pytest.mark.parametrize("dtype", [S32, U32])
def test_powers_of_integers(dtype: DType) -> None:
    rng = np.random.default_rng(16)
    x = rng.integers(-5, 9, 40).astype(array_dtype(dtype))
    y = rng.integers(-2, 40, 40).astype(array_dtype(dtype))
    check(operation("power", x.shape, [dtype, dtype], dtype), [x, y])


@pytest.mark.parametrize(("kind", "dtype"), [
    ("abs", S32), *((kind, dtype) for dtype in (S32, U32)
                    for kind in ("negate", "sign", "not", "popcnt", "count_leading_zeros"))])
def test_unary_operations_of_integers(kind: str, dtype: DType) -> None:
    x = values(np.random.default_rng(5), 90, dtype)
    check(operation(kind, x.shape, [dtype], dtype), [x])


@pytest.mark.parametrize("kind", ["and", "or", "xor", "maximum", "minimum", "add", "multiply"])
def test_operations_of_predicates(kind: str) -> None:
    rng = np.random.default_rng(6)
    x, y = values(rng, 21, PRED), values(rng, 21, PRED)
    single = operation("not", (), [PRED], PRED)
    check(single, [x[0].reshape(())])
    check(operation(kind, x.shape, [PRED, PRED], PRED), [x, y])
    check(operation("not", x.shape, [PRED], PRED), [x])


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
@pytest.mark.parametrize(("dtype", "how"), [
    (F32, "FLOAT"), (F32, "TOTALORDER"), (BF16, "FLOAT"), (S32, "SIGNED"), (U32, "UNSIGNED"),
    (PRED, "UNSIGNED")])
def test_comparisons(direction: str, dtype: DType, how: str) -> None:
    rng = np.random.default_rng(7)
    x, y = values(rng, 150, dtype), values(rng, 150, dtype)
    y = np.where(rng.random(150) < 0.3, x, y)
    check(operation("compare", x.shape, [dtype, dtype], PRED, comparison_direction=direction,
                    compare_type=how), [x, y])


@pytest.mark.parametrize("target", TYPES)
@pytest.mark.parametrize("source", TYPES)
def test_conversions(source: DType, target: DType) -> None:
    x = values(np.random.default_rng(8), 200, source)
    check(operation("convert", x.shape, [source], target), [x])


@pytest.mark.parametrize(("source", "target"), [
    (F32, S32), (S32, F32), (U32, F32), (F32, U32), (S32, U32), (BF16, DType.U16),
    (BF16, DType.S16), (DType.U16, BF16), (DType.S16, BF16), (DType.S8, DType.U8),
    (DType.U8, DType.S8), (DType.S16, DType.U16)])
def test_bit_casts(source: DType, target: DType) -> None:
    x = values(np.random.default_rng(9), 60, source)
    [got] = run(operation("bitcast_convert", x.shape, [source], target), [x])
    want = x.view(array_dtype(target))
    same = got.view(f"u{got.itemsize}") == want.view(f"u{want.itemsize}")
    assert same.all()


@pytest.mark.parametrize("dtype", [F32, BF16, S32, U32, PRED])
def test_select_and_clamp(dtype: DType) -> None:
    rng = np.random.default_rng(10)
    p, x, y, z = (values(rng, 90, kind) for kind in (PRED, dtype, dtype, dtype))
    check(operation("select", x.shape, [PRED, dtype, dtype], dtype), [p, x, y])
    check(operation("clamp", x.shape, [dtype, dtype, dtype], dtype), [x, y, z])


@pytest.mark.parametrize(("exponent", "mantissa"), [(8, 7), (5, 10), (8, 3), (4, 3), (8, 23)])
def test_reduce_precision(exponent: int, mantissa: int) -> None:
    x = values(np.random.default_rng(11), 150, F32)
    check(operation("reduce_precision", x.shape, [F32], F32, exponent_bits=exponent,
                    mantissa_bits=mantissa), [x])
    y = values(np.random.default_rng(11), 20, F32)
    check(operation("is_finite", y.shape, [F32], PRED), [y])


@pytest.mark.parametrize("shape", SHAPES)
def test_all_shapes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(12)
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    check(operation("multiply", shape, [F32, F32], F32), [x, y])
    for dimension in range(len(shape)):
        for dtype in (S32, F32, U32, BF16):
            check(operation("iota", shape, [], dtype, iota_dimension=dimension), [])


@pytest.mark.parametrize("shape", [(5, 6), (3, 4, 9)])
def test_other_tilings_are_kept(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(13)
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    order = tuple(reversed(range(len(shape))))
    swapped = Tiling(shape, order, True, CONFIG.sublanes, CONFIG.lanes)
    for tiling in (swapped, column(shape, CONFIG)):
        check(operation("add", shape, [F32, F32], F32), [x, y], tilings=(tiling, tiling))
        iota = operation("iota", shape, [], S32, iota_dimension=0)
        kernel = build_as(iota, Choice((), (tiling,)))
        [result] = execute(kernel, [])
        assert np.array_equal(result, evaluate(iota, [])[0])


def fusion(graph: Graph) -> Operation:
    """A fusion with the given graph as its region."""
    return Operation("fusion", tuple(Value(value.type) for value in graph.inputs),
                     tuple(Value(value.type) for value in graph.outputs), {}, (graph,))


@pytest.mark.parametrize(("operand", "dimensions", "shape"), [
    ((), (), (5, 6)), ((6,), (1,), (5, 6)), ((5,), (0,), (5, 6)), ((1, 6), (0, 1), (5, 6)),
    ((5, 1), (0, 1), (5, 6)), ((1, 1), (0, 1), (5, 6)), ((1,), (0,), (9,)), ((), (), (9,)),
    ((3, 5), (0, 1), (3, 5, 9)), ((5, 9), (1, 2), (3, 5, 9)), ((9,), (2,), (3, 5, 9)),
    ((3, 1, 9), (0, 1, 2), (3, 5, 9)), ((3, 5, 1), (0, 1, 2), (3, 5, 9)),
    ((1, 9), (0, 2), (1, 5, 9)),
    ((2, 3, 4), (0, 2, 3), (2, 1, 3, 4)), ((3, 1, 1), (0, 1, 2), (3, 5, 9))])
def test_broadcasts_in_a_fusion(operand: tuple[int, ...], dimensions: tuple[int, ...],
                                shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(14)
    graph = Graph([Value(TensorType(shape, F32)), Value(TensorType(operand, F32))])
    wide = graph.add("broadcast_in_dim", [graph.inputs[1]], TensorType(shape, F32),
                     {"broadcast_dimensions": dimensions}).result
    total = graph.add("add", [graph.inputs[0], wide], TensorType(shape, F32)).result
    less = graph.add("compare", [graph.inputs[0], wide], TensorType(shape, PRED),
                     {"comparison_direction": "LT", "compare_type": "FLOAT"}).result
    picked = graph.add("select", [less, total, graph.inputs[0]], TensorType(shape, F32)).result
    graph.outputs = [picked, less]
    arrays = [rng.standard_normal(value.shape).astype(np.float32) for value in graph.inputs]
    check(fusion(graph), arrays)


def test_constants_and_iotas_in_a_fusion() -> None:
    shape = (5, 6)
    kind = TensorType(shape, S32)
    graph = Graph([Value(kind)])
    three = graph.add("constant", [], kind, {"value": np.full(shape, 3, np.int32)}).result
    rows = graph.add("iota", [], kind, {"iota_dimension": 0}).result
    columns = graph.add("iota", [], kind, {"iota_dimension": 1}).result
    index = graph.add("multiply", [rows, three], kind).result
    index = graph.add("add", [index, columns], kind).result
    graph.outputs = [graph.add("subtract", [three, index], kind).result, graph.inputs[0]]
    check(fusion(graph), [np.arange(30, dtype=np.int32).reshape(shape)])


def test_broadcasts_that_need_a_copy() -> None:
    result = standard((3, 5, 9), CONFIG)
    assert broadcast_tiling((3, 9), (0, 2), result) is None
    assert broadcast_tiling((5, 9), (1, 2), result) == standard((5, 9), CONFIG)
    assert broadcast_tiling((3, 5), (0, 1), result) == column((3, 5), CONFIG)


@pytest.mark.parametrize(("kind", "types", "result"), [
    ("exponential", [F32], F32), ("sine", [F32], F32), ("divide", [F32, F32], F32),
    ("power", [F32, F32], F32), ("remainder", [F32, F32], F32), ("sqrt", [BF16], BF16),
    ("multiply", [S32, S32], S32), ("divide", [S32, S32], S32), ("remainder", [U32, U32], U32),
    ("convert", [U32], F32), ("convert", [F32], DType.U8), ("count_leading_zeros", [S32], S32)])
def test_rtl_has_the_bits_of_the_golden_core(kind: str, types: list[DType], result: DType,
                                             rtl: Device) -> None:
    rng = np.random.default_rng(17)
    arrays = [values(rng, 45, dtype).reshape(5, 9) for dtype in types]
    kernel = build(operation(kind, (5, 9), types, result), rtl.config)
    [golden], [device] = execute(kernel, arrays), execute(kernel, arrays, rtl)
    assert golden.tobytes() == device.tobytes()


@pytest.fixture(scope="module")
def rtl() -> Iterator[Device]:
    with Device.open("tiny", "rtl") as opened:
        yield opened


def test_many_invariants_and_many_live_values() -> None:
    rng = np.random.default_rng(18)
    shape, count = (5, 6), 11
    kind = TensorType(shape, F32)
    graph = Graph([Value(kind), *(Value(TensorType((), F32)) for _ in range(count - 1))])
    wide = [graph.inputs[0], *(graph.add("broadcast_in_dim", [value], kind,
                                         {"broadcast_dimensions": ()}).result
                               for value in graph.inputs[1:])]
    values = [graph.add("multiply", [wide[0], value], kind).result for value in wide]
    values += [graph.add("subtract", [value, wide[-1]], kind).result for value in values[:8]]
    total = values[0]
    for value in values[:0:-1]:
        total = graph.add("add", [total, value], kind).result
    for value in wide:
        total = graph.add("maximum", [total, value], kind).result
    graph.outputs = [total]
    check(fusion(graph), [rng.standard_normal(value.shape).astype(np.float32)
                          for value in graph.inputs], same=lambda a, b: np.allclose(a, b, 1e-5))
