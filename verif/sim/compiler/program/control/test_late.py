"""Carried values that a loop still loads while its first iteration runs."""

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.graph.ir import Graph
from sim.compiler.machine import VmemBuffer
from sim.compiler.program.code.reserved import SLICES_READ
from sim.compiler.program.code.stream import Stream
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.control import flow, late
from sim.compiler.program.driver import compile_graph
from sim.compiler.program.launch.joiner import Joiner, Part
from sim.compiler.program.places.memory import VectorMemory
from systolith import Device
from verif.sim.compiler.program.common import Maker, check, f32, s32

CHIP = Config.preset("tiny", imem_bundles=2048)
ROWS = 12 * CHIP.sublanes
"""Rows of the weights, which take 12 vectors."""


def training(steps: int, *, reads: str = "update") -> Graph:
    """Steps w, v -> w + v', v' = v - w @ x; ``reads`` says which operation first reads v."""
    kinds = s32(), f32(ROWS, CHIP.lanes), f32(ROWS, CHIP.lanes), f32(CHIP.lanes, CHIP.lanes)
    at, body, condition = Maker(*kinds[1:]), Maker(*kinds), Maker(*kinds)
    number, w, v, x = body.inputs
    slope = body.op("dot_general", v if reads == "product" else w, x, to=w.type,
                    lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,),
                    lhs_batching_dimensions=(), rhs_batching_dimensions=(),
                    precision_config=("DEFAULT", "DEFAULT"))
    faster = body.op("subtract", v, slope)
    body.returns(body.op("add", number, body.constant(np.array(1, np.int32), s32())),
                 body.op("add", w, faster), faster, x)
    end = condition.constant(np.array(steps, np.int32), s32())
    _, w, v, _ = at.control("while", (at.constant(np.array(0, np.int32), s32()), *at.inputs), [
        condition.returns(condition.compare(condition.inputs[0], end, "LT")), body.graph], kinds)
    return at.returns(w, v)


@pytest.fixture(name="code")
def _code(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The order of the code: kinds of kernels, buffers that are loaded late, waits for these."""
    found: list[object] = []
    add, load, wait = Joiner.add, VectorMemory.load_late, Stream.wait

    def record(joiner: Joiner, part: Part) -> None:
        found.append(part.record.kind)
        add(joiner, part)

    def record_load(memory: VectorMemory, source: Rows, buffer: VmemBuffer, semaphore: int) -> None:
        found.append(source.buffer)
        load(memory, source, buffer, semaphore)

    def record_wait(stream: Stream, semaphore: int, amount: int) -> None:
        found.extend(["wait"] * (semaphore == SLICES_READ[0]))
        wait(stream, semaphore, amount)

    monkeypatch.setattr(Joiner, "add", record)
    monkeypatch.setattr(VectorMemory, "load_late", record_load)
    monkeypatch.setattr(Stream, "wait", record_wait)
    monkeypatch.setattr(late, "_WAIT", 0)
    return found


@pytest.mark.parametrize("steps", [1, 3])
def test_iterations_wait_where_they_need_the_value(code: list[object], steps: int) -> None:
    arrays = [np.random.default_rng(7).integers(-1, 2, shape).astype(np.float32)
              for shape in ((ROWS, CHIP.lanes), (ROWS, CHIP.lanes), (CHIP.lanes, CHIP.lanes))]
    with Device.open(CHIP, "golden") as device:
        executable = check(training(steps), device, arrays)
        assert device._backend is not None
        assert not device._backend.read_semaphores(0).any()
    assert code[:3] == ["input1", "dot_general", "wait"]
    assert {*code[3:-1]} == {"fusion"}
    assert code[-1] == "wait"
    assert compiled_of(executable).may_reuse(1, 1)


def test_some_values_are_not_loaded_late(code: list[object], monkeypatch: pytest.MonkeyPatch
                                         ) -> None:
    """A product reads them, it would not pay, or the number of iterations is not known."""
    compile_graph(training(3, reads="product"), CHIP)
    monkeypatch.setattr(late, "_WAIT", ROWS // 3)
    compile_graph(training(3), CHIP)
    monkeypatch.setattr(late, "_WAIT", 0)
    monkeypatch.setattr(flow, "counted", lambda operation, known: None)
    compile_graph(training(3), CHIP)
    assert "dot_general" in code
    assert "input1" not in code
