"""Products of tensors: against the golden array, float64, and exact integers."""

import importlib

import numpy as np
import pytest

from golden.mxu import matmul
from hdl.config import Config
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from sim.compiler.kernels.products.dot import Dots, dot_cycles, sent_early
from sim.compiler.kernels.products.product import Product
from sim.compiler.kernels.products.steps import write_product
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.estimate import estimate
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.program.launch.kernel import KernelLowering
from sim.compiler.tiling import standard
from sim.models.core import CoreModel
from verif.sim.compiler.kernels.harness import CONFIG, build, execute, run, run_golden

SEED = 20261122
N, S = CONFIG.lanes, CONFIG.sublanes
SIZES = [1, S - 1, S + 1, N - 1, N, N + 1, 2 * N + 3]


def dot(lhs: TensorType, rhs: TensorType, contracting: tuple[tuple[int, ...], tuple[int, ...]],
        batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()), *, result: DType | None = None,
        precision: str = "DEFAULT") -> Operation:
    """A `dot_general`."""
    shape = Dots((lhs.shape, rhs.shape), batch, contracting).result_shape
    return Operation("dot_general", (Value(lhs), Value(rhs)),
                     (Value(TensorType(shape, result or lhs.dtype)),),
                     {"lhs_batching_dimensions": batch[0], "rhs_batching_dimensions": batch[1],
                      "lhs_contracting_dimensions": contracting[0],
                      "rhs_contracting_dimensions": contracting[1],
                      "precision_config": (precision, "DEFAULT")})


def numbers(rng: np.random.Generator, kind: TensorType) -> np.ndarray:
    """Random numbers of a type; integers of its whole range."""
    dtype = array_dtype(kind.dtype)
    if kind.dtype is DType.PRED:
        return rng.integers(0, 2, kind.shape).astype(bool)
    if kind.dtype.is_integer:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, kind.shape, dtype, endpoint=True)
    return rng.standard_normal(kind.shape).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("rows", [1, S + 1, N, 2 * N + 3, 9 * S + 1])
@pytest.mark.parametrize("depth", [1, N - 1, N, 2 * N + 3])
@pytest.mark.parametrize("columns", [1, N, N + 1, 2 * N + 3])
def test_bits_of_one_pass(rows: int, depth: int, columns: int) -> None:
    rng = np.random.default_rng([SEED, rows, depth, columns])
    for turned in (False, True):
        shape = (columns, depth) if turned else (depth, columns)
        kinds = TensorType((rows, depth), DType.F32), TensorType(shape, DType.F32)
        a, b = (numbers(rng, kind) for kind in kinds)
        [result] = run(dot(*kinds, ((1,), (1 if turned else 0,))), [a, b])
        wanted = matmul(a, b.T if turned else b, N)
        assert np.array_equal(result.view(np.uint32), wanted.view(np.uint32)), (turned, SEED)


FORMS = {
    "vector times vector": ((7,), (7,), ((0,), (0,)), ((), ())),
    "vector times matrix": ((7,), (7, 9), ((0,), (0,)), ((), ())),
    "matrix times vector": ((9, 7), (7,), ((1,), (0,)), ((), ())),
    "column times matrix": ((7, 9), (7,), ((0,), (0,)), ((), ())),
    "gradient of weights": ((7, 9), (7, 5), ((0,), (0,)), ((), ())),
    "three dimensions": ((3, 5, 7), (7, 6), ((2,), (0,)), ((), ())),
    "four and three": ((2, 3, 2, 5), (3, 5, 2), ((3,), (1,)), ((), ())),
    "two contracted": ((5, 3, 6), (3, 6, 9), ((1, 2), (0, 1)), ((), ())),
    "two contracted, crossed": ((3, 5, 6), (6, 9, 3), ((0, 2), (2, 0)), ((), ())),
    "batch": ((3, 5, 7), (3, 7, 6), ((2,), (1,)), ((0,), (0,))),
    "batch elsewhere": ((5, 3, 7), (7, 6, 3), ((2,), (0,)), ((1,), (2,))),
    "heads of attention": ((2, 5, 3, 6), (2, 7, 3, 6), ((3,), (3,)), ((0, 2), (0, 2))),
    "scores of attention": ((2, 3, 5, 7), (2, 7, 3, 6), ((3,), (1,)), ((0, 1), (0, 2))),
    "all of them": ((2, 3, 4, 5, 6), (5, 2, 3, 6, 3), ((3, 4), (0, 3)), ((0,), (1,))),
    "ones": ((1, 1), (1, 1), ((1,), (0,)), ((), ())),
}
TYPES = [(DType.F32, DType.F32, DType.F32), (DType.BF16, DType.BF16, DType.F32),
         (DType.BF16, DType.BF16, DType.BF16), (DType.S32, DType.S32, DType.S32),
         (DType.U32, DType.U32, DType.U32), (DType.S8, DType.S8, DType.S32),
         (DType.U8, DType.U8, DType.S32), (DType.S16, DType.S8, DType.S32),
         (DType.PRED, DType.PRED, DType.PRED), (DType.S8, DType.S8, DType.S8)]
