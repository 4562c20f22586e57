"""Loops: what they carry in vector memory and in HBM."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from golden.core import GoldenCore
from hdl.config import Config
from sim.compiler.graph.counted import Affine, counted
from sim.compiler.graph.ir import Graph, TensorType, Value
from sim.compiler.machine import VmemBuffer
from sim.compiler.machine.emit import Code
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.control import flow, loops
from sim.compiler.program.control.loops import move_vectors, values_to_keep
from sim.compiler.program.driver import compile_graph
from sim.compiler.program.places.vectors import FreeVectors, take
from sim.compiler.program.tilings import assign_tilings
from systolith import Device
from verif.sim.compiler.machine.harness import run
from verif.sim.compiler.program.common import TINY, Maker, check, f32, s32

SIZES = [(3,), (20, 12), (31, 17)]
"""Shapes of carried values: of the 256 vectors of vector memory, they take 1, 30 and 80."""


@pytest.fixture(params=["counted", "no room", "not counted"])
def golden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The golden chip.

    Loops count in a scalar register; keep more than their operations leave room for; or evaluate
    their conditions.
    """
    if request.param == "no room":
        monkeypatch.setattr(loops, "ROOM", 0)
    elif request.param == "not counted":
        monkeypatch.setattr(flow, "counted", lambda operation, known: None)
    with Device.open("tiny", "golden") as opened:
        yield opened


def below(limit: int, kinds: Sequence[TensorType]) -> Graph:
    """A loop's condition: the first carried value is below ``limit``."""
    made = Maker(*kinds)
    return made.returns(made.compare(
        made.inputs[0], made.constant(np.array(limit, np.int32), s32()), "LT"))


def plus_one(made: Maker) -> Value:
    """The first carried value plus 1."""
    return made.op("add", made.inputs[0], made.constant(np.array(1, np.int32), s32()))


def zero(made: Maker) -> Value:
    return made.constant(np.array(0, np.int32), s32())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("limit", [0, 1, 5])
def test_values_change_places(device: Device, size: tuple[int, ...], limit: int) -> None:
    kinds = [s32(), f32(*size), f32(*size)]
    m, body = Maker(*kinds[1:]), Maker(*kinds)
    body.returns(plus_one(body), body.inputs[2], body.inputs[1])
    results = m.control("while", [zero(m), *m.inputs], [below(limit, kinds), body.graph], kinds)
    check(m.returns(*results), device)


@pytest.mark.parametrize("size", SIZES)
def test_operand_and_result_are_used_after_the_loop(golden: Device, size: tuple[int, ...]) -> None:
    kinds = [s32(), f32(*size), f32(*size), f32(*size)]
    m, body = Maker(f32(*size)), Maker(*kinds)
    _, a, b, same = body.inputs
    body.returns(plus_one(body), body.op("add", a, same), a, same)
    doubled = m.op("add", m.inputs[0], m.inputs[0])
    _, a, b, same = m.control("while", [zero(m), doubled, doubled, m.inputs[0]],
                              [below(3, kinds), body.graph], kinds)
    check(m.returns(m.op("subtract", m.op("add", a, b), doubled), same, a), golden)


@pytest.mark.parametrize("size", SIZES)
def test_next_values_that_are_not_computed(golden: Device, size: tuple[int, ...]) -> None:
    """They are constants, one value for two carried ones, and a value that stays unchanged."""
    kinds = [s32(), *[f32(*size)] * 4]
    m, body = Maker(f32(*size)), Maker(*kinds)
    table = np.arange(np.prod(size), dtype=np.float32).reshape(size)
    total = body.op("add", body.inputs[1], body.inputs[4])
    body.returns(plus_one(body), total, total, body.constant(np.full(size, 2, np.float32),
                                                            f32(*size)),
                 body.constant(table, f32(*size)))
    results = m.control("while", [zero(m), *[m.inputs[0]] * 4],
                        [below(2, kinds), body.graph], kinds)
    check(m.returns(*results), golden)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("limits", [(3, 2), (2, 0), (0, 2)])
def test_loop_in_a_loop(golden: Device, size: tuple[int, ...], limits: tuple[int, int]) -> None:
    """The inner loop reads a value that the outer loop carries and uses again afterwards."""
    kinds = [s32(), f32(*size), f32(*size)]
    inner, outer, m = Maker(*kinds), Maker(*kinds), Maker(*kinds[1:])
    _, x, c = inner.inputs
    inner.returns(plus_one(inner), inner.op("add", x, c), c)
    _, x, c = outer.inputs
    _, y, _ = outer.control("while", [zero(outer), x, c], [below(limits[1], kinds), inner.graph],
                            kinds)
    outer.returns(plus_one(outer), outer.op("subtract", y, c), x)
    results = m.control("while", [zero(m), *m.inputs], [below(limits[0], kinds), outer.graph],
                        kinds)
    check(m.returns(*results, m.inputs[1]), golden)


