"""Loops over values in HBM: slices and updates are transfers of their rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sim.compiler.graph.ir import Graph, Value
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.control import flow
from sim.compiler.program.control.ahead import SlicesAhead, slices_ahead
from sim.compiler.program.driver import compile_graph
from systolith import Device
from verif.sim.compiler.program.common import Maker, arrays_for, check, f32, pred, s32

BLOCK = 4
"""Rows of a block of 3 x 4 elements."""


def number(graph: Graph, value: int) -> Value:
    return graph.add("constant", (), s32(), {"value": np.array(value, np.int32)}).result


def scan(steps: int, shape: tuple[int, int], backward: bool = False, limit: bool = False) -> Graph:
    """A loop that computes running sums of blocks, and stacks all sums.

    With ``limit``, the number of steps is an input, and not known to the compiler.
    """
    m = Maker(f32(steps, *shape), f32(*shape), s32())
    blocks, first, count = m.inputs
    types = [s32(), f32(*shape), blocks.type, blocks.type, s32()]
    condition = Graph([Value(kind) for kind in types], name="condition")
    end = condition.inputs[4] if limit else number(condition, steps)
    condition.outputs = [condition.add("compare", (condition.inputs[0], end), pred(), {
        "comparison_direction": "LT", "compare_type": "SIGNED"}).result]
    body = Graph([Value(kind) for kind in types], name="body")
    at, total, given, sums, last = body.inputs
    zero = number(body, 0)
    index = at
    if backward:
        index = body.add("subtract", (number(body, steps - 1), at), s32()).result
    block = f32(1, *shape)
    part = body.add("dynamic_slice", (given, index, zero, zero), block,
                    {"slice_sizes": block.shape}).result
    flat = body.add("reshape", (part,), f32(*shape)).result
    total = body.add("add", (total, flat), f32(*shape)).result
    new = body.add("reshape", (total,), block).result
    sums = body.add("dynamic_update_slice", (sums, new, index, zero, zero), sums.type).result
    body.outputs = [body.add("add", (at, number(body, 1)), s32()).result, total, given, sums, last]
    start = m.op("constant", to=s32(), value=np.array(0, np.int32))
    empty = m.op("constant", to=blocks.type, value=np.zeros(blocks.shape, np.float32))
    results = m.control("while", [start, first, blocks, empty, count], [condition, body], types)
    return m.returns(results[1], results[3])


@pytest.mark.parametrize(("steps", "shape"), [(40, (5, 8)), (7, (12, 30)), (90, (3, 4))])
@pytest.mark.parametrize("backward", [False, True])
def test_scan_over_stacked_values(golden: Device, steps: int, shape: tuple[int, int],
                                  backward: bool) -> None:
    check(scan(steps, shape, backward), golden)


def test_scan_on_both_models(device: Device) -> None:
    check(scan(30, (5, 12)), device)


def test_indices_that_are_read(golden: Device) -> None:
    graph = scan(40, (5, 8), limit=True)
    rng = np.random.default_rng(3)
    blocks, first = (rng.integers(-9, 9, shape).astype(np.float32) for shape in (
        (40, 5, 8), (5, 8)))
    check(graph, golden, [blocks, first, np.array(37, np.int32)])


def test_iterations_move_only_their_slices(golden: Device) -> None:
    """Before the loop, sums are filled with zeros, and a block is read.

    Its body reads the next one and writes one.
    """
    kernels = compiled_of(compile_graph(scan(150, (3, 4)), golden.config)).cores[0].kernels
    filled = 150 * BLOCK
    assert filled <= sum(kernel.rows for kernel in kernels) < filled + 11 * BLOCK


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each loop that is compiled, in order, the number of slices that it loads ahead."""
    counts: list[int] = []

    def spy(*arguments: Any) -> SlicesAhead | None:
        found = slices_ahead(*arguments)
        counts.append(0 if found is None else len(found.values))
        return found

    monkeypatch.setattr(flow, "slices_ahead", spy)
    return counts


def loop(m: Maker, steps: int, carried: Sequence[Value],
         step: Callable[[Maker, list[Value]], list[Value]]) -> list[Value]:
    """Appends a loop; returns its final values. ``step`` gets the counter and carried values."""
    kinds = [s32(), *(value.type for value in carried)]
    inner, condition = Maker(*kinds), Maker(*kinds)
    condition.returns(condition.compare(condition.inputs[0], number(condition.graph, steps), "LT"))
    following = inner.op("add", inner.inputs[0], number(inner.graph, 1))
    inner.returns(following, *step(inner, inner.inputs))
    start = number(m.graph, 0)
    return list(m.control("while", [start, *carried], [condition.graph, inner.graph], kinds))[1:]


def block(m: Maker, value: Value, index: Value) -> Value:
    """The slice of a value at one index of its first dimension."""
    zero, shape = number(m.graph, 0), (1, *value.shape[1:])
    return m.op("dynamic_slice", value, index, *[zero] * (len(shape) - 1), to=f32(*shape),
                slice_sizes=shape)


