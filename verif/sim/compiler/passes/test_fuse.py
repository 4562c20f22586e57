"""Fusion does not change a graph's results, and forms the expected groups."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.interpret import interpret
from sim.compiler.graph.ir import DType, Graph, TensorType, Value
from sim.compiler.graph.verify import verify
from sim.compiler.kernels.elements.writing import pressure
from sim.compiler.kernels.elementwise import Region
from sim.compiler.passes.fuse import fuse
from verif.sim.compiler.kernels.harness import check

TINY = Config.preset("tiny")
F32, S32, U32, PRED = DType.F32, DType.S32, DType.U32, DType.PRED


class Maker:
    """Appends operations to a graph."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self.graph = Graph([Value(TensorType(shape, F32)) for shape in shapes])
        self.inputs = self.graph.inputs

    def __call__(self, kind: str, *operands: Value, dtype: DType | None = None,
                 shape: tuple[int, ...] | None = None, **attributes: Any) -> Value:
        shape = operands[-1].shape if shape is None else shape
        dtype = operands[-1].dtype if dtype is None else dtype
        return self.graph.add(kind, operands, TensorType(shape, dtype), attributes).result

    def broadcast(self, value: Value, shape: tuple[int, ...], *dimensions: int) -> Value:
        return self("broadcast_in_dim", value, shape=shape, broadcast_dimensions=dimensions)

    def constant(self, number: float) -> Value:
        return self("constant", dtype=F32, shape=(), value=np.asarray(number, np.float32))

    def fused(self, *outputs: Value) -> list[str]:
        """Kinds of operations after fusion, which must not change the result."""
        graph = self.graph
        graph.outputs = list(outputs)
        verify(graph)
        rng = np.random.default_rng(1)
        arrays = [rng.standard_normal(value.shape).astype(np.float32) for value in graph.inputs]
        before = interpret(graph, arrays)
        fuse(graph, TINY)
        verify(graph)
        for a, b in zip(before, interpret(graph, arrays), strict=True):
            assert np.array_equal(a, b, equal_nan=True)
        for operation in graph.operations:
            if operation.kind == "fusion":
                inputs = [rng.standard_normal(value.shape).astype(np.float32)
                          if value.dtype is F32 else rng.integers(0, 2, value.shape).astype(bool)
                          for value in operation.operands]
                check(operation, inputs, same=near)
        return [operation.kind for operation in graph.operations]


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-5, atol=1e-6,
                            equal_nan=True))


def test_a_chain_with_constants_is_one_kernel() -> None:
    m = Maker((5, 6))
    half = m.broadcast(m.constant(0.5), (5, 6))
    x = m("multiply", m.inputs[0], half)
    y = m("add", m("tanh", x), half)
    assert m.fused(y) == ["fusion"]
    assert len(m.graph.operations[0].operands) == 1


def test_results_with_other_users_are_kept() -> None:
    m = Maker((5, 6))
    x = m("exponential", m.inputs[0])
    total = m("transpose", x, shape=(6, 5), permutation=(1, 0))
    assert m.fused(m("negate", x), total) == ["fusion", "transpose"]
    assert len(m.graph.operations[0].results) == 2


def test_no_group_reads_what_depends_on_it() -> None:
    m = Maker((5, 5))
    x = m("exponential", m.inputs[0])
    turned = m("transpose", x, permutation=(1, 0))
    assert m.fused(m("add", m("negate", x), m("abs", turned))) == [
        "fusion", "transpose", "fusion"]


def test_normalisation_reads_rows_and_columns() -> None:
    m = Maker((5, 6), (6,), (5,))
    x, row, column = m.inputs
    scaled = m("multiply", x, m.broadcast(row, (5, 6), 1))
    kept = m.broadcast(column, (5, 1), 0)
    y = m("subtract", scaled, m.broadcast(kept, (5, 6), 0, 1))
    assert m.fused(y) == ["fusion"]