def conditional_in_a_loop(size: tuple[int, ...]) -> Graph:
    kinds = [s32(), f32(*size), f32(*size)]
    m, body = Maker(*kinds[1:]), Maker(*kinds)
    regions = []
    for kind in ("add", "subtract"):
        region = Maker(*kinds[1:])
        regions.append(region.returns(region.op(kind, *region.inputs), region.inputs[0]))
    number, x, y = body.inputs
    a, b = body.control("case", [number, x, y], regions, kinds[1:])
    body.returns(plus_one(body), body.op("add", a, y), b)
    results = m.control("while", [zero(m), *m.inputs], [below(4, kinds), body.graph], kinds)
    return m.returns(*results)


@pytest.mark.parametrize("size", [(3,), (31, 17)])
def test_conditional_in_a_loop(golden: Device, size: tuple[int, ...]) -> None:
    check(conditional_in_a_loop(size), golden)


def test_carried_values_come_back_in_a_fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of their loads does not depend on where Python keeps the values."""
    monkeypatch.setattr(loops, "ROOM", 0)
    graphs = [conditional_in_a_loop((31, 17)) for _ in range(16)]
    codes = {compiled_of(compile_graph(graph.copy(), TINY)).overlays.rows.tobytes()
             for graph in graphs}
    assert len(codes) == 1


@pytest.mark.parametrize("rotated", [5, 20])
def test_many_values_rotate(golden: Device, rotated: int) -> None:
    kinds = [s32(), *[f32(3)] * rotated]
    m, body = Maker(*kinds[1:]), Maker(*kinds)
    body.returns(plus_one(body), *body.inputs[2:], body.inputs[1])
    results = m.control("while", [zero(m), *m.inputs], [below(3, kinds), body.graph], kinds)
    check(m.returns(*results), golden)


def test_operation_that_needs_the_room_of_carried_values(golden: Device) -> None:
    """It needs more scratch vectors than the loop leaves free, so carried values make room."""
    kinds = [s32(), *[f32(20, 12)] * 4]
    m, body = Maker(*kinds[1:]), Maker(*kinds)
    _, a, b, c, d = body.inputs
    product = body.op("dot_general", a, b, to=f32(20, 20), lhs_batching_dimensions=(),
                      rhs_batching_dimensions=(), lhs_contracting_dimensions=(1,),
                      rhs_contracting_dimensions=(1,), precision_config=("HIGHEST", "HIGHEST"))
    part = body.op("slice", product, to=f32(20, 12), start_indices=(0, 0),
                   limit_indices=(20, 12), strides=(1, 1))
    body.returns(plus_one(body), b, c, d, part)
    results = m.control("while", [zero(m), *m.inputs], [below(2, kinds), body.graph], kinds)
    check(m.returns(*results), golden, [np.eye(20, 12, k=shift, dtype=np.float32)
                                        for shift in range(4)])


@pytest.mark.parametrize("first", [0, -2, 1])
def test_indices_that_follow_from_a_counter(golden: Device, first: int) -> None:
    """The loop takes rows from the front and from the back, where indices are negative."""
    kinds = [s32(), f32(6, 5), f32(6, 5)]
    m, body = Maker(*kinds[1:]), Maker(*kinds)
    number, x, total = body.inputs

    def constant(value: int) -> Value:
        return body.constant(np.array(value, np.int32), s32())

    back = body.op("subtract", constant(3), number)
    wrapped = body.op("select", body.compare(number, constant(0), "LT"),
                      body.op("add", number, constant(6)), number, to=s32())
    one = body.op("dynamic_slice", x, back, constant(0), to=f32(1, 5), slice_sizes=(1, 5))
    other = body.op("dynamic_slice", x, wrapped, constant(0), to=f32(1, 5), slice_sizes=(1, 5))
    row = body.op("add", one, other)
    body.returns(plus_one(body), x,
                 body.op("dynamic_update_slice", total, row, number, constant(0)))
    start = m.constant(np.array(first, np.int32), s32())
    results = m.control("while", [start, *m.inputs], [below(4, kinds), body.graph], kinds)
    check(m.returns(*results), golden)


@pytest.mark.parametrize(("first", "limit", "step", "direction", "is_counted"), [
    (0, 3, 1, "LT", True), (-2, 2, 1, "LT", True), (3, 3, 1, "LT", False),
    (0, 4, 2, "LT", False), (0, 3, 1, "LE", False)])
def test_loops_that_count_are_recognised(first: int, limit: int, step: int, direction: str,
                                         is_counted: bool) -> None:
    condition, body, m = Maker(s32()), Maker(s32()), Maker(s32())
    condition.returns(condition.compare(
        condition.inputs[0], condition.constant(np.array(limit, np.int32), s32()), direction))
    body.returns(body.op("add", body.inputs[0],
                         body.constant(np.array(step, np.int32), s32())))
    m.control("while", m.inputs, [condition.graph, body.graph], [s32()])
    [operation] = m.graph.operations
    found = counted(operation, lambda value: first & 0xFFFF_FFFF)
    assert (found is not None) == is_counted
    if found is not None:
        assert (found.number, found.first, found.limit) == (0, first, limit)
        assert found.values[body.inputs[0]] == Affine(1, 0)
    assert counted(operation, lambda value: None) is None


@pytest.mark.parametrize("size", [(6, 5), (31, 17)])
def test_updates_in_place(device: Device, size: tuple[int, int]) -> None:
    """Carried values are updated once or twice, before or after their last other use."""
    width = size[1]
    kinds = [s32(), *[f32(*size)] * 3]
    m, body = Maker(f32(*size)), Maker(*kinds)
    number, once, twice, read = body.inputs
    origin = body.constant(np.array(0, np.int32), s32())

    def update(value: Value, part: Value, row: Value) -> Value:
        return body.op("dynamic_update_slice", value, part, row, origin)

    part = body.op("dynamic_slice", twice, number, origin, to=f32(1, width),
                   slice_sizes=(1, width))
    part = body.op("add", part, part)
    changed = update(read, part, number)
    body.returns(plus_one(body), update(once, part, number),
                 update(update(twice, part, plus_one(body)), part, origin),
                 body.op("subtract", changed, read))
    results = m.control("while", [zero(m), *[m.inputs[0]] * 3],
                        [below(3, kinds), body.graph], kinds)
    check(m.returns(*results), device)


def test_next_values_take_the_vectors_of_those_before(golden: Device,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves at the end of an iteration, even if one kernel computes several values."""
    moves: list[tuple[VmemBuffer, VmemBuffer]] = []

    def move(given: Mapping[VmemBuffer, VmemBuffer], config: Config) -> Code | None:
        moves.extend((to, source) for to, source in given.items() if to != source)
        return move_vectors(given, config)

    monkeypatch.setattr(flow, "move_vectors", move)
    kinds = [s32(), f32(6, 5), f32(6, 5)]
    m, body = Maker(*kinds[1:]), Maker(*kinds)
    _, w, v = body.inputs
    speed = body.op("add", body.op("negate", v), w)
    body.returns(plus_one(body), body.op("subtract", w, speed), speed)
    results = m.control("while", [zero(m), *m.inputs], [below(3, kinds), body.graph], kinds)
    check(m.returns(*results[1:]), golden)
    assert moves == []


