"""Updates in loops that both cores would compute: each core computes a half."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import Graph, Sharding
from sim.compiler.passes import run_passes
from sim.compiler.program import driver
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.context import Context
from sim.compiler.program.control import flow, halves
from sim.compiler.program.control.halves import (
    AHEAD,
    NOW,
    SUMMED,
    UndividedError,
    divide_updates,
    gaps,
    half,
)
from sim.compiler.program.driver import compile_graph
from sim.compiler.program.launch import launcher
from sim.compiler.program.launch.sections import Sections, divide
from sim.compiler.program.order import hoist
from systolith import Device
from verif.sim.compiler.program.common import Maker, check, f32, s32

CHIP = Config.preset("tiny", imem_bundles=2048, vmem_bytes=64 << 10)
"""A small chip with room for an update in one kernel."""
ROWS, STEPS = 34 * CHIP.sublanes, 3
"""Rows of the weights, which take 34 vectors; number of steps."""
ARRAYS = [np.random.default_rng(5).integers(-1, 2, shape).astype(np.float32) for shape in (
    (ROWS, CHIP.lanes), (ROWS, CHIP.lanes), (2 * CHIP.lanes, CHIP.lanes), ())]
"""Arrays for `training`: small integers, so that sums are exact."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small update seem to pay: on a chip of a few lanes, latencies are a large share."""
    monkeypatch.setattr(halves, "_START", 0)
    monkeypatch.setattr(halves, "_LATENCY", 0)


def training(rows: int = ROWS, rate: str = "same", reads: str = "weights", *,
             returned: bool = True, times: int = STEPS, loops: int = 1) -> Graph:
    """Steps w, v -> w - v', v' = v + the sum of both cores' w @ x; x differs.

    ``rate`` is a factor of v': the "same" on both cores, or not. ``reads`` says what else reads v.
    If v is not ``returned``, the graph negates it after the last of ``loops`` loops.
    """
    square = f32(CHIP.lanes, CHIP.lanes)
    kinds = s32(), f32(rows, CHIP.lanes), f32(rows, CHIP.lanes), square, f32()
    at, body, condition = Maker(*kinds[1:]), Maker(*kinds), Maker(*kinds)
    number, w, v, x, factor = body.inputs
    slope = body.op("dot_general", w, x, to=w.type, lhs_contracting_dimensions=(1,),
                    rhs_contracting_dimensions=(0,), lhs_batching_dimensions=(),
                    rhs_batching_dimensions=(), precision_config=("DEFAULT", "DEFAULT"))
    total = body.op("add", slope, body.op("exchange", slope, slope))

    faster = body.op("add", v, total)
    if reads == "exchange":
        faster = body.op("add", faster, body.op("exchange", v, v))
    if rate == "other":
        faster = body.op("multiply", faster, body.op("broadcast_in_dim", factor, to=w.type,
                                                     broadcast_dimensions=()))
    outputs = [body.op("add", number, body.constant(np.array(1, np.int32), s32())),
               body.op("subtract", w, faster), faster, x, factor]
    if reads == "sum":
        outputs[3] = body.op("slice", total, to=square, start_indices=(0, 0),
                             limit_indices=square.shape, strides=(1, 1))
    if reads == "later":
        outputs[4] = body.op("reshape", body.op("slice", v, to=f32(1, 1), start_indices=(0, 0),
                                                limit_indices=(1, 1), strides=(1, 1)), to=f32())
    end = condition.constant(np.array(times, np.int32), s32())
    first, carried = at.constant(np.array(0, np.int32), s32()), list(at.inputs)
    regions = [condition.returns(condition.compare(condition.inputs[0], end, "LT")),
               body.returns(*outputs)]
    for _ in range(loops):
        _, *carried = at.control("while", (first, *carried),
                                 [region.renewed() for region in regions], kinds)
    w, v, _, factor = carried
    found = [w, v if returned else at.op("negate", v), *([factor] if reads == "later" else [])]
    graph = at.returns(*found)
    graph.sharding = Sharding((None, None, 0, None if rate == "same" else 0), (None,) * len(found))
    if rate != "same":
        graph.sharding = Sharding((None, None, 0, -1), (0, 0))
    return graph


