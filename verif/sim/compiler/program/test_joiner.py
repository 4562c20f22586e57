"""Which kernels are joined."""

from unittest.mock import Mock

import pytest

from sim.compiler.machine import Builder, VmemBuffer, emit
from sim.compiler.machine.estimate import estimate
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.context import Context
from sim.compiler.program.launch.joiner import Joiner, Part
from sim.compiler.program.launch.records import Records
from verif.sim.compiler.program.common import TINY


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