def test_update_in_a_condition(golden: Device) -> None:
    """The condition must not update its value in place, because the body still needs it."""
    kinds = [s32(), f32(6, 5)]
    m, condition, body = Maker(kinds[1]), Maker(*kinds), Maker(*kinds)
    number, x = condition.inputs
    origin = condition.constant(np.array(0, np.int32), s32())
    part = condition.constant(np.full((1, 5), 100, np.float32), f32(1, 5))
    changed = condition.op("dynamic_update_slice", x, part, origin, origin)
    first = condition.op("slice", changed, to=f32(1, 1), start_indices=(0, 0),
                         limit_indices=(1, 1), strides=(1, 1))
    size = condition.op("convert", condition.op("reshape", first, to=f32()), to=s32())
    condition.returns(condition.compare(
        condition.op("multiply", number, size),
        condition.constant(np.array(300, np.int32), s32()), "LT"))
    body.returns(plus_one(body), body.op("add", body.inputs[1], body.inputs[1]))
    results = m.control("while", [zero(m), m.inputs[0]], [condition.graph, body.graph], kinds)
    check(m.returns(*results), golden)


def test_moves() -> None:
    """Buffers are copied to each other as if all copies happened at once."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        buffers = [VmemBuffer(f"b{number}", 3 * number, 3) for number in range(8)]
        sources = rng.integers(8, size=8)
        code = move_vectors({to: buffers[source] for to, source
                             in zip(buffers, sources, strict=True)}, TINY)
        core = GoldenCore(TINY)
        core.vmem[:24] = before = rng.integers(1 << 32, size=core.vmem[:24].shape, dtype=np.uint32)
        if code is not None:
            run(code, core)
        assert np.array_equal(core.vmem[:24].reshape(8, 3, -1), before.reshape(8, 3, -1)[sources])


def test_vectors_that_are_reserved() -> None:
    free = FreeVectors(10)
    free.reserve(3, 4)
    assert free.free == 6
    assert take(free, 3, {}, lambda value: 0) in (0, 7)
    free.give(3, 4)
    assert free.free == 7
    assert take(free, 8, {}, lambda value: 0) is None


def test_value_that_takes_most_of_vector_memory_is_kept() -> None:
    """A table from which each iteration takes a slice is not read from HBM in each iteration."""
    kinds = [s32(), f32(70, 12)]
    m, body = Maker(*kinds[1:]), Maker(*kinds)
    number, table = body.inputs
    body.op("dynamic_slice", table, number, zero(body), to=f32(1, 12), slice_sizes=(1, 12))
    body.returns(plus_one(body), table)
    m.control("while", [zero(m), *m.inputs], [below(3, kinds), body.graph], kinds)
    [loop] = [operation for operation in m.graph.operations if operation.kind == "while"]
    tilings = assign_tilings(m.graph, TINY)
    assert tilings[table].vectors == 105
    assert values_to_keep(loop, tilings, 130) == {0, 1}
    assert values_to_keep(loop, tilings, 108) == set()
