"""Products and convolutions of all forms are replaced by forms for which there are kernels."""

from collections import Counter

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.graph.verify import verify
from sim.compiler.kernels.lowering import choose
from sim.compiler.kernels.products.convolution import is_plain
from sim.compiler.kernels.products.dot import Dots
from sim.compiler.passes.convolutions.expand_convolutions import expand_convolutions
from sim.compiler.passes.expand_products import expand_products
from sim.compiler.tiling import standard

SEED = 20261122
CONFIG = Config.preset("tiny")
Dimensions = tuple[int, ...]


def numbers(rng: np.random.Generator, kind: TensorType) -> np.ndarray:
    """Small random integers of a type."""
    low, high = (0, 2) if kind.dtype is DType.PRED else (0, 10)
    return rng.integers(low, high, kind.shape).astype(array_dtype(kind.dtype))


def compare(kind: str, types: list[TensorType], result: TensorType, attributes: dict[str, object],
            ) -> Graph:
    """Expand a graph of one operation; its results on integers must not change."""
    graph = Graph([Value(type) for type in types])
    graph.outputs = [graph.add(kind, graph.inputs, result, attributes).result]
    verify(graph)
    rng = np.random.default_rng(SEED)
    arrays = [numbers(rng, type) for type in types]
    wanted = interpret(graph, arrays)
    expand_convolutions(graph, CONFIG)
    expand_products(graph)
    verify(graph)
    for operation in graph.operations:
        if operation.kind in ("dot_general", "convolution"):
            choose(operation, tuple(standard(value.shape, CONFIG)
                                    for value in operation.operands), CONFIG)
    assert np.array_equal(interpret(graph, arrays)[0], wanted[0]), SEED
    return graph


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.S32, DType.U32, DType.PRED],
                         ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(("lhs", "rhs", "contracting", "batch"), [
    ((3,), (4,), ((), ()), ((), ())),
    ((2, 3), (4, 2), ((), ()), ((0,), (1,))),
    ((), (2, 3), ((), ()), ((), ())),
    ((5, 3), (5, 3), ((1,), (1,)), ((0,), (0,))),
    ((5, 3), (3, 5), ((0, 1), (1, 0)), ((), ())),
    ((5, 3, 2), (3, 5, 2), ((0,), (1,)), ((2, 1), (2, 0))),
    ((4, 3), (4, 3, 2), ((1,), (1,)), ((0,), (0,))),
    ((4, 2, 3), (3, 4), ((2,), (0,)), ((0,), (1,))),
    ((3, 4), (3, 4, 2, 5), ((0, 1), (0, 1)), ((), ())),
    ((3,), (3,), ((0,), (0,)), ((), ())),
])
def test_products(lhs: Dimensions, rhs: Dimensions, contracting: tuple[Dimensions, Dimensions],
                  batch: tuple[Dimensions, Dimensions], dtype: DType) -> None:
    shape = Dots((lhs, rhs), batch, contracting).result_shape
    compare("dot_general", [TensorType(lhs, dtype), TensorType(rhs, dtype)],
            TensorType(shape, dtype),
            {"lhs_batching_dimensions": batch[0], "rhs_batching_dimensions": batch[1],
             "lhs_contracting_dimensions": contracting[0],
             "rhs_contracting_dimensions": contracting[1],
             "precision_config": ("DEFAULT", "DEFAULT")})


