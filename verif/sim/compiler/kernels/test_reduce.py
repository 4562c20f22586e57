"""Reductions against the reference semantics, on random shapes, dimensions and reducers."""

from itertools import combinations, permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.kernels.reduce import identity
from sim.compiler.tiling import Tiling
from verif.sim.compiler.kernels.harness import CONFIG, check
from verif.sim.compiler.kernels.regions import apply, arg_reducer

Array = npt.NDArray[Any]
SEED = 20261122
SIZES = (1, 2, 3, 4, 5, 7, 11)
KINDS = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")


def reduction(arrays: list[Array], types: list[DType], dimensions: tuple[int, ...],
              region: Graph) -> Operation:
    shape = tuple(size for d, size in enumerate(arrays[0].shape) if d not in dimensions)
    operands = [Value(TensorType(arrays[0].shape, dtype)) for dtype in types]
    operands += [Value(TensorType((), dtype)) for dtype in types]
    return Operation("reduce", tuple(operands),
                     tuple(Value(TensorType(shape, dtype)) for dtype in types),
                     {"dimensions": dimensions}, (region,))


def random_shape(rng: np.random.Generator, rank: int) -> tuple[int, ...]:
    while True:
        shape = tuple(int(size) for size in rng.choice(SIZES, rank))
        if np.prod(shape) <= 300:
            return shape


def data(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype is DType.PRED:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return (rng.integers(-64, 65, shape) / 8).astype(array_dtype(dtype))
    low = 0 if dtype is DType.U32 else -2**31
    return rng.integers(low, low + 2**32, shape).astype(array_dtype(dtype))


def close(result: Array, wanted: Array) -> bool:
    return bool(np.allclose(result.astype(np.float64), wanted.astype(np.float64), rtol=1e-5))


@pytest.mark.parametrize(("dtype", "kind"), [
    *((DType.F32, kind) for kind in KINDS[:4]), *((DType.S32, kind) for kind in KINDS),
    *((DType.U32, kind) for kind in KINDS), *((DType.PRED, kind) for kind in KINDS[4:])])
def test_reducers(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng([SEED, KINDS.index(kind)])
    for rank in (1, 2, 3, 4):
        shape = random_shape(rng, rank)
        dimensions = tuple(d for d in range(rank) if rng.integers(2)) or (rank - 1,)
        x = data(rng, shape, dtype)
        initial = data(rng, (), dtype)
        check(reduction([x], [dtype], dimensions, apply(kind, dtype)), [x, initial],
              same=close if kind == "multiply" and dtype.is_float else None)


@pytest.mark.parametrize("kind", ["add", "multiply"])
def test_bf16_is_rounded_once(kind: str) -> None:
    rng = np.random.default_rng([SEED, 16])
    dtype = array_dtype(DType.BF16)
    for shape, dimensions in (((31,), (0,)), ((5, 7), (1,)), ((5, 7), (0, 1)), ((9, 3, 2), (0,))):
        # Integers and powers of two whose sums and products fp32 holds.
        x = rng.integers(-255, 256, shape)
        if kind == "multiply":
            x = np.where(rng.random(shape) < 0.4, 3, 1) * np.exp2(rng.integers(-1, 2, shape))
        check(reduction([x.astype(dtype)], [DType.BF16], dimensions, apply(kind, DType.BF16)),
              [x.astype(dtype), np.array(1.5, dtype)])


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_all_dimensions(rank: int) -> None:
    rng = np.random.default_rng([SEED, rank])
    for count in range(1, rank + 1):
        for dimensions in combinations(range(rank), count):
            for _ in range(3):
                x = data(rng, random_shape(rng, rank), DType.S32)
                check(reduction([x], [DType.S32], dimensions, apply("add", DType.S32)),
                      [x, np.array(7, np.int32)])


@pytest.mark.parametrize("dtype", [DType.F32, DType.S32])
def test_arg_reduction(dtype: DType) -> None:
    rng = np.random.default_rng(SEED)
    for rank in (1, 2, 3):
        for dimension in range(rank):
            shape = random_shape(rng, rank)
            x = rng.integers(-3, 4, shape).astype(array_dtype(dtype))
            index = np.broadcast_to(np.arange(shape[dimension], dtype=np.int32).reshape(
                [-1 if d == dimension else 1 for d in range(rank)]), shape).copy()
            lowest = np.uint32(identity("maximum", dtype)).view(array_dtype(dtype))
            op = reduction([x, index], [dtype, DType.S32], (dimension,), arg_reducer(dtype))
            found = check(op, [x, index, np.array(lowest), np.array(0, np.int32)])
            assert np.array_equal(found[1], x.argmax(dimension))


@pytest.mark.parametrize("shape", [(5,), (5, 6), (3, 5, 6)])
def test_tilings(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(SEED)
    x = data(rng, shape, DType.S32)
    scalar = Tiling((), (), False, CONFIG.sublanes, CONFIG.lanes)
    for order in permutations(range(len(shape))):
        for lanes in (False, True):
            tiling = Tiling(shape, order, lanes, CONFIG.sublanes, CONFIG.lanes)
            dimensions = tuple(d for d in range(len(shape)) if rng.integers(2)) or (0,)
            check(reduction([x], [DType.S32], dimensions, apply("add", DType.S32)),
                  [x, np.array(0, np.int32)], tilings=[tiling, scalar])
