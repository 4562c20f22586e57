"""Whole programs: several operations, large code, little vector memory, loops and conditionals."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.executable import Role
from sim.compiler.graph.ir import Graph, Location, Value
from sim.compiler.machine.ir import MReg
from sim.compiler.machine.registers.coloring import COLORS
from sim.compiler.program import driver
from sim.compiler.program.code.reuse import Read, Times, times
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.code.transfers import Rows, Vectors, transfer
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.driver import compile_graph
from sim.errors import UnsupportedError
from systolith import Device
from verif.sim.compiler.program.common import TINY, Maker, arrays_for, check, f32, pred, s32


def chain(length: int, shape: tuple[int, ...] = (5, 6)) -> Graph:
    """A graph of additions and subtractions, each of the latest value and an older one."""
    m = Maker(f32(*shape), f32(*shape))
    values = list(m.inputs)
    for number in range(length):
        kind = "add" if number % 2 else "subtract"
        values.append(m.op(kind, values[-1], values[number // 2]))
    return m.returns(values[-1], values[len(values) // 2])


@pytest.mark.parametrize("length", [1, 3])
def test_operations_follow_each_other(device: Device, length: int) -> None:
    check(chain(length), device)


@pytest.mark.parametrize(("again", "reshapes"), [(False, 0), (True, 2)])
def test_reshapes_that_move_nothing_have_no_kernel(golden: Device, again: bool,
                                                   reshapes: int) -> None:
    """They have one if the operand is used again, here by a reshape that moves rows."""
    m = Maker(f32(3, 1, 5, 6), f32(3, 5, 6), f32(15, 6))
    sums = m.op("add", m.inputs[0], m.inputs[0])
    results = [m.op("multiply", m.op("reshape", sums, to=f32(3, 5, 6)), m.inputs[1])]
    if again:
        results.append(m.op("multiply", m.op("reshape", sums, to=f32(15, 6)), m.inputs[2]))
    [core] = compiled_of(check(m.returns(*results), golden)).cores
    assert [kernel.kind for kernel in core.kernels].count("reshape") == reshapes


def test_program_larger_than_instruction_memory(device: Device) -> None:
    executable = check(chain(200), device)
    [code] = [spec for spec in executable.buffers if spec.role is Role.CONSTANT]
    assert code.layout.rows > TINY.imem_bundles * 16 // TINY.lanes


@pytest.mark.parametrize("shape", [(20, 12), (31, 17)])
def test_values_that_do_not_fit_vector_memory_are_spilled(device: Device,
                                                          shape: tuple[int, int]) -> None:
    executable = check(chain(60, shape), device)
    assert any(spec.role is Role.SCRATCH for spec in executable.buffers)


def test_vectors_that_do_not_fit_registers_are_spilled(device: Device) -> None:
    """One reduction of many arrays needs more vector registers than there are."""
    count = 18
    m, region = Maker(*[f32(5, 6)] * count), Graph([Value(f32()) for _ in range(2 * count)])
    region.outputs = [region.add("add", (region.inputs[n], region.inputs[count + n]), f32()).result
                      for n in range(count)]
    initial = [m.constant(np.array(0, np.float32), f32()) for _ in range(count)]
    sums = m.graph.add("reduce", (*m.inputs, *initial), [f32(5)] * count, {"dimensions": (1,)},
                       (region,)).results
    check(m.returns(*sums), device)


def test_kernel_with_too_many_masks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Maker(s32(5, 6))
    [x] = m.inputs
    graph = m.returns(m.op("select", m.compare(x, x, "LT"), x, m.op("negate", x), to=x.type))
    for operation in graph.operations:
        operation.location = Location("user.py", 7)
    monkeypatch.setitem(COLORS, MReg, range(0))
    with pytest.raises(UnsupportedError, match=r"user\.py:7.*: fusion whose kernel needs too many "
                       r"registers \(mask registers must be at most 0, not 1\)"):
        compile_graph(graph, TINY)


@pytest.mark.parametrize("failures", [1, len(driver._SHARES)])
def test_failed_plans_are_freed_at_once(failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No collection of garbage is needed, whether a later attempt succeeds or none does."""
    made = list[weakref.ref[Any]]()
    original = driver._planned

    def planned(*arguments: Any, **options: Any) -> Any:
        blocks = np.zeros(4)
        made.append(weakref.ref(blocks))
        if len(made) <= failures:
            raise MemoryError("too many vectors")
        return original(*arguments, **options)

    monkeypatch.setattr(driver, "_planned", planned)
    gc.disable()
    try:
        if failures < len(driver._SHARES):
            compile_graph(chain(3), TINY)
        else:
            with pytest.raises(MemoryError, match="too many vectors") as raised:
                compile_graph(chain(3), TINY)
            del raised
        assert len(made) >= failures
        assert all(blocks() is None for blocks in made)
    finally:
        gc.enable()


