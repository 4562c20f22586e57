"""Which kernels are joined."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from sim.compiler.graph.ir import Graph
from sim.compiler.machine import Builder, VmemBuffer, emit
from sim.compiler.machine.estimate import estimate
from sim.compiler.program import driver
from sim.compiler.program.code.resident import resident_bundles
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.context import Context
from sim.compiler.program.launch.joiner import Joiner, Part
from sim.compiler.program.launch.records import Records
from sim.compiler.program.planner import EXITS, Planner
from systolith import Device
from verif.sim.compiler.program.common import TINY, Maker, check, f32, s32


def part(at: int, vectors: int) -> Part:
    """A kernel that negates ``vectors`` vectors from address ``at`` on."""
    b, buffer = Builder(TINY), VmemBuffer("x", at, vectors)
    with b.loop(vectors) as i:
        b.store(b.vector("fsub", 0.0, b.load(buffer, i)), buffer, i)
    machine = b.finish()
    code = emit(machine, TINY)
    record = KernelRecord("negate", None, len(code), estimate(code), 0, 0, 0)
    return Part(machine, code, {}, record, record.cycles)


@pytest.mark.parametrize(("vectors", "kernels", "tries"), [(2, 2, 2), (40, 4, 1)])
def test_kernels_alike_have_one_outcome(monkeypatch: pytest.MonkeyPatch, vectors: int,
                                        kernels: int, tries: int) -> None:
    """Short kernels are joined; long loops are not, and kernels like them are not tried again."""
    counted = Mock(wraps=emit)
    monkeypatch.setattr("sim.compiler.program.launch.joiner.emit", counted)
    context = Context(TINY, {})
    records = Records(TINY, context.places.memory.events)
    joiner = Joiner(context, records)
    for at in (0, 90):
        joiner.add(part(at, vectors))
        joiner.add(part(at + 45, vectors))
        context.stream.bundle()
    assert len(records.finish(context.stream.finish(), [])) == kernels
    assert counted.call_count == tries


def _loop() -> Graph:
    """A loop whose body transposes and adds."""
    kinds = [s32(), f32(20, 12), f32(12, 20)]
    m, condition, body = Maker(*kinds[1:]), Maker(*kinds), Maker(*kinds)
    number, a, b = body.inputs
    none, one, limit = (np.array(value, np.int32) for value in (0, 1, 2))
    a, b = (body.op("transpose", value, to=to, permutation=(1, 0))
            for value, to in ((body.op("add", b, b), kinds[1]), (a, kinds[2])))
    body.returns(body.op("add", number, body.constant(one, s32())), a, b)
    condition.returns(condition.compare(
        condition.inputs[0], condition.constant(limit, s32()), "LT"))
    return m.returns(*m.control("while", [m.constant(none, s32()), *m.inputs],
                                [condition.graph, body.graph], kinds))


def test_joined_kernels_leave_a_loop_in_instruction_memory(monkeypatch: pytest.MonkeyPatch
                                                           ) -> None:
    """A loop that would outgrow it with joined kernels is planned again, with less growth."""
    plan, planners = driver._plan, list[Planner]()

    def recorded(*given: Any) -> Planner:
        planners.append(plan(*given))
        return planners[-1]

    monkeypatch.setattr(driver, "_plan", recorded)

    def plans(room: int) -> list[Planner]:
        planners.clear()
        config = replace(TINY, imem_bundles=room + resident_bundles() + EXITS)
        with Device.open(config, "golden") as device:
            check(_loop(), device, runs=1)
        return [*planners]

    [free] = plans(4096)
    length = free.context.stream.longest_loop
    assert free.launcher.joiner.growth > 0
    # Loops are shorter if instruction memory is smaller.
    while len(found := plans(length)) == 1:
        assert found[0].context.stream.longest_loop <= length
        length = found[0].context.stream.longest_loop - 1
    _, compact = found
    assert compact.context.stream.longest_loop <= length < found[0].context.stream.longest_loop