def kinds_of(graph: Graph) -> Counter[str]:
    """Divide a graph's updates; count the values of the attribute ``halves``."""
    run_passes(graph, CHIP)
    hoist(graph, CHIP)
    divide_updates(graph, CHIP)
    return Counter(operation.attributes["halves"] for operation in graph.walk()
                   if "halves" in operation.attributes)


def operations(executable: Executable) -> list[int]:
    """The vector operations of each core's elementwise kernels."""
    return [sum(kernel.vector_operations for kernel in core.kernels if "fusion" in kernel.kind)
            for core in compiled_of(executable).cores]


@pytest.mark.parametrize(("returned", "reads"), [
    (True, "weights"), (False, "weights"), (True, "later")])
def test_each_core_updates_a_half(returned: bool, reads: str,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if an operation that comes after the update reads a carried value."""
    with Device.open(CHIP, "golden") as device:
        divided = operations(check(training(returned=returned, reads=reads), device, ARRAYS))
    monkeypatch.setattr(driver, "divide_updates", lambda graph, config: set())
    whole = operations(compile_graph(training(returned=returned, reads=reads), CHIP))
    assert max(divided) < 0.6 * min(whole)


@pytest.mark.parametrize("times", [0, 1])
def test_a_loop_may_end_at_once(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "counted", lambda operation, known: None)
    with Device.open(CHIP, "golden") as device:
        check(training(times=times), device, ARRAYS)


def test_what_other_operations_read_is_shared() -> None:
    assert kinds_of(training()) == {SUMMED: 1, AHEAD: 1}
    assert kinds_of(training(returned=False)) == {SUMMED: 1, AHEAD: 1, NOW: 1}
    assert kinds_of(training(loops=2)) == {SUMMED: 2, AHEAD: 2, NOW: 1}


def test_some_updates_are_not_divided() -> None:
    """They are small, their results differ between the cores, or the sum has other uses."""
    assert not kinds_of(training(rows=30 * CHIP.sublanes))
    assert not kinds_of(training(rate="other"))
    assert not kinds_of(training(reads="sum"))


def test_an_update_that_cannot_be_divided_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the plan finds out late, the program is planned again."""
    tried = []

    def refuse(*arguments: object) -> None:
        tried.append(arguments)
        raise UndividedError

    monkeypatch.setattr(halves, "require_divided", lambda context, body, buffers: (
        refuse() if any("halves" in each.attributes for each in body.operations) else None))
    with Device.open(CHIP, "golden") as device:
        check(training(), device, ARRAYS)
    assert len(tried) == 1


def test_exchanges_that_are_divided_at_different_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of the update needs only the first part of each exchange."""
    found = []

    def record(context: Context, *parts: Any) -> Sections:
        made = divide(context, *parts)
        operation = parts[1]
        found.append((len(context.needed.get(operation.results[0], ())), len(made.vectors),
                      made.early))
        return made

    monkeypatch.setattr(launcher, "divide", record)
    for reads, early in (("weights", 1), ("exchange", 0)):
        found.clear()
        compile_graph(training(reads=reads), CHIP)
        assert [(parts, first) for halves, parts, first in found
                if halves == 2] == [(2, early)] * 2


def test_halves_of_a_part() -> None:
    assert [half(range(3, 8), core) for core in (0, 1)] == [range(3, 5), range(5, 8)]
    with pytest.raises(UndividedError):
        half(range(1), 0)
    assert gaps([range(2, 3), range(5, 7)], range(7)) == (range(2), range(3, 5))


@pytest.mark.parametrize(("vectors", "parts"), [(130, [5, 15, 45]), (126, [63])])
def test_parts_of_a_programs_last_kernel_are_copied_to_hbm_one_by_one(
        vectors: int, parts: list[int]) -> None:
    """Each core computes and copies half of the result, whose parts grow."""
    at = Maker(f32(vectors * CHIP.sublanes, CHIP.lanes))
    graph = at.returns(at.op("negate", *at.inputs))
    graph.sharding = Sharding((None,), (None,))
    with Device.open(CHIP, "golden") as device:
        executable = check(graph, device)
    for core in compiled_of(executable).cores:
        assert [kernel.vector_operations for kernel in core.kernels] == parts
