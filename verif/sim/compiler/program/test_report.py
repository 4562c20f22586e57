"""Reports of the cycles that kernels take."""

import numpy as np
import pytest

import systolith
from hdl.core.counters import COUNTERS
from sim.compiler.executable import Executable
from sim.compiler.graph.ir import Graph, Location
from sim.compiler.program.compiled import Compiled, compiled_of
from sim.compiler.program.driver import compile_graph
from sim.compiler.program.report import Report
from systolith import Device
from verif.sim.compiler.program.common import TINY, Maker, arrays_for, f32, s32


def product(rows: int = 16, depth: int = 8, columns: int = 12) -> Graph:
    m = Maker(f32(rows, depth), f32(depth, columns), f32(rows, columns))
    result = m.op("dot_general", m.inputs[0], m.inputs[1], to=f32(rows, columns),
                  lhs_batching_dimensions=(), rhs_batching_dimensions=(),
                  lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
                  precision_config=("DEFAULT", "DEFAULT"))
    m.graph.operations[-1].location = Location("model.py", 12, "jit(f)/dot_general")
    return m.returns(m.op("add", result, m.inputs[2]))


def loop(count: int) -> Graph:
    m = Maker(s32(), f32(3))
    kinds = [value.type for value in m.inputs]
    condition = Maker(*kinds)
    condition.returns(condition.compare(
        condition.inputs[0], condition.constant(np.array(count, np.int32), s32()), "LT"))
    body = Maker(*kinds)
    number, x = body.inputs
    body.returns(body.op("add", number, body.constant(np.array(1, np.int32), s32())),
                 body.op("add", x, x))
    return m.returns(*m.control("while", m.inputs, [condition.graph, body.graph], kinds))


def test_prediction() -> None:
    compiled = compiled_of(compile_graph(product(), TINY))
    report = Report.predicted(compiled)
    cost = report.kernels[0]
    assert cost.kernel.kind == "dot_general"
    assert cost.kernel.products == 16 * 8 * 12
    # The array takes at least a cycle for each row of each weight tile.
    assert cost.kernel.cycles >= 16 * 2 * 3
    assert report.cycles is None
    text = str(report)
    assert "model.py:12" in text
    assert f"{cost.kernel.cycles:,}" in text
    assert f"{cost.kernel.products / (cost.kernel.cycles * 16):.1%}" in text


def check_measurement(report: Report, executable: Executable, outputs: tuple[np.ndarray, ...],
                      expected: tuple[np.ndarray, ...]) -> Compiled:
    for one, other in zip(outputs, expected, strict=True):
        assert np.array_equal(one, other)
    compiled = compiled_of(executable)
    assert [cost.kernel for cost in report.kernels] == list(compiled.kernels)
    return compiled


def test_measurement_on_rtl() -> None:
    graph = product()
    executable, given = compile_graph(graph, TINY), arrays_for(graph)
    with Device.open("tiny") as device:
        expected = device.execute(executable, *given)
        cycles = device.last_run[0]["cycles"]
        outputs, report = device.profile(executable, *given)
        assert device.execute(executable, *given)[0].tolist() == expected[0].tolist()
    check_measurement(report, executable, outputs, expected)
    assert all(cost.runs == 1 for cost in report.kernels)
    for cost in report.kernels:
        assert sum(cost.counts[name] for name in COUNTERS) == cost.cycles
        assert cost.cycles is not None
        assert cost.kernel.cycles <= cost.cycles
    assert report.cycles is not None
    assert 0 < report.cycles < cycles
    [first, *_] = report.kernels
    assert first.counts["mxu_active_cycles"] >= 16 * 2 * 3
    assert f"{first.cycles:,}" in str(report)


def test_waits_for_transfers_are_predicted() -> None:
    """The second kernel's operand arrives long after the first kernel has ended."""
    m = Maker(f32(4, 4), f32(32, 32))
    small, large = m.inputs
    graph = m.returns(m.op("negate", small), m.op("negate", large))
    executable, given = compile_graph(graph, TINY), arrays_for(graph)
    with Device.open("tiny") as device:
        device.execute(executable, *given)
        cycles = device.last_run[0]["cycles"]
        _, report = device.profile(executable, *given)
    first, second = report.kernels
    assert first.kernel.waits > 10 * first.kernel.cycles
    # The rest are the first transfer and the host's start of the program.
    assert 0.65 * cycles < first.kernel.predicted + second.kernel.predicted < cycles
    # The program ends when the second kernel's result is in HBM.
    assert second.kernel.waits > second.kernel.cycles
    assert second.kernel.predicted == pytest.approx(second.cycles, rel=0.15)
    assert f"{second.kernel.predicted:,}" in str(report)


@pytest.mark.parametrize("count", [0, 5])
def test_kernels_of_loops_run_often(count: int) -> None:
    graph = loop(count)
    executable = compile_graph(graph, TINY)
    given = [np.array(0, np.int32), np.arange(3, dtype=np.float32)]
    with Device.open("tiny", "golden") as device:
        expected = device.execute(executable, *given)
        with systolith.profile() as profile:
            outputs, report = device.profile(executable, *given)
        # The counters of a run in parts are not those of the program.
        assert profile.programs == ()
    check_measurement(report, executable, outputs, expected)
    assert {cost.runs for cost in report.kernels} == {count, count + 1}
    assert report.cycles is None
    assert all(cost.cycles is None for cost in report.kernels)
    assert "none measured (the golden backend counts no cycles)" in str(report)


def test_other_executables_are_refused() -> None:
    executable = Executable(TINY, "empty", (), lambda addresses: {}, 0)
    with Device.open("tiny", "golden") as device, pytest.raises(
            TypeError, match="executable must come from compile_graph"):
        device.profile(executable)