def test_operations_that_do_not_fit_are_refused_together() -> None:
    """A sort and a pad of lines that are too long for vector memory are in one message."""
    m = Maker(f32(1501), f32(3))
    line, small = m.inputs
    less = Graph([Value(f32()), Value(f32())])
    less.outputs = [less.add("compare", less.inputs, pred(), {
        "comparison_direction": "LT", "compare_type": "FLOAT"}).result]
    ordered = m.graph.add("sort", (line,), line.type, {"dimension": 0, "is_stable": True},
                          (less,)).result
    padded = m.op("pad", ordered, m.constant(np.array(0, np.float32), f32()), to=f32(3001),
                  edge_padding_low=(0,), edge_padding_high=(0,), interior_padding=(1,))
    graph = m.returns(m.op("negate", small), padded)
    with pytest.raises(MemoryError) as caught:
        compile_graph(graph, TINY)
    first, *lines, advice = str(caught.value).splitlines()
    assert first == "vector memory has 256 vectors, which is too small for:"
    assert [line.split(" needs ")[0] for line in lines] == ["  sort", "  pad"]
    assert "smaller pieces" in advice


def test_constants(device: Device) -> None:
    m = Maker(f32(7, 9))
    rng = np.random.default_rng(4)
    table = rng.integers(-5, 5, (7, 9)).astype(np.float32)
    splat = np.full((7, 9), 3, np.float32)
    total = m.op("add", m.inputs[0], m.constant(table, f32(7, 9)))
    total = m.op("multiply", total, m.constant(splat, f32(7, 9)))
    check(m.returns(total, m.constant(splat, f32(7, 9)), m.constant(table, f32(7, 9))), device)


def test_outputs_of_all_kinds(device: Device) -> None:
    m = Maker(f32(3), f32(3), s32(2, 5))
    total = m.op("add", m.inputs[0], m.inputs[1])
    check(m.returns(m.inputs[2], total, m.inputs[0], total), device)


def test_no_output_and_no_input(device: Device) -> None:
    assert check(Maker(f32(3)).returns(), device).outputs == ()
    m = Maker()
    check(m.returns(m.constant(np.array(5, np.float32), f32())), device)


def test_values_without_elements(device: Device) -> None:
    m = Maker(f32(0, 3), f32(2))
    empty = m.op("add", m.inputs[0], m.inputs[0])
    check(m.returns(empty, m.op("add", m.inputs[1], m.inputs[1]), m.inputs[0]), device)


def counting(body_of: int = 1, size: tuple[int, ...] = (4, 5)) -> Graph:
    """A loop: (i, x, c) -> (i + 1, x + c, c) while i < n, with a body of ``body_of`` additions."""
    m = Maker(s32(), f32(*size), f32(*size), s32())
    kinds = [value.type for value in m.inputs]
    condition = Maker(*kinds)
    condition.returns(condition.compare(condition.inputs[0], condition.inputs[3], "LT"))
    body = Maker(*kinds)
    number, x, c, limit = body.inputs
    for _ in range(body_of):
        x = body.op("add", x, c)
    one = body.constant(np.array(1, np.int32), s32())
    body.returns(body.op("add", number, one), x, c, limit)
    results = m.control("while", m.inputs, [condition.graph, body.graph], kinds)
    return m.returns(m.op("add", results[1], m.inputs[1]), results[0])


@pytest.mark.parametrize("count", [0, 1, 7])
@pytest.mark.parametrize("body_of", [1, 40])
def test_loop(device: Device, count: int, body_of: int) -> None:
    graph = counting(body_of)
    _, x, c, _ = arrays_for(graph)
    check(graph, device, [np.array(0, np.int32), x, c, np.array(count, np.int32)])


def test_loop_that_rotates_what_it_carries(device: Device) -> None:
    m = Maker(s32(), f32(3), f32(3), f32(3))
    kinds = [value.type for value in m.inputs]
    condition = Maker(*kinds)
    condition.returns(condition.compare(
        condition.inputs[0], condition.constant(np.array(4, np.int32), s32()), "LT"))
    body = Maker(*kinds)
    number, a, b, c = body.inputs
    one = body.constant(np.array(1, np.int32), s32())
    body.returns(body.op("add", number, one), b, c, body.op("add", a, b))
    graph = m.returns(*m.control("while", m.inputs, [condition.graph, body.graph], kinds))
    given = arrays_for(graph)
    check(graph, device, [np.array(0, np.int32), *given[1:]])


def conditional(branches: int) -> Graph:
    m = Maker(s32(), f32(3, 7), f32(3, 7))
    kept = m.op("add", m.inputs[1], m.inputs[1])
    regions = []
    for number in range(branches):
        region = Maker(f32(3, 7), f32(3, 7))
        a, b = region.inputs
        for _ in range(number):
            a = region.op("add", a, b)
        regions.append(region.returns(a, region.inputs[number % 2]))
    first, second = m.control("case", m.inputs, regions, [f32(3, 7), f32(3, 7)])
    return m.returns(m.op("subtract", first, kept), second)


@pytest.mark.parametrize(("branches", "index"), [(1, 0), (2, 0), (2, 1), (4, 2), (4, -1), (4, 9)])
def test_conditional(device: Device, branches: int, index: int) -> None:
    graph = conditional(branches)
    check(graph, device, [np.array(index, np.int32), *arrays_for(graph)[1:]])