def random_convolution(rng: np.random.Generator) -> tuple[list[TensorType], TensorType,
                                                          dict[str, object]]:
    """Types and attributes of a convolution of any form."""
    while True:
        rank = int(rng.integers(0, 4))
        feature_groups, batch_groups = [(1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)][
            rng.integers(6)]
        groups = max(feature_groups, batch_groups)
        inputs, outputs, batch = (int(rng.integers(1, 4)) for _ in range(3))
        windows, sizes = rng.integers(1, 4, rank).tolist(), rng.integers(1, 8, rank).tolist()
        step, dilation, base = (rng.integers(1, 3, rank).tolist() for _ in range(3))
        pads = [tuple(pair) for pair in rng.integers(-1, 3, (rank, 2)).tolist()]
        reverse = tuple(bool(bit) for bit in rng.integers(0, 2, rank))
        places = [((size - 1) * by + 1 + sum(pad) - (window - 1) * apart - 1) // stride + 1
                  for size, by, pad, window, apart, stride in zip(
                      sizes, base, pads, windows, dilation, step, strict=True)]
        if all(place > 0 for place in places) and np.prod(sizes) < 200:
            break
    left, kernel, target = (rng.permutation(rank + 2).tolist() for _ in range(3))
    lhs = [0] * (rank + 2)
    rhs, result = list(lhs), list(lhs)
    for shape, order, values in (
            (lhs, left, [batch * batch_groups, inputs * feature_groups, *sizes]),
            (rhs, kernel, [inputs, outputs * groups, *windows]),
            (result, target, [batch, outputs * groups, *places])):
        for dimension, value in zip(order, values, strict=True):
            shape[dimension] = value
    dtype = [DType.F32, DType.S32][rng.integers(2)]
    return ([TensorType(tuple(lhs), dtype), TensorType(tuple(rhs), dtype)],
            TensorType(tuple(result), dtype), {
        "window_strides": tuple(step), "padding": tuple(pads), "lhs_dilation": tuple(base),
        "rhs_dilation": tuple(dilation), "window_reversal": reverse,
        "input_batch_dimension": left[0], "input_feature_dimension": left[1],
        "input_spatial_dimensions": tuple(left[2:]), "kernel_input_feature_dimension": kernel[0],
        "kernel_output_feature_dimension": kernel[1],
        "kernel_spatial_dimensions": tuple(kernel[2:]), "output_batch_dimension": target[0],
        "output_feature_dimension": target[1], "output_spatial_dimensions": tuple(target[2:]),
        "feature_group_count": feature_groups, "batch_group_count": batch_groups,
        "precision_config": ("DEFAULT", "DEFAULT")})


def test_convolutions() -> None:
    rng = np.random.default_rng(SEED)
    kinds: Counter[str] = Counter()
    for _ in range(150):
        types, result, attributes = random_convolution(rng)
        graph = compare("convolution", types, result, attributes)
        kinds.update(operation.kind for operation in graph.operations)
        assert all(is_plain(operation) for operation in graph.operations
                   if operation.kind == "convolution")
    for kind in ("convolution", "pad", "reverse", "concatenate", "slice", "multiply", "reduce",
                 "dot_general"):
        assert kinds[kind], kind


def test_gradients_of_depthwise_kernels_have_a_sum_for_each_place() -> None:
    """This holds for any number of output features of an input feature."""
    lhs, rhs, result = (TensorType(shape, DType.F32)
                        for shape in ((5, 6, 2, 4), (4, 5, 2, 12), (2, 2, 1, 12)))
    graph = compare("convolution", [lhs, rhs], result, {
        "window_strides": (1, 1), "padding": ((0, 0), (0, 0)), "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1), "window_reversal": (False, False), "input_batch_dimension": 3,
        "input_feature_dimension": 2, "input_spatial_dimensions": (0, 1),
        "kernel_input_feature_dimension": 2, "kernel_output_feature_dimension": 3,
        "kernel_spatial_dimensions": (0, 1), "output_batch_dimension": 2,
        "output_feature_dimension": 3, "output_spatial_dimensions": (0, 1),
        "feature_group_count": 1, "batch_group_count": 4,
        "precision_config": ("DEFAULT", "DEFAULT")})
    kinds = Counter(operation.kind for operation in graph.operations)
    assert (kinds["reduce"], kinds["dot_general"], kinds["convolution"]) == (4, 0, 0)


def test_regions_are_expanded() -> None:
    scalar, vector = TensorType((), DType.PRED), TensorType((3, 2), DType.F32)
    condition, body = Graph([Value(vector)]), Graph([Value(vector)])
    condition.outputs = [condition.add("constant", (), scalar,
                                       {"value": np.zeros((), bool)}).result]
    operand = body.inputs[0]
    product = Operation("dot_general", (operand, operand), (Value(TensorType((3,), DType.F32)),), {
        "lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (0,),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
        "precision_config": ("DEFAULT", "DEFAULT")})
    body.operations.append(product)
    body.outputs = [body.add("broadcast_in_dim", (product.result,), vector,
                             {"broadcast_dimensions": (0,)}).result]
    graph = Graph([Value(vector)])
    graph.outputs = [graph.add("while", graph.inputs, vector, {}, [condition, body]).result]
    expand_products(graph)
    verify(graph)
    assert not any(operation.kind == "dot_general" for operation in graph.walk())
