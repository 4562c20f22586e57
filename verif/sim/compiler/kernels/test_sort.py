"""Sorting against the reference semantics: stable, any dimension, several operands."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.ir import DType, Operation, TensorType, Value
from verif.sim.compiler.kernels.harness import check
from verif.sim.compiler.kernels.regions import less

Array = npt.NDArray[Any]
SEED = 20261122


def sort(arrays: list[Array], types: list[DType], dimension: int, direction: str = "LT") -> None:
    found = [TensorType(array.shape, dtype) for array, dtype in zip(arrays, types, strict=True)]
    op = Operation("sort", tuple(map(Value, found)), tuple(map(Value, found)),
                   {"dimension": dimension, "is_stable": True}, (less(types, direction),))
    check(op, arrays)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 11, 16, 19])
def test_one_dimension(size: int) -> None:
    rng = np.random.default_rng([SEED, size])
    sort([rng.integers(-9, 10, size).astype(np.int32)], [DType.S32], 0)
    # Equal keys show whether the order is stable.
    sort([rng.integers(0, 3, size).astype(np.uint32), np.arange(size, dtype=np.int32)],
         [DType.U32, DType.S32], 0, "GT")


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 1), (2, 3, 9), (5, 2, 3)])
def test_dimensions(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(SEED)
    for dimension in range(len(shape)):
        keys = rng.integers(-3, 4, shape).astype(array_dtype(DType.F32))
        sort([keys, rng.integers(-2**31, 2**31, shape).astype(np.int32)],
             [DType.F32, DType.S32], dimension)
