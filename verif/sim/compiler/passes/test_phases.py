"""Chains of convolutions stay in phases."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import DType, Graph, TensorType, Value
from sim.compiler.graph.verify import verify
from sim.compiler.passes import SIMPLIFICATIONS
from sim.compiler.passes.convolutions.split_phases import split_phases

SEED = 20261122
CONFIG = Config.preset("tiny")


def convolve(graph: Graph, value: Value, kernel: Value, stride: int = 1) -> Value:
    """A convolution, as JAX writes one with the padding SAME; features last."""
    size = kernel.shape[0]
    pads = []
    for columns in value.shape[1:3]:
        total = max(0, (-(-columns // stride) - 1) * stride + size - columns)
        pads.append((total // 2, total - total // 2))
    batch, lines, columns, _ = value.shape
    shape = (batch, -(-lines // stride), -(-columns // stride), kernel.shape[3])
    return graph.add("convolution", (value, kernel), TensorType(shape, DType.F32), {
        "window_strides": (stride, stride), "padding": tuple(pads), "lhs_dilation": (1, 1),
        "rhs_dilation": (1, 1), "window_reversal": (False, False), "input_batch_dimension": 0,
        "input_feature_dimension": 3, "input_spatial_dimensions": (1, 2),
        "kernel_input_feature_dimension": 2, "kernel_output_feature_dimension": 3,
        "kernel_spatial_dimensions": (0, 1), "output_batch_dimension": 0,
        "output_feature_dimension": 3, "output_spatial_dimensions": (1, 2),
        "feature_group_count": 1, "batch_group_count": 1,
        "precision_config": ("HIGHEST", "HIGHEST")}).result


def block(columns: int) -> Graph:
    """Two convolutions, the second with a stride; scaled, with a residual, and a mean."""
    types = [(1, 4, columns, 3), (3, 3, 3, 5), (5,), (3, 3, 5, 4), (1, 1, 3, 4)]
    graph = Graph([Value(TensorType(shape, DType.F32)) for shape in types])
    x, first, scale, second, skip = graph.inputs
    y = convolve(graph, x, first)
    scales = graph.add("broadcast_in_dim", (scale,), y.type, {"broadcast_dimensions": (3,)}).result
    zero = graph.add("constant", (), TensorType(y.shape, DType.F32),
                     {"value": np.zeros(y.shape, np.float32)}).result
    y = graph.add("maximum", (graph.add("multiply", (y, scales), y.type).result, zero),
                  y.type).result
    y = convolve(graph, y, second, 2)
    z = graph.add("add", (y, convolve(graph, x, skip, 2)), y.type).result
    scalar = TensorType((), DType.F32)
    region = Graph([Value(scalar), Value(scalar)])
    region.outputs = [region.add("add", region.inputs, scalar).result]
    start = graph.add("constant", (), scalar, {"value": np.zeros((), np.float32)}).result
    mean = graph.add("reduce", (z, start), TensorType((1, 4), DType.F32), {"dimensions": (1, 2)},
                     (region,)).result
    graph.outputs = [mean]
    return graph


def kinds(graph: Graph) -> Counter[str]:
    return Counter(operation.kind for operation in graph.operations)


def simplify(graph: Graph) -> None:
    for _, apply in SIMPLIFICATIONS:
        apply(graph, CONFIG)


@pytest.mark.parametrize("columns", [4, 8])
def test_a_block_never_puts_columns_together(columns: int) -> None:
    graph = block(columns)
    rng = np.random.default_rng(SEED)
    arrays: list[Any] = [rng.standard_normal(value.shape).astype(np.float32)
                         for value in graph.inputs]
    [wanted] = interpret(graph, arrays)
    split_phases(graph, CONFIG)
    simplify(graph)
    verify(graph)
    found = kinds(graph)
    assert found["phase_convolution"] == 3
    assert found["convolution"] == 0
    # Only the input is split, once.
    assert found["transpose"] <= 2
    assert found["reshape"] <= 2
    np.testing.assert_allclose(interpret(graph, arrays)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize(("wide", "seen"), [(3, False), (3, True), (5, False), (1, False)])
def test_two_columns_share_lanes(wide: int, seen: bool) -> None:
    """They do not if the result is used elsewhere, too, or if the filter is not wide."""
    graph = Graph([Value(TensorType(shape, DType.F32)) for shape in [
        (2, 4, 8, 2), (wide, wide, 2, 2), (2,), (1, 1, 2, 8)]])
    x, first, scale, second = graph.inputs
    y = convolve(graph, x, first)
    scales = graph.add("broadcast_in_dim", (scale,), y.type, {"broadcast_dimensions": (3,)}).result
    y = graph.add("multiply", (y, scales), y.type).result
    zero = graph.add("constant", (), y.type, {"value": np.zeros(y.shape, np.float32)}).result
    y = graph.add("maximum", (zero, y), y.type).result
    z = convolve(graph, y, second)
    graph.outputs = [z, y] if seen else [z]
    arrays: list[Any] = [np.random.default_rng(SEED).standard_normal(value.shape).astype(np.float32)
                         for value in graph.inputs]
    wanted = interpret(graph, arrays)
    split_phases(graph, CONFIG)
    simplify(graph)
    verify(graph)
    paired = wide > 1 and not seen
    convolutions = [operation.attributes["columns"] for operation in graph.operations
                    if operation.kind == "phase_convolution"]
    assert (convolutions[0], convolutions[-1]) == (1, 2 if paired else 1)
    assert {operation.result.shape[4] for operation in graph.operations
            if operation.kind == "multiply"} == {4 if paired else 2}
    for got, expected in zip(interpret(graph, arrays), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
def test_lines_of_a_large_kernel_are_multiplied_one_by_one(stride: int) -> None:
    graph = Graph([Value(TensorType(shape, DType.F32)) for shape in [(1, 4, 4, 8), (3, 3, 8, 16)]])
    x, kernel = graph.inputs
    graph.outputs = [convolve(graph, x, kernel, stride)]
    arrays: list[Any] = [np.random.default_rng(SEED).standard_normal(value.shape).astype(np.float32)
                         for value in graph.inputs]
    [wanted] = interpret(graph, arrays)
    split_phases(graph, CONFIG)
    simplify(graph)
    verify(graph)
    assert [operation.operands[1].shape for operation in graph.operations
            if operation.kind == "phase_convolution"] == [(1, 3, 8, 16)] * 3
    np.testing.assert_allclose(interpret(graph, arrays)[0], wanted, rtol=1e-5, atol=1e-5)


def test_what_needs_whole_lines_gets_them() -> None:
    graph = block(4)
    result = next(operation.operands[0] for operation in graph.operations
                  if operation.kind == "reduce")
    graph.outputs = [result]
    arrays = [np.random.default_rng(SEED).standard_normal(value.shape).astype(np.float32)
              for value in graph.inputs]
    [wanted] = interpret(graph, arrays)
    split_phases(graph, CONFIG)
    simplify(graph)
    verify(graph)
    np.testing.assert_allclose(interpret(graph, arrays)[0], wanted, rtol=1e-5, atol=1e-5)


def test_columns_that_cannot_be_split_stay() -> None:
    graph = block(7)
    split_phases(graph, CONFIG)
    assert not kinds(graph)["phase_convolution"]


def pool(graph: Graph, value: Value) -> Value:
    """The maxima of windows of 3 x 3 with a stride of 2 and the padding SAME."""
    scalar = TensorType((), DType.F32)
    region = Graph([Value(scalar), Value(scalar)])
    region.outputs = [region.add("maximum", region.inputs, scalar).result]
    least = graph.add("constant", (), scalar, {"value": np.array(-np.inf, np.float32)}).result
    batch, lines, columns, features = value.shape
    return graph.add(
        "reduce_window", (value, least),
        TensorType((batch, lines // 2, columns // 2, features), DType.F32),
        {"window_dimensions": (1, 3, 3, 1), "window_strides": (1, 2, 2, 1),
         "padding": ((0, 0), (0, 1), (0, 1), (0, 0)), "base_dilations": (1,) * 4,
         "window_dilations": (1,) * 4}, (region,)).result


def stem(config: Config, size: int = 7, stride: int = 2, features: int = 3, columns: int = 32
         ) -> Graph:
    """A network's first layers: a convolution of few features, a maximum, one of many features."""
    types = [(2, 12, columns, features), (size, size, features, 16), (16,), (1, 1, 16, 16)]
    graph = Graph([Value(TensorType(shape, DType.F32)) for shape in types])
    x, first, shift, second = graph.inputs
    y = convolve(graph, x, first, stride)
    convolution = graph.operations[-1]
    convolution.attributes["precision_config"] = ("DEFAULT", "DEFAULT")
    shifts = graph.add("broadcast_in_dim", (shift,), y.type, {"broadcast_dimensions": (3,)}).result
    graph.outputs = [convolve(graph, pool(graph, graph.add("add", (y, shifts), y.type).result),
                              second)]
    return graph


