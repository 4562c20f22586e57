"""Kernels that move or reduce elements give the golden core's bits in RTL."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sim.compiler.graph.infer import infer
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from systolith import Device
from verif.sim.compiler.kernels.harness import build, execute
from verif.sim.compiler.kernels.regions import apply, less

SEED = 20261122
S32 = DType.S32
SCALAR: tuple[int, ...] = ()


@pytest.fixture(scope="module")
def rtl() -> Iterator[Device]:
    with Device.open("tiny", "rtl") as opened:
        yield opened


def operation(kind: str, shapes: list[tuple[int, ...]], regions: tuple[Graph, ...] = (),
              dtype: DType = S32, **attributes: Any) -> Operation:
    op = Operation(kind, tuple(Value(TensorType(shape, dtype)) for shape in shapes), (),
                   attributes, regions)
    op.results = tuple(map(Value, infer(op)))
    return op


CASES = {
    "transpose": operation("transpose", [(5, 2, 6)], permutation=(2, 0, 1)),
    "slice": operation("slice", [(5, 9)], start_indices=(1, 1), limit_indices=(5, 9),
                       strides=(1, 1)),
    "pad": operation("pad", [(3, 5), SCALAR], edge_padding_low=(1, 2), edge_padding_high=(0, 1),
                     interior_padding=(0, 1)),
    "dynamic_slice": operation("dynamic_slice", [(7, 9), SCALAR, SCALAR], slice_sizes=(3, 5)),
    "reduce": operation("reduce", [(3, 5, 6), SCALAR], (apply("add", DType.F32),), DType.F32,
                        dimensions=(0, 2)),
    "reduce_int": operation("reduce", [(3, 5, 6), SCALAR], (apply("maximum", S32),),
                            dimensions=(1, 2)),
    "gather": operation("gather", [(7, 6), (5,)], offset_dims=(1,), collapsed_slice_dims=(0,),
                        operand_batching_dims=(), start_indices_batching_dims=(),
                        start_index_map=(0,), index_vector_dim=1, slice_sizes=(1, 6),
                        indices_are_sorted=False),
    "scatter": operation("scatter", [(7, 6), (5,), (5, 6)], (apply("add", S32),),
                         update_window_dims=(1,), inserted_window_dims=(0,),
                         input_batching_dims=(), scatter_indices_batching_dims=(),
                         scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
                         indices_are_sorted=False, unique_indices=False),
    "reduce_window": operation("reduce_window", [(5, 6, 3), SCALAR], (apply("maximum", S32),),
                               window_dimensions=(2, 3, 1), window_strides=(2, 1, 1),
                               window_dilations=(1, 1, 1), base_dilations=(1, 1, 1),
                               padding=((0, 1), (1, 1), (0, 0))),
    "sort": operation("sort", [(3, 9)], (less([S32]),), dimension=1, is_stable=True),
}


@pytest.mark.parametrize("name", CASES)
def test_rtl_has_the_bits_of_the_golden_core(name: str, rtl: Device) -> None:
    op = CASES[name]
    rng = np.random.default_rng(SEED)
    arrays = [rng.standard_normal(value.shape).astype(np.float32) if value.dtype is DType.F32
              else rng.integers(-1, 8, value.shape).astype(np.int32) for value in op.operands]
    kernel = build(op, rtl.config)
    for golden, device in zip(execute(kernel, arrays), execute(kernel, arrays, rtl), strict=True):
        assert np.array_equal(golden, device)
