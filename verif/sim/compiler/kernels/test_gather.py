"""Gather and scatter against the reference semantics: rows, elements, windows, batches."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sim.compiler.graph.infer import infer
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from verif.sim.compiler.kernels.harness import check
from verif.sim.compiler.kernels.regions import apply, second

Array = npt.NDArray[Any]
SEED = 20261122


def values(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-2**31, 2**31, shape).astype(np.int32)


def gather(x: Array, indices: Array, **attributes: Any) -> None:
    defaults = {"offset_dims": (), "collapsed_slice_dims": (), "operand_batching_dims": (),
                "start_indices_batching_dims": (), "start_index_map": (),
                "index_vector_dim": indices.ndim, "indices_are_sorted": False}
    unsigned = indices.dtype == np.uint32
    operands = (Value(TensorType(x.shape, DType.S32)),
                Value(TensorType(indices.shape, DType.U32 if unsigned else DType.S32)))
    op = Operation("gather", operands, (), {**defaults, **attributes})
    op.results = tuple(map(Value, infer(op)))
    check(op, [x, indices])


def scatter(x: Array, indices: Array, update: Array, region: Graph, **attributes: Any) -> None:
    defaults = {"update_window_dims": (), "inserted_window_dims": (), "input_batching_dims": (),
                "scatter_indices_batching_dims": (), "scatter_dims_to_operand_dims": (),
                "index_vector_dim": indices.ndim, "indices_are_sorted": False,
                "unique_indices": False}
    operands = tuple(Value(TensorType(array.shape, DType.S32)) for array in (x, indices, update))
    op = Operation("scatter", operands, (Value(operands[0].type),), {**defaults, **attributes},
                   (region,))
    check(op, [x, indices, update])


def indices(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> Array:
    """Random indices within a dimension, and some outside of it."""
    return rng.integers(-2, size + 2, shape).astype(np.int32)


@pytest.mark.parametrize("shape", [(7, 4), (5, 11), (9, 3), (1, 1), (3, 2, 5)])
@pytest.mark.parametrize("count", [(1,), (4,), (9,), (2, 3), ()])
def test_rows(shape: tuple[int, ...], count: tuple[int, ...]) -> None:
    rng = np.random.default_rng(SEED)
    x, rows = values(rng, shape), indices(rng, count, shape[0])
    rest = tuple(range(len(count), len(count) + len(shape) - 1))
    gather(x, rows, offset_dims=rest, collapsed_slice_dims=(0,), start_index_map=(0,),
           slice_sizes=(1, *shape[1:]))
    for region in (second(DType.S32), apply("add", DType.S32)):
        scatter(x, rows, values(rng, (*count, *shape[1:])), region, update_window_dims=rest,
                inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))


@pytest.mark.parametrize("vector", [0, 1])
def test_elements(vector: int) -> None:
    rng = np.random.default_rng(SEED)
    x = values(rng, (5, 6))
    at = indices(rng, (7, 2), 5)
    at = at if vector else at.T.copy()
    gather(x, at, collapsed_slice_dims=(0, 1), start_index_map=(1, 0), index_vector_dim=vector,
           slice_sizes=(1, 1))
    scatter(x, at, values(rng, (7,)), apply("maximum", DType.S32), inserted_window_dims=(0, 1),
            scatter_dims_to_operand_dims=(1, 0), index_vector_dim=vector)


def test_columns_and_unsigned_indices() -> None:
    rng = np.random.default_rng(SEED)
    x = values(rng, (5, 6))
    gather(x, np.array([0, 3, 2**31, 2**32 - 1, 5], np.uint32), offset_dims=(0,),
           collapsed_slice_dims=(1,), start_index_map=(1,), slice_sizes=(5, 1))


@pytest.mark.parametrize("offset", [(1, 2), (0, 2), (0, 1)])
def test_windows(offset: tuple[int, int]) -> None:
    rng = np.random.default_rng(SEED)
    x, at = values(rng, (5, 7)), indices(rng, (4, 2), 5)
    gather(x, at, offset_dims=offset, start_index_map=(0, 1), index_vector_dim=1,
           slice_sizes=(2, 3))
    shape = [2, 3]
    shape.insert(next(d for d in range(3) if d not in offset), 4)
    scatter(x, at, values(rng, tuple(shape)), apply("add", DType.S32), update_window_dims=offset,
            scatter_dims_to_operand_dims=(0, 1), index_vector_dim=1)


def test_batching_dimensions() -> None:
    rng = np.random.default_rng(SEED)
    x, at = values(rng, (3, 5, 4)), indices(rng, (3, 6), 5)
    gather(x, at, offset_dims=(2,), collapsed_slice_dims=(1,), operand_batching_dims=(0,),
           start_indices_batching_dims=(0,), start_index_map=(1,), slice_sizes=(1, 1, 4))
    scatter(x, at, values(rng, (3, 6, 4)), apply("add", DType.S32), update_window_dims=(2,),
            inserted_window_dims=(1,), input_batching_dims=(0,),
            scatter_indices_batching_dims=(0,), scatter_dims_to_operand_dims=(1,))


def test_index_vectors_longer_than_lanes() -> None:
    rng = np.random.default_rng(SEED)
    x, at = values(rng, (2, 3, 2, 3, 2)), indices(rng, (3, 5), 2)
    gather(x, at, collapsed_slice_dims=(0, 1, 2, 3, 4), start_index_map=(0, 1, 2, 3, 4),
           index_vector_dim=1, slice_sizes=(1,) * 5)