@pytest.mark.parametrize(("size", "stride", "features", "columns"), [
    (7, 2, 3, 32), (3, 1, 4, 16), (5, 2, 2, 28), (4, 2, 3, 48)])
def test_few_features_run_along_lanes(size: int, stride: int, features: int, columns: int) -> None:
    config = Config.preset("v2")
    graph = stem(config, size, stride, features, columns)
    rng = np.random.default_rng(SEED)
    arrays = [rng.integers(-3, 4, value.shape).astype(np.float32) for value in graph.inputs]
    [wanted] = interpret(graph, arrays)
    split_phases(graph, config)
    simplify(graph)
    verify(graph)
    found = kinds(graph)
    assert (found["line_convolution"], found["phase_convolution"]) == (1, 1)
    np.testing.assert_allclose(interpret(graph, arrays)[0], wanted, rtol=1e-6)


def test_large_images_follow_each_other() -> None:
    graph = Graph([Value(TensorType(shape, DType.F32))
                   for shape in [(3, 8, 8, 4), (3, 3, 4, 4), (3, 3, 4, 4)]])
    x, first, second = graph.inputs
    y = convolve(graph, x, first)
    y = graph.add("negate", (y,), y.type).result
    graph.outputs = [convolve(graph, y, second)]
    arrays = [np.random.default_rng(SEED).standard_normal(value.shape).astype(np.float32)
              for value in graph.inputs]
    [wanted] = interpret(graph, arrays)
    split_phases(graph, CONFIG)
    simplify(graph)
    verify(graph)
    chain = [operation.kind for operation in graph.operations
             if operation.kind in ("phase_convolution", "negate")]
    assert chain == ["phase_convolution", "negate", "phase_convolution"] * 3
    np.testing.assert_allclose(interpret(graph, arrays)[0], wanted, rtol=1e-5, atol=1e-5)
