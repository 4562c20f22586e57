"""Windows against the reference semantics: pooling, its gradient, and cumulative sums."""

from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.infer import infer
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.kernels.reduce import identity
from sim.compiler.machine.estimate import estimate
from verif.sim.compiler.kernels.harness import CONFIG, build, check
from verif.sim.compiler.kernels.regions import apply, arg_reducer

Array = npt.NDArray[Any]
SEED = 20261122


def comparison(dtype: DType) -> Graph:
    graph = Graph([Value(TensorType((), dtype)) for _ in range(2)])
    graph.outputs = [graph.add("compare", graph.inputs, TensorType((), DType.PRED), {
        "comparison_direction": "GE",
        "compare_type": "FLOAT" if dtype.is_float else "SIGNED"}).result]
    return graph


def reduce_window(arrays: list[Array], initial: list[Array], types: list[DType], region: Graph,
                  **given: Any) -> None:
    rank = arrays[0].ndim
    ones = (1,) * rank
    attributes = {"window_dimensions": ones, "window_strides": ones, "window_dilations": ones,
                  "base_dilations": ones, "padding": ((0, 0),) * rank, **given}
    operands = [Value(TensorType(array.shape, dtype)) for array, dtype
                in zip([*arrays, *initial], types * 2, strict=True)]
    op = Operation("reduce_window", tuple(operands), (), attributes, (region,))
    op.results = tuple(map(Value, infer(op)))
    if all(value.type.size for value in op.results):
        check(op, [*arrays, *initial])


@pytest.mark.parametrize("kind", ["add", "maximum"])
@pytest.mark.parametrize("seed", range(8))
def test_reduce_window(kind: str, seed: int) -> None:
    rng = np.random.default_rng([SEED, seed])
    rank = seed % 4 + 1
    shape = tuple(int(size) for size in rng.choice((1, 3, 4, 5, 7), rank))
    x = rng.integers(-1000, 1000, shape).astype(np.int32)

    def pick(*choices: int) -> tuple[int, ...]:
        return tuple(int(size) for size in rng.choice(choices, rank))

    reduce_window([x], [np.array(5, np.int32)], [DType.S32], apply(kind, DType.S32),
                  window_dimensions=pick(1, 2, 3), window_strides=pick(1, 1, 2),
                  window_dilations=pick(1, 1, 2), base_dilations=pick(1, 1, 2),
                  padding=tuple(zip(pick(-1, 0, 1, 2), pick(0, 1, 2), strict=True)))


@pytest.mark.parametrize(("kind", "dtype"), [("multiply", DType.U32), ("add", DType.S32),
                                             ("add", DType.BF16)])
def test_padding_counts_as_initial_values(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(1, 9, (2, 2, 5, 3)).astype(array_dtype(dtype))
    for low in product((0, 1), repeat=4):
        reduce_window([x], [np.array(3, array_dtype(dtype))], [dtype], apply(kind, dtype),
                      window_dimensions=(2, 2, 2, 2), window_strides=(2, 2, 1, 1),
                      padding=tuple((size, 1) for size in low))


@pytest.mark.parametrize(("shape", "strides", "window", "padding"), [
    ((2, 4, 6, 5), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4),
    ((1, 5, 5, 3), (1, 2, 2, 1), (1, 3, 3, 1), ((0, 0), (1, 1), (1, 1), (0, 0))),
    ((2, 3, 4, 6), (1, 1, 2, 2), (1, 1, 2, 2), ((0, 0),) * 4),
    ((9,), (2,), (3,), ((0, 1),)),
    ((9, 5, 7, 6), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4),
    ((9, 2, 5, 6), (1, 1, 3, 1), (1, 1, 2, 1), ((0, 0),) * 4),
    ((3, 5, 4, 9), (1, 2, 2, 1), (1, 1, 1, 1), ((0, 0),) * 4),
    ((5, 9, 6, 3), (1, 1, 2, 3), (1, 1, 2, 3), ((0, 0),) * 4),
])
def test_pooling_and_its_gradient(shape: tuple[int, ...], strides: tuple[int, ...],
                                  window: tuple[int, ...],
                                  padding: tuple[tuple[int, int], ...]) -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(-4, 5, shape).astype(np.float32)
    reduce_window([x], [np.array(-np.inf, np.float32)], [DType.F32], apply("maximum", DType.F32),
                  window_dimensions=window, window_strides=strides, padding=padding)
    out = tuple((size + low + high - w) // s + 1 for size, (low, high), w, s
                in zip(shape, padding, window, strides, strict=True))
    source = rng.integers(-4, 5, out).astype(np.float32)
    for initial in (0, 3):
        check(scatter(shape, out, strides, window, padding),
              [x, source, np.array(initial, np.float32)])


def scatter(shape: tuple[int, ...], out: tuple[int, ...], strides: tuple[int, ...],
            window: tuple[int, ...], padding: tuple[tuple[int, int], ...]) -> Operation:
    types = [TensorType(shape, DType.F32), TensorType(out, DType.F32), TensorType((), DType.F32)]
    return Operation("select_and_scatter", tuple(map(Value, types)), (Value(types[0]),), {
        "window_dimensions": window, "window_strides": strides, "padding": padding},
        (comparison(DType.F32), apply("add", DType.F32)))


def test_windows_that_are_apart_are_scattered_to_in_registers() -> None:
    op = scatter((8, 8, 8, 4), (8, 4, 4, 4), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4)
    code = build(op).code
    assert code is not None
    assert estimate(code) < 64 * 4 * 4 * 8 // CONFIG.sublanes


@pytest.mark.parametrize("dtype", [DType.F32, DType.S32])
def test_a_scatter_takes_the_first_of_equal_elements_and_the_last_nan(dtype: DType) -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 2, (4, 4, 6, 4)).astype(array_dtype(dtype))
    if dtype is DType.F32:
        x[rng.random(x.shape) < 0.3] = np.nan
    shape, out = x.shape, (4, 2, 3, 4)
    types = [TensorType(shape, dtype), TensorType(out, dtype), TensorType((), dtype)]
    op = Operation("select_and_scatter", tuple(map(Value, types)), (Value(types[0]),), {
        "window_dimensions": (1, 2, 2, 1), "window_strides": (1, 2, 2, 1),
        "padding": ((0, 0),) * 4}, (comparison(dtype), apply("add", dtype)))
    source = rng.integers(1, 9, out).astype(array_dtype(dtype))
    check(op, [x, source, np.array(0, array_dtype(dtype))])


@pytest.mark.parametrize("shape", [(11,), (3, 7), (7, 3), (5, 3, 2)])
def test_cumulative_sum(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(-1000, 1000, shape).astype(np.int32)
    for d, size in enumerate(shape):
        rank = len(shape)
        reduce_window([x], [np.array(0, np.int32)], [DType.S32], apply("add", DType.S32),
                      window_dimensions=tuple(size if i == d else 1 for i in range(rank)),
                      padding=tuple((size - 1, 0) if i == d else (0, 0) for i in range(rank)))


def test_several_operands() -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(-4, 5, (5, 6)).astype(np.float32)
    index = np.arange(30, dtype=np.int32).reshape(5, 6)
    lowest = np.uint32(identity("maximum", DType.F32)).view(array_dtype(DType.F32))
    reduce_window([x, index], [np.array(lowest), np.array(0, np.int32)], [DType.F32, DType.S32],
                  arg_reducer(DType.F32), window_dimensions=(2, 3), window_strides=(2, 1))