def test_one_operand_in_two_directions_stays_a_copy() -> None:
    m = Maker((5,))
    [x] = m.inputs
    y = m("subtract", m.broadcast(x, (5, 5), 0), m.broadcast(x, (5, 5), 1))
    assert m.fused(y) == ["broadcast_in_dim", "broadcast_in_dim", "subtract"]


def test_large_groups_are_split() -> None:
    m = Maker((5, 6))
    value = m.inputs[0]
    for _ in range(12):
        value = m("sine", value)
    kinds = m.fused(value)
    assert len(kinds) == 12


def test_many_masks_are_split() -> None:
    m = Maker((5, 6))
    masks = []
    for number in range(12):
        limit = m.broadcast(m.constant(number / 4 - 1.5), (5, 6))
        masks.append(m("compare", m.inputs[0], limit, dtype=PRED, comparison_direction="LT",
                       compare_type="FLOAT"))
    value = m.inputs[0]
    for mask in reversed(masks):
        value = m("select", mask, m("negate", value), value)
    m.fused(value)


def code(expanded: Region) -> list[Any]:
    """The expressions and outputs of an expanded region, which refer to each other by number."""
    numbers: dict[Any, Any] = {node: -1 - at for at, node in enumerate(expanded.leaves.values())}
    numbers |= {node: at for at, node in enumerate(expanded.elements.nodes)}
    return [(node.name, *(numbers.get(source, source) for source in node.sources))
            for node in expanded.elements.nodes] + [
                (numbers.get(output, output),) for output in expanded.outputs]


def test_a_region_that_grows_has_the_expressions_of_one_expanded_at_once() -> None:
    """A growing region, whose last operation is its only output, equals a new region."""
    m = Maker((5, 6), (5, 6))
    x, y = m.inputs
    half = m.broadcast(m.constant(0.5), (5, 6))
    less = m("compare", x, half, dtype=PRED, comparison_direction="LT", compare_type="FLOAT")
    more = m("compare", y, x, dtype=PRED, comparison_direction="GT", compare_type="FLOAT")
    both = m("and", less, more, dtype=PRED)
    m("tanh", m("select", both, m("add", x, y), m("convert", less, dtype=F32)))
    region = Graph(outputs=[])
    grown = Region(region)
    region.inputs = [x, y]
    for operation in m.graph.operations:
        region.operations.append(operation)
        region.outputs = [operation.result]
        grown.update()
        whole = Region(region.copy())
        assert code(grown) == code(whole)
        assert pressure(grown.elements, grown.outputs) == pressure(whole.elements, whole.outputs)


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "reverse": {"dimensions": (0,)}, "transpose": {"permutation": (1, 0)}}
OPERATIONS: list[tuple[str, int]] = [
    ("add", 2), ("multiply", 2), ("subtract", 2), ("maximum", 2), ("tanh", 1), ("negate", 1),
    ("abs", 1), ("reverse", 1), ("transpose", 1)]


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = Maker((4, 4), (4, 4), (4,), ())
    values = m.inputs[:2]
    for _ in range(25):
        kind, count = OPERATIONS[int(rng.integers(len(OPERATIONS)))]
        operands = [pick(rng, m, values) for _ in range(count)]
        attributes = ATTRIBUTES.get(kind, {})
        values.append(m(kind, *operands, **attributes))
    m.fused(values[-1], values[int(rng.integers(2, len(values)))])


def pick(rng: np.random.Generator, m: Maker, values: Sequence[Value]) -> Value:
    choices: list[Callable[[], Value]] = [
        lambda: m.broadcast(m.inputs[2], (4, 4), int(rng.integers(2))),
        lambda: m.broadcast(m.inputs[3], (4, 4)),
        lambda: m("iota", dtype=F32, shape=(4, 4), iota_dimension=int(rng.integers(2)))]
    if rng.random() < 0.25:
        return choices[int(rng.integers(3))]()
    return values[-1 - int(rng.integers(min(len(values), 6)))]