BOUNDS = {"DEFAULT": 2.0**-7, "HIGH": 2.0**-16, "HIGHEST": 2.0**-21}
"""By precision, the largest error relative to the sum of the magnitudes that are added."""


def reference(operation: Operation, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product, in float64 or in integers."""
    dots = Dots.of(operation)
    sides, letters = ["", ""], iter("abcdefghijklmnop")
    names: list[dict[int, str]] = [{}, {}]
    for pair in (*zip(*dots.batch, strict=True), *zip(*dots.contracting, strict=True)):
        letter = next(letters)
        names[0][pair[0]] = names[1][pair[1]] = letter
    free = []
    for side in (0, 1):
        for dimension in dots.free[side]:
            names[side][dimension] = next(letters)
            free.append(names[side][dimension])
        sides[side] = "".join(names[side][dimension]
                              for dimension in range(len(dots.shapes[side])))
    result = "".join([*(names[0][dimension] for dimension in dots.batch[0]), *free])
    wide = np.int64 if a.dtype.kind in "iub" else np.float64
    return np.einsum(f"{sides[0]},{sides[1]}->{result}", a.astype(wide), b.astype(wide))


def compare(operation: Operation, a: np.ndarray, b: np.ndarray, result: np.ndarray) -> None:
    """Check a result against the reference."""
    kind = operation.result.dtype
    assert result.dtype == array_dtype(kind)
    wanted = reference(operation, a, b)
    if not kind.is_float:
        assert np.array_equal(result, wanted.astype(result.dtype)), SEED
        return
    scale = reference(operation, abs(a.astype(np.float64)), abs(b.astype(np.float64)))
    bound = BOUNDS[operation.attributes["precision_config"][0]]
    if a.dtype != np.float32:
        bound = 2.0**-20
    if kind is DType.BF16:
        bound += 2.0**-8
    assert (abs(result.astype(np.float64) - wanted) <= bound * scale).all(), SEED


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("types", TYPES, ids=lambda types: "_".join(t.value for t in types))
def test_forms_and_types(form: str, types: tuple[DType, DType, DType]) -> None:
    lhs, rhs, contracting, batch = FORMS[form]
    kinds = TensorType(lhs, types[0]), TensorType(rhs, types[1])
    operation = dot(*kinds, contracting, batch, result=types[2])
    rng = np.random.default_rng(SEED)
    a, b = (numbers(rng, kind) for kind in kinds)
    compare(operation, a, b, run(operation, [a, b])[0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["HIGH", "HIGHEST"])
def test_precision(form: str, precision: str) -> None:
    lhs, rhs, contracting, batch = FORMS[form]
    rng = np.random.default_rng(SEED)
    for other in (DType.F32, DType.BF16):
        kinds = TensorType(lhs, DType.F32), TensorType(rhs, other)
        operation = dot(*kinds, contracting, batch, precision=precision)
        a, b = (numbers(rng, kind) for kind in kinds)
        compare(operation, a, b, run(operation, [a, b])[0])


@pytest.mark.parametrize("precision", ["HIGH", "HIGHEST"])
def test_pieces_made_ahead_have_the_same_bits(precision: str,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Their products equal those whose pieces are made anew for each use, for lack of room."""
    rng = np.random.default_rng(SEED)
    for other in (DType.F32, DType.BF16):
        kinds = TensorType((41, 20), DType.F32), TensorType((20, 19), other)
        operation = dot(*kinds, ((1,), (0,)), precision=precision)
        a, b = (rng.normal(size=kind.shape).astype(array_dtype(kind.dtype)) for kind in kinds)
        a[3, :3], b[:4, 5] = (np.inf, np.nan, 3.4e38), -3.4e38
        cycles, results = [], []
        for room in (False, True):
            with monkeypatch.context() as patch:
                if not room:
                    patch.setattr(KernelLowering, "spare", lambda at, vectors: None)
                kernel = build(operation)
            assert kernel.code is not None
            cycles.append(estimate(kernel.code))
            results.append(execute(kernel, [a, b])[0].view(np.uint32))
        assert cycles[0] > cycles[1]
        assert np.array_equal(results[0], results[1])


@pytest.mark.parametrize("precision", ["DEFAULT", "HIGH", "HIGHEST"])
def test_infinities(precision: str) -> None:
    infinity, nan = np.inf, np.nan
    a = np.array([[infinity, 1, 2], [1, -infinity, 2], [1, nan, 2], [3, 1, infinity], [1, 2, 3]],
                 np.float32)
    b = np.array([[1, 1.1, 2, -infinity], [2, 1.3, 1, 1], [1, 3.3, 0, 1]], np.float32)
    kinds = TensorType(a.shape, DType.F32), TensorType(b.shape, DType.F32)
    [result] = run(dot(*kinds, ((1,), (0,)), precision=precision), [a, b])
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
    finite = np.isfinite(wanted)
    assert np.array_equal(result[~finite], wanted[~finite].astype(np.float32), equal_nan=True)
    assert np.allclose(result[finite], wanted[finite], rtol=2.0**-6)


def test_random_forms() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(40):
        batch, depth, left, right = (rng.choice(SIZES[:6], rng.integers(low, 3)).tolist()
                                     for low in (0, 1, 1, 1))
        shapes, batches, contracted = [], [], []
        for free in (left, right):
            sizes = [*batch, *depth, *free]
            order = rng.permutation(len(sizes)).tolist()
            place = [order.index(dimension) for dimension in range(len(sizes))]
            shapes.append(tuple(sizes[dimension] for dimension in order))
            batches.append(tuple(place[:len(batch)]))
            contracted.append(tuple(place[len(batch):len(batch) + len(depth)]))
        types = TYPES[rng.integers(len(TYPES))]
        kinds = TensorType(shapes[0], types[0]), TensorType(shapes[1], types[1])
        if any(np.prod(kind.shape) > 4000 for kind in kinds):
            continue
        operation = dot(*kinds, (contracted[0], contracted[1]), (batches[0], batches[1]),
                        result=types[2])
        if np.prod(operation.result.shape) > 4000:
            continue
        a, b = (numbers(rng, kind) for kind in kinds)
        compare(operation, a, b, run(operation, [a, b])[0])


def test_results_that_are_complete_before_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results that a kernel may copy before its last step are complete."""
    copy = VmemBuffer("copy", CONFIG.vmem_vectors // 2, CONFIG.vmem_vectors // 2)
    early: list[int] = []

    def write(b: Builder, product: Product, *arguments: object) -> None:
        def send() -> None:
            early.append(product.early)
            with b.loop(min(product.early + 1, product.results.vectors)) as i:
                b.store(b.load(product.results, i), copy, i)

        write_product(b, product, range(0), None, send)

    monkeypatch.setattr(importlib.import_module("sim.compiler.kernels.products.dot"),
                        "write_product", write)
    rng = np.random.default_rng(SEED)
    tight = 0
    for _ in range(24):
        rows, depth, columns = rng.integers(1, (50, 3 * N, 8 * N)).tolist()
        kinds = TensorType((rows, depth), DType.F32), TensorType((depth, columns), DType.F32)
        early.clear()
        kernel = build(dot(*kinds, ((1,), (0,))))
        vmem = run_golden(kernel, kernel.memory([numbers(rng, kind) for kind in kinds])[0])
        result = kernel.places[kernel.operation.result].buffer
        sent = sent_early(kernel.operation, {
            value: place.tiling for value, place in kernel.places.items()}, CONFIG)
        assert early == [sent] * bool(sent)
        same = (vmem[copy.address:][:sent + 1] == vmem[result.address:][:sent + 1]).all((1, 2))
        assert same[:sent].all(), (rows, depth, columns)
        tight += bool(sent) and not same[-1]
    assert tight > 4


@pytest.mark.slow
def test_rtl_gives_golden_bits() -> None:
    config = Config.preset("tiny")
    rng = np.random.default_rng(SEED)
    checked = 0
    with CoreModel(config) as core:
        for form, (lhs, rhs, contracting, batch) in FORMS.items():
            for types in (TYPES[0], TYPES[2], TYPES[3]):
                kinds = TensorType(lhs, types[0]), TensorType(rhs, types[1])
                for precision in ("DEFAULT", "HIGH") if types is TYPES[0] else ("DEFAULT",):
                    kernel = build(dot(*kinds, contracting, batch, result=types[2],
                                       precision=precision), config)
                    if len(kernel.bundles) > config.imem_bundles:
                        continue
                    arrays = [numbers(rng, kind) for kind in kinds]
                    core.write_vmem(0, kernel.memory(arrays)[0])
                    core.run_program(kernel.bundles, max_cycles=1_000_000)
                    [result] = kernel.results(core.read_vmem(0, config.vmem_vectors))
                    [wanted] = execute(kernel, arrays)
                    assert result.tobytes() == wanted.tobytes(), (form, types, precision, SEED)
                    checked += 1
    assert checked > 40


@pytest.mark.slow
def test_full_size_in_rtl() -> None:
    config = Config.preset("v2")
    rng = np.random.default_rng(SEED)
    with CoreModel(config) as core:
        for rows, depth, columns, active in ((128, 128, 128, 0.2), (512, 512, 512, 0.9),
                                             (784, 1152, 128, 0.9), (200, 300, 140, 0.5)):
            kinds = TensorType((rows, depth), DType.F32), TensorType((depth, columns), DType.F32)
            operation = dot(*kinds, ((1,), (0,)))
            kernel = build(operation, config)
            a, b = (numbers(rng, kind) for kind in kinds)
            core.write_vmem(0, kernel.memory([a, b])[0])
            counters = core.run_program(kernel.bundles, max_cycles=1_000_000)
            [result] = kernel.results(core.read_vmem(0, config.vmem_vectors))
            assert result.tobytes() == matmul(a, b, config.array).tobytes(), SEED
            cycles = counters["cycles"]
            assert counters["mxu_active_cycles"] > active * cycles
            tilings = tuple(standard(kind.shape, config) for kind in kinds)
            assert abs(dot_cycles(operation, tilings, config) / cycles - 1) < 0.15