def test_conditional_in_a_loop_in_a_loop(device: Device) -> None:
    carried = [s32(), f32(3)]

    def below(limit: int) -> Graph:
        made = Maker(*carried)
        return made.returns(made.compare(
            made.inputs[0], made.constant(np.array(limit, np.int32), s32()), "LT"))

    inner = Maker(*carried)
    number, x = inner.inputs
    regions = []
    for kind in ("add", "subtract", "multiply"):
        region = Maker(f32(3))
        two = region.constant(np.array([2, 3, -1], np.float32), f32(3))
        regions.append(region.returns(region.op(kind, region.inputs[0], two)))
    [x] = inner.control("case", [number, x], regions, [f32(3)])
    inner.returns(inner.op("add", number, inner.constant(np.array(1, np.int32), s32())), x)
    outer = Maker(*carried)
    number, x = outer.inputs
    zero = outer.constant(np.array(0, np.int32), s32())
    _, x = outer.control("while", [zero, x], [below(4), inner.graph], carried)
    outer.returns(outer.op("add", number, outer.constant(np.array(1, np.int32), s32())), x)
    m = Maker(f32(3))
    results = m.control("while", [m.constant(np.array(0, np.int32), s32()), m.inputs[0]],
                        [below(3), outer.graph], carried)
    check(m.returns(*results), device)


def test_program_runs_wherever_its_buffers_are(golden: Device) -> None:
    graph = chain(20)
    given = arrays_for(graph)
    executable = compile_graph(graph, TINY)
    first = golden.execute(executable, *given)
    kept = [golden.allocate(size) for size in (4096, 160)]
    second = golden.execute(executable, *given)
    golden.free(kept[0])
    third = golden.execute(executable, *given)
    for results in (second, third):
        for one, other in zip(first, results, strict=True):
            assert np.array_equal(one, other)


def test_golden_and_rtl_agree() -> None:
    rng = np.random.default_rng(6)
    graph = chain(9)
    given = [rng.standard_normal((5, 6)).astype(np.float32) for _ in range(2)]
    executable = compile_graph(graph, TINY)
    results = []
    for backend in ("golden", "rtl"):
        with Device.open("tiny", backend) as opened:
            results.append(opened.execute(executable, *given))
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one.view(np.uint32), other.view(np.uint32))


def test_no_memory_for_a_segment() -> None:
    config = Config.preset("tiny", imem_bundles=24)
    with pytest.raises(MemoryError, match="split into segments"):
        compile_graph(chain(3), config)


@pytest.mark.parametrize("size", [8, 40])
def test_output_may_lie_where_an_input_was_read_before(size: int) -> None:
    """An output may take the place of an input only if all of the input is read before.

    Large values are computed in blocks: the first block of a result is written before the last
    block of an operand is read.
    """
    at = Maker(*[f32(size, size)] * 3, f32(size + 1, size))
    w, v, g, other = at.inputs
    graph = at.returns(at.op("subtract", w, v), at.op("add", v, g), at.op("negate", other))
    compiled = compiled_of(compile_graph(graph, TINY, standard_inputs=True))
    assert [[compiled.may_reuse(number, output) for output in range(3)] for number in range(4)] == (
        [[True, True, False], [True, True, False], [False, True, False], [False, False, True]]
        if size == 8 else [[False] * 3] * 4)


def test_input_that_a_loop_reads_is_in_use_until_its_end() -> None:
    words, at = np.zeros((40, 1), np.uint32), np.array
    load, store = (transfer(TINY, *sides, TINY.sublanes, 8) for sides in (
        (Rows("input0", 0), Vectors(0)), (Vectors(0), Rows("output0", 0))))
    linear = Linear(words, at([[30, 0, 10]]), at([[12, 0, 0], [35, 0, 1]]), (load, store))
    assert times(linear, [Read(12, 13, 14)], 2, 1) == Times((31, 0), (35,))
    assert times(linear, [Read(12, 13, 34)], 2, 1) == Times((34, 0), (35,))
    assert times(linear, [Read(11, 12, 14)], 2, 1) == Times((41, 0), (35,))
    linear = replace(linear, transfers=at([[12, 0, 0], [20, 0, 1]]))
    assert times(linear, [Read(12, 13, 14)], 2, 1) == Times((31, 0), (10,))
    linear = replace(linear, rows=((3, 0, Rows("input1", 2)), (4, 0, Rows("output0", 2))))
    assert times(linear, [Read(12, 13, 14)], 2, 1) == Times((31, 41), (0,))


def test_predicates_are_words(golden: Device) -> None:
    m = Maker(s32(9), s32(9))
    [result] = golden.execute(
        compile_graph(m.returns(m.compare(m.inputs[0], m.inputs[1], "LT")), TINY),
        np.arange(9, dtype=np.int32), np.full(9, 4, np.int32))
    assert result.dtype == np.bool_
    assert result.tolist() == [number < 4 for number in range(9)]
    assert pred(9).shape == (9,)
