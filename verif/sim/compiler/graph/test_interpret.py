"""The interpreter, against numpy and numbers worked out by hand."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sim.compiler.graph.arrays import Array, type_of
from sim.compiler.graph.infer import infer
from sim.compiler.graph.interpret import interpret, knows
from sim.compiler.graph.ir import DType, Graph, TensorType, Value
from sim.compiler.graph.kinds import KINDS
from sim.compiler.graph.text import to_text
from sim.compiler.graph.verify import GraphError, verify

INT_MIN = -2**31


def reducer(kind: str, dtype: DType, **attributes: Any) -> Graph:
    """A region of two scalars that applies one operation."""
    scalar = TensorType((), dtype)
    graph = Graph([Value(scalar), Value(scalar)], name=kind)
    result = TensorType((), DType.PRED) if kind == "compare" else scalar
    graph.outputs = [graph.add(kind, graph.inputs, result, attributes).result]
    return graph


def run(kind: str, *operands: Array, result: TensorType | None = None,
        regions: tuple[Graph, ...] = (), **attributes: Any) -> Array:
    """Execute a graph of one operation with one result, after the verifier has seen it."""
    graph = Graph([Value(type_of(operand)) for operand in operands])
    operation = graph.add(kind, graph.inputs, result or type_of(operands[0]), attributes, regions)
    if result is None:
        operation.results = tuple(map(Value, infer(operation)))
    graph.outputs = [operation.results[0]]
    verify(graph)
    assert kind in to_text(graph)
    [found] = interpret(graph, operands)
    return found


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def s32(*values: int) -> Array:
    return np.array(values, np.int32)


def test_all_kinds_have_a_rule() -> None:
    assert sorted(kind for kind in KINDS if not knows(kind)) == []


@pytest.mark.parametrize(("kind", "a", "b", "expected"), [
    ("add", s32(2**31 - 1, -1), s32(1, 1), s32(INT_MIN, 0)),
    ("multiply", s32(65536, -3), s32(65536, 5), s32(0, -15)),
    ("divide", s32(-7, 7, 5, INT_MIN), s32(2, -2, 0, -1), s32(-3, -3, -1, INT_MIN)),
    ("remainder", s32(-7, 7, 5, INT_MIN), s32(2, -2, 0, -1), s32(-1, 1, 5, 0)),
    ("power", s32(3, -1, 2, 0), s32(4, -3, -1, 0), s32(81, -1, 0, 1)),
    ("shift_left", s32(1, 1), s32(31, 32), s32(INT_MIN, 0)),
    ("shift_right_logical", s32(-1, -1), s32(28, 32), s32(15, 0)),
    ("shift_right_arithmetic", s32(-8, -8), s32(1, 99), s32(-4, -1)),
    ("maximum", f32(-0.0, np.nan, 1), f32(0.0, 1, np.inf), f32(0.0, np.nan, np.inf)),
    ("minimum", f32(0.0, 1, 1), f32(-0.0, np.nan, -np.inf), f32(-0.0, np.nan, -np.inf)),
    ("remainder", f32(-7, 7.5), f32(2, -2), f32(-1, 1.5)),
    ("power", f32(-2, 0, -8), f32(3, 0, 1 / 3), f32(-8, 1, np.nan)),
    ("divide", f32(1, -1, 0), f32(0, 0, 0), f32(np.inf, -np.inf, np.nan)),
    ("and", s32(12), s32(10), s32(8)),
])
def test_binary(kind: str, a: Array, b: Array, expected: Array) -> None:
    found = run(kind, a, b)
    np.testing.assert_array_equal(found, expected)
    if found.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(found)[~np.isnan(found)],
                                      np.signbit(expected)[~np.isnan(expected)])


def test_bf16_is_rounded_to_nearest_even() -> None:
    bf16 = ml_dtypes.bfloat16
    found = run("add", np.array([1, 1], bf16), np.array([2**-8, 3 * 2**-8], bf16))
    np.testing.assert_array_equal(found.astype(np.float32), [1, 1 + 2**-6])


def test_rsqrt_of_zeros() -> None:
    np.testing.assert_array_equal(run("rsqrt", f32(-0.0, 0.0, 4)), [np.inf, np.inf, 0.5])


def test_conversion_to_integers_saturates() -> None:
    x = f32(np.nan, np.inf, -np.inf, 2.0**31, -2.9, 300)
    found = run("convert", x, result=TensorType((6,), DType.S32))
    np.testing.assert_array_equal(found, [0, 2**31 - 1, INT_MIN, 2**31 - 1, -2, 300])
    found = run("convert", x, result=TensorType((6,), DType.U8))
    np.testing.assert_array_equal(found, [0, 255, 0, 255, 0, 255])


def test_total_order() -> None:
    a = f32(-0.0, np.nan, -np.inf, 1)
    b = f32(0.0, np.inf, -np.nan, 2)
    b.view(np.uint32)[2] = 0xFFC00000
    found = run("compare", a, b, comparison_direction="LT", compare_type="TOTALORDER")
    np.testing.assert_array_equal(found, [True, False, False, True])


@pytest.mark.parametrize(("low", "high", "gap", "expected"), [
    (1, 2, 0, [9, 1, 2, 3, 9, 9]), (0, 0, 1, [1, 9, 2, 9, 3]), (-1, -1, 1, [9, 2, 9]),
    (-2, 3, 0, [3, 9, 9, 9]), (-2, -2, 0, []),
])
def test_pad(low: int, high: int, gap: int, expected: list[int]) -> None:
    found = run("pad", s32(1, 2, 3), np.array(9, np.int32), edge_padding_low=(low,),
                edge_padding_high=(high,), interior_padding=(gap,))
    np.testing.assert_array_equal(found, expected)


def test_broadcast_transposes_nothing_but_places() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = run("broadcast_in_dim", x, result=TensorType((3, 4, 2), DType.F32),
                broadcast_dimensions=(2, 0))
    np.testing.assert_array_equal(found, np.broadcast_to(x.T[:, None, :], (3, 4, 2)))


def test_reduce_of_two_operands_is_argmax() -> None:
    pair = [TensorType((), DType.F32), TensorType((), DType.S32)]
    region = Graph([Value(type) for type in pair * 2])
    a, i, b, j = region.inputs
    less = region.add("compare", (a, b), TensorType((), DType.PRED),
                      {"comparison_direction": "LT", "compare_type": "FLOAT"}).result
    region.outputs = [region.add("select", (less, b, a), pair[0]).result,
                      region.add("select", (less, j, i), pair[1]).result]
    x = np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32)
    graph = Graph([Value(type_of(x)), Value(TensorType((5, 7), DType.S32)),
                   *(Value(type) for type in pair)])
    operation = graph.add("reduce", graph.inputs, [TensorType((5,), DType.F32),
                                                   TensorType((5,), DType.S32)],
                          {"dimensions": (1,)}, [region])
    graph.outputs = list(operation.results)
    verify(graph)
    places = np.broadcast_to(np.arange(7, dtype=np.int32), (5, 7)).copy()
    values, found = interpret(graph, [x, places, np.array(-np.inf, np.float32),
                                      np.array(0, np.int32)])
    np.testing.assert_array_equal(values, x.max(axis=1))
    np.testing.assert_array_equal(found, x.argmax(axis=1))


def test_dot_general_with_batch_and_several_contractions() -> None:
    rng = np.random.default_rng(2)
    a = rng.normal(size=(3, 2, 4, 5)).astype(np.float32)
    b = rng.normal(size=(5, 2, 6, 3)).astype(np.float32)
    found = run("dot_general", a, b, result=TensorType((2, 4, 6), DType.F32),
                lhs_batching_dimensions=(1,), rhs_batching_dimensions=(1,),
                lhs_contracting_dimensions=(0, 3), rhs_contracting_dimensions=(3, 0),
                precision_config=("DEFAULT", "DEFAULT"))
    np.testing.assert_allclose(found, np.einsum("kbmj,jbnk->bmn", a, b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("precision", "bound"), [("DEFAULT", 2e-2), ("HIGH", 1e-4),
                                                  ("HIGHEST", 1e-6)])
def test_passes_have_the_error_of_their_precision(precision: str, bound: float) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(1, 2, (8, 8)).astype(np.float32) for _ in range(2))
    graph = Graph([Value(type_of(a)), Value(type_of(b))])
    graph.outputs = [graph.add("dot_general", graph.inputs, type_of(a), {
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
        "precision_config": (precision, "DEFAULT")}).result]
    [exact], [found] = interpret(graph, [a, b]), interpret(graph, [a, b], passes=True)
    np.testing.assert_allclose(exact, a.astype(np.float64) @ b, rtol=1e-7)
    error = np.abs(found / exact - 1).max()
    assert bound / 100 < error + bound / 50 < bound


def test_sort_is_stable_and_moves_all_operands() -> None:
    keys = np.array([[2, 1, 2, 0], [1, 1, 0, 0]], np.int32)
    scalars = [TensorType((), DType.S32)] * 4
    region = Graph([Value(type) for type in scalars])
    region.outputs = [region.add("compare", region.inputs[:2], TensorType((), DType.PRED), {
        "comparison_direction": "LT", "compare_type": "SIGNED"}).result]
    places = np.tile(np.arange(4, dtype=np.int32), (2, 1))
    graph = Graph([Value(type_of(keys)), Value(type_of(places))])
    operation = graph.add("sort", graph.inputs, [type_of(keys)] * 2,
                          {"dimension": 1, "is_stable": True}, [region])
    graph.outputs = list(operation.results)
    verify(graph)
    found, order = interpret(graph, [keys, places])
    np.testing.assert_array_equal(found, np.sort(keys, axis=1))
    np.testing.assert_array_equal(order, np.argsort(keys, axis=1, kind="stable"))


def test_scatter_adds_in_place_and_drops_what_lies_outside() -> None:
    x = np.zeros((4, 2), np.float32)
    found = run("scatter", x, s32(1, 9, 1).reshape(3, 1), f32(1, 2, 3, 4, 5, 6).reshape(3, 2),
                regions=(reducer("add", DType.F32),), update_window_dims=(1,),
                inserted_window_dims=(0,), input_batching_dims=(),
                scatter_indices_batching_dims=(), scatter_dims_to_operand_dims=(0,),
                index_vector_dim=1, indices_are_sorted=False, unique_indices=False)
    np.testing.assert_array_equal(found, [[0, 0], [6, 8], [0, 0], [0, 0]])


def test_max_pool_and_its_gradient() -> None:
    x = f32(1, 3, 2, 5, 4, 0).reshape(1, 6)
    window: dict[str, Any] = {"window_dimensions": (1, 2), "window_strides": (1, 2),
                              "padding": ((0, 0), (0, 0))}
    found = run("reduce_window", x, np.array(-np.inf, np.float32),
                regions=(reducer("maximum", DType.F32),), base_dilations=(1, 1),
                window_dilations=(1, 1), **window)
    np.testing.assert_array_equal(found, [[3, 5, 4]])
    select = reducer("compare", DType.F32, comparison_direction="GE", compare_type="FLOAT")
    found = run("select_and_scatter", x, f32(10, 20, 30).reshape(1, 3),
                np.array(0, np.float32), regions=(select, reducer("add", DType.F32)), **window)
    np.testing.assert_array_equal(found, [[0, 10, 0, 20, 30, 0]])


def test_loop_and_branches() -> None:
    scalar = TensorType((), DType.S32)

    def constant(graph: Graph, value: int) -> Value:
        return graph.add("constant", (), scalar, {"value": np.array(value, np.int32)}).result

    condition, body = Graph([Value(scalar), Value(scalar)]), Graph([Value(scalar), Value(scalar)])
    condition.outputs = [condition.add(
        "compare", (condition.inputs[0], constant(condition, 5)), TensorType((), DType.PRED),
        {"comparison_direction": "LT", "compare_type": "SIGNED"}).result]
    i, total = body.inputs
    body.outputs = [body.add("add", (i, constant(body, 1)), scalar).result,
                    body.add("add", (total, i), scalar).result]
    graph = Graph([Value(scalar), Value(scalar)])
    loop = graph.add("while", graph.inputs, [scalar, scalar], regions=[condition, body])
    branches = []
    for value in (7, 8):
        branch = Graph([Value(scalar)])
        branch.outputs = [branch.add("add", (branch.inputs[0], constant(branch, value)),
                                     scalar).result]
        branches.append(branch)
    graph.outputs = [graph.add("case", (graph.inputs[1], loop.results[1]), scalar,
                               regions=branches).result]
    verify(graph)
    for index, expected in ((0, 17), (1, 19), (-1, 17), (9, 27)):
        [found] = interpret(graph, [np.array(0, np.int32), np.array(index, np.int32)])
        assert found == expected


def test_verifier_names_the_operation() -> None:
    graph = Graph([Value(TensorType((2,), DType.F32)), Value(TensorType((3,), DType.F32))])
    graph.outputs = [graph.add("add", graph.inputs, graph.inputs[0].type).result]
    with pytest.raises(GraphError, match=r"operation 0 \(add\) of main: operand 1 must have shape"):
        verify(graph)
    graph.operations[0].operands = (Value(graph.inputs[0].type),) * 2
    with pytest.raises(GraphError, match="operands must be defined before"):
        verify(graph)