def two_slices(steps: int) -> Graph:
    """A loop over slices of two inputs, one of which it reads backwards."""
    m = Maker(f32(8, 5, 8), f32(9, 5, 8), f32(5, 8))

    def step(m: Maker, given: list[Value]) -> list[Value]:
        at, first, second, total = given
        back = m.op("subtract", number(m.graph, 8), at)
        one, two = block(m, first, at), block(m, second, back)
        flat, other = (m.op("reshape", value, to=total.type) for value in (one, two))
        total = m.op("add", m.op("add", total, flat), m.op("multiply", other, flat))
        again = m.op("reshape", m.op("negate", two), to=total.type)
        return [first, second, m.op("maximum", total, again)]

    return m.returns(*loop(m, steps, m.inputs, step))


@pytest.mark.parametrize(("steps", "count"), [(0, []), (1, [2]), (2, [2]), (8, [2])])
def test_slices_of_inputs_are_loaded_ahead(golden: Device, ahead: list[int], steps: int,
                                           count: list[int]) -> None:
    """Even slices of small inputs are loaded ahead."""
    check(two_slices(steps), golden)
    assert ahead == count


def test_loops_within_each_other_load_ahead(golden: Device, ahead: list[int]) -> None:
    m = Maker(f32(3, 5, 8), f32(40, 5, 8), f32(1, 5, 8))

    def outer(m: Maker, given: list[Value]) -> list[Value]:
        at, few, many, total = given

        def inner(m: Maker, given: list[Value]) -> list[Value]:
            at, many, part, total = given
            return [many, part, m.op("add", m.op("multiply", total, part), block(m, many, at))]

        _, part, total = loop(m, 40, [many, block(m, few, at), total], inner)
        return [few, many, m.op("maximum", total, part)]

    given = [np.ones((3, 5, 8), np.float32), *arrays_for(m.graph)[1:]]
    check(m.returns(*loop(m, 3, m.inputs, outer)), golden, given)
    assert ahead == [1, 1]


@pytest.mark.parametrize(("rows", "count"), [(30, 1), (90, 0)])
def test_slices_are_loaded_ahead_if_there_is_room(golden: Device, ahead: list[int], rows: int,
                                                  count: int) -> None:
    """While a slice is loaded ahead, it takes twice its number of vectors."""
    m = Maker(f32(3, rows, 12), f32(1, rows, 12))

    def step(m: Maker, given: list[Value]) -> list[Value]:
        at, blocks, total = given
        return [blocks, m.op("add", total, block(m, blocks, at))]

    check(m.returns(*loop(m, 3, m.inputs, step)), golden)
    assert ahead == [count]


@pytest.mark.parametrize("start", [-3, 0, 7, 95, 300])
def test_starts_are_clamped(golden: Device, start: int) -> None:
    m = Maker(f32(100, 60), s32(), f32(10, 60))
    zero = m.op("constant", to=s32(), value=np.array(0, np.int32))
    given, at, update = m.inputs
    part = m.op("dynamic_slice", given, at, zero, to=f32(7, 60), slice_sizes=(7, 60))
    graph = m.returns(part, m.op("dynamic_update_slice", given, update, at, zero))
    rng = np.random.default_rng(3)
    check(graph, golden, [rng.integers(-9, 9, (100, 60)).astype(np.float32),
                          np.array(start, np.int32),
                          rng.integers(-9, 9, (10, 60)).astype(np.float32)])


def test_operand_of_an_update_is_used_again(golden: Device) -> None:
    m = Maker(f32(40, 30, 4), f32(1, 30, 4), s32())
    given, update, at = m.inputs
    zero = m.op("constant", to=s32(), value=np.array(0, np.int32))
    one = m.op("dynamic_update_slice", given, update, at, zero, zero)
    two = m.op("dynamic_update_slice", one, update, zero, zero, zero)
    graph = m.returns(m.op("add", given, one), two, one)
    rng = np.random.default_rng(3)
    check(graph, golden, [rng.integers(-9, 9, (40, 30, 4)).astype(np.float32),
                          rng.integers(-9, 9, (1, 30, 4)).astype(np.float32),
                          np.array(5, np.int32)])


@pytest.mark.parametrize(("shape", "size"), [
    ((150, 9, 12), (1, 3, 12)), ((150, 9, 12), (1, 9, 5)), ((500, 7), (3, 7)), ((200, 12), (1, 5)),
    ((2, 150, 12), (2, 3, 12)), ((3, 4, 50, 9), (2, 4, 7, 9)),
])
def test_slices_in_any_dimension(golden: Device, shape: tuple[int, ...],
                                 size: tuple[int, ...]) -> None:
    """The slices include rows that do not fill vectors, and parts of the lanes."""
    m = Maker(f32(*shape), f32(*size), *(s32() for _ in shape))
    given, update, *starts = m.inputs
    graph = m.returns(m.op("dynamic_slice", given, *starts, to=f32(*size), slice_sizes=size),
                      m.op("dynamic_update_slice", given, update, *starts))
    rng = np.random.default_rng(3)
    for first in (0, 1, 100):
        check(graph.copy(), golden, [
            *(rng.integers(-9, 9, part).astype(np.float32) for part in (shape, size)),
            *(np.array(min(first + along, 2 * rows), np.int32)
              for along, rows in enumerate(shape))], runs=1)
