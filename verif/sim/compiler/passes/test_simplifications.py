"""Passes that remove what need not be computed keep all results, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sim.compiler.graph.arrays import array_dtype
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import DType, Graph, TensorType, Value
from sim.compiler.graph.text import to_text
from sim.compiler.graph.verify import verify
from sim.compiler.passes.canonicalize import canonicalize
from sim.compiler.passes.drop_dead import drop_dead
from sim.compiler.passes.fold_constants import fold_constants
from sim.compiler.passes.share_common import share_common
from sim.compiler.passes.sink_transposes import sink_transposes
from verif.sim.compiler.random_graphs import MAKERS, differences, random_graph

PASSES: tuple[Callable[[Graph], None], ...] = (fold_constants, canonicalize, share_common,
                                               drop_dead, sink_transposes)
KINDS: dict[Callable[[Graph], None], tuple[str, ...]] = {
    sink_transposes: ("transpose", "dot_general")}
"""For a pass that changes few random graphs: the kinds of operations of the graphs to test."""
F32, S32 = (TensorType((2, 3), dtype) for dtype in (DType.F32, DType.S32))


@pytest.mark.parametrize("apply", PASSES, ids=lambda apply: apply.__name__)
def test_random_graphs_keep_their_results(apply: Callable[[Graph], None]) -> None:
    changed = 0
    for seed in range(200):
        random = random_graph(seed, operations=8, kinds=KINDS.get(apply, ()))
        before = to_text(random.graph)
        expected = interpret(random.graph, random.inputs)
        apply(random.graph)
        verify(random.graph)
        changed += to_text(random.graph) != before
        found = interpret(random.graph, random.inputs)
        assert differences(random, found, expected, 1e-12) == [], before
    assert changed > 3


def test_all_passes_together_keep_the_results() -> None:
    for seed in range(1000, 1150):
        random = random_graph(seed, operations=20)
        expected = interpret(random.graph, random.inputs)
        count = len(random.graph.operations)
        for apply in PASSES * 2:
            apply(random.graph)
            verify(random.graph)
        assert len(random.graph.operations) <= count + 12
        found = interpret(random.graph, random.inputs)
        assert differences(random, found, expected, 1e-12) == []


def test_every_kind_occurs_in_random_graphs() -> None:
    kinds = {operation.kind for seed in range(300)
             for operation in random_graph(seed).graph.operations}
    assert kinds >= set(MAKERS) - {"unary_exact", "unary_rough", "binary", "binary_rough",
                                   "broadcast"}


def splat(graph: Graph, number: Any, type: TensorType) -> Value:
    scalar = graph.add("constant", (), TensorType((), type.dtype),
                       {"value": np.array(number, array_dtype(type.dtype))}).result
    return graph.add("broadcast_in_dim", (scalar,), type, {"broadcast_dimensions": ()}).result


@pytest.mark.parametrize(("kind", "number", "type", "gone"), [
    ("add", -0.0, F32, True), ("add", 0.0, F32, False), ("subtract", 0.0, F32, True),
    ("subtract", -0.0, F32, False), ("add", 0, S32, True), ("multiply", 1, S32, True),
    ("and", -1, S32, True), ("and", 1, S32, False), ("shift_left", 0, S32, True),
    ("divide", 1, S32, True), ("multiply", 1.0, F32, False)])
def test_neutral_numbers(kind: str, number: Any, type: TensorType, gone: bool) -> None:
    graph = Graph([Value(type)])
    graph.outputs = [graph.add(kind, (graph.inputs[0], splat(graph, number, type)), type).result]
    canonicalize(graph)
    assert (graph.outputs == graph.inputs) == gone


def test_neutral_number_on_the_left_is_not_one_of_subtract() -> None:
    graph = Graph([Value(S32)])
    graph.outputs = [graph.add("subtract", (splat(graph, 0, S32), graph.inputs[0]), S32).result]
    canonicalize(graph)
    assert graph.outputs != graph.inputs


def test_chains_of_transposes_and_reshapes_vanish() -> None:
    graph = Graph([Value(F32)])
    x = graph.add("transpose", graph.inputs, TensorType((3, 2), DType.F32),
                  {"permutation": (1, 0)}).result
    x = graph.add("transpose", (x,), F32, {"permutation": (1, 0)}).result
    x = graph.add("reshape", (x,), TensorType((6,), DType.F32)).result
    graph.outputs = [graph.add("reshape", (x,), F32).result]
    canonicalize(graph)
    drop_dead(graph)
    assert graph.outputs == graph.inputs
    assert graph.operations == []


def test_equal_operations_are_computed_once() -> None:
    graph = Graph([Value(F32)])
    pair = [graph.add("tanh", graph.inputs, F32).result for _ in range(2)]
    graph.outputs = [graph.add("add", pair, F32).result]
    share_common(graph)
    assert [operation.kind for operation in graph.operations] == ["tanh", "add"]


def test_loop_drops_what_nothing_needs() -> None:
    random = random_graph(0, operations=1, kinds=["while"])
    [loop] = [operation for operation in random.graph.operations if operation.kind == "while"]
    random.graph.outputs = [loop.results[0], loop.results[2]]
    drop_dead(random.graph)
    verify(random.graph)
    # The counter stays; the value that the body returns as it came is the operand.
    assert len(loop.results) == 1
    assert random.graph.outputs[1] in loop.operands + tuple(random.graph.inputs) + tuple(
        operation.results[0] for operation in random.graph.operations)


def test_transpose_goes_into_a_product() -> None:
    graph = Graph([Value(TensorType((4, 3), DType.F32)), Value(TensorType((4, 5), DType.F32))])
    x = graph.add("transpose", graph.inputs[:1], TensorType((3, 4), DType.F32),
                  {"permutation": (1, 0)}).result
    graph.outputs = [graph.add("dot_general", (x, graph.inputs[1]), TensorType((3, 5), DType.F32), {
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
        "precision_config": ("DEFAULT", "DEFAULT")}).result]
    sink_transposes(graph)
    drop_dead(graph)
    [product] = graph.operations
    assert product.operands == tuple(graph.inputs)
    assert product.attributes["lhs_contracting_dimensions"] == (0,)
    verify(graph)


@pytest.mark.parametrize("precision", ["DEFAULT", "HIGH"])
def test_a_product_of_one_pass_takes_bf16_operands(precision: str) -> None:
    """With one pass, the array rounds the fp32 copy to the same numbers; HIGH has more passes."""
    graph = Graph([Value(TensorType((4, 3), DType.F32)), Value(TensorType((3, 5), DType.BF16))])
    x, w = graph.inputs
    wide = graph.add("convert", (w,), TensorType((3, 5), DType.F32)).result
    graph.outputs = [graph.add("dot_general", (x, wide), TensorType((4, 5), DType.F32), {
        "lhs_batching_dimensions": (), "rhs_batching_dimensions": (),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,),
        "precision_config": (precision, precision)}).result]
    arrays = [np.random.default_rng(1).standard_normal(value.shape).astype(array_dtype(value.dtype))
              for value in (x, w)]
    [want] = interpret(graph, arrays)
    canonicalize(graph)
    drop_dead(graph)
    verify(graph)
    assert graph.operations[-1].operands == (x, w if precision == "DEFAULT" else wide)
    [got] = interpret(graph, arrays)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("precision", "used", "exchanged"), [
    ("DEFAULT", False, True), ("HIGH", False, False), ("DEFAULT", True, False)])
def test_transposed_product_exchanges_its_operands(precision: str, used: bool,
                                                   exchanged: bool) -> None:
    kinds = TensorType((2, 4, 3), DType.F32), TensorType((2, 4, 5), DType.F32)
    graph = Graph([Value(kind) for kind in kinds])
    product = graph.add("dot_general", graph.inputs, TensorType((2, 3, 5), DType.F32), {
        "lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (0,),
        "lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (1,),
        "precision_config": (precision, precision)}).result
    turned = graph.add("transpose", (product,), TensorType((2, 5, 3), DType.F32),
                       {"permutation": (0, 2, 1)}).result
    graph.outputs = [turned, product] if used else [turned]
    arrays = [np.random.default_rng(1).integers(-9, 9, kind.shape).astype(np.float32)
              for kind in kinds]
    want = interpret(graph, arrays)
    sink_transposes(graph)
    drop_dead(graph)
    verify(graph)
    assert [operation.kind for operation in graph.operations] == (
        ["dot_general"] if exchanged else ["dot_general", "transpose"])
    for got, expected in zip(interpret(graph, arrays), want, strict=True):
        np.testing.assert_array_equal(got, expected)
