"""The quicker simulator does what Amaranth's does, cycle by cycle."""

from typing import Any

import pytest
from amaranth import Module, Mux, Signal
from amaranth.hdl import DriverConflict, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from verif.hdl.simulation.simulator import fast_simulator

WAYS = Simulator, fast_simulator


class Unit(wiring.Component):
    """A counter, a comparison of signed numbers, and a memory."""

    def __init__(self) -> None:
        super().__init__({"step": In(4), "low": In(signed(4)), "write": In(1), "count": Out(8),
                          "less": Out(1), "read": Out(8)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = Memory(shape=8, depth=4, init=[7])
        reading, writing = memory.read_port(), memory.write_port()
        self.rows = memory.data
        m.d.sync += self.count.eq(self.count + self.step)
        m.d.comb += [
            self.less.eq(self.low < Mux(self.write, 0, -2)), self.read.eq(reading.data),
            reading.addr.eq(self.count), writing.addr.eq(self.count),
            writing.data.eq(self.count), writing.en.eq(self.write)]
        return m


def trace(way: Any) -> list[Any]:
    """What two testbenches and a process see of a unit in this simulator, from two resets."""
    unit, seen = Unit(), list[Any]()
    simulator = way(unit)
    simulator.add_clock(1e-6)
    mirror = Signal(8)

    async def process(context: Any) -> None:
        async for *_, count in context.tick().sample(unit.count):
            context.set(mirror, count ^ 1)

    async def drive(context: Any) -> None:
        # Equal values, values that do not fit, negative ones, and several between two edges.
        for step, low, write in ((1, -3, 0), (1, -3, 1), (17, 5, 1), (0, -1, 0), (-1, 15, 1)):
            context.set(unit.step, 3)
            context.set(unit.step, step)
            context.set(unit.low, low)
            seen.append(("less", context.get(unit.less), context.get(unit.low)))
            context.set(unit.write, write)
            seen.append(("less", context.get(unit.less), context.get(unit.count)))
            await context.tick()
        context.set(unit.rows[1], 99)
        context.set(unit.step[0], 1)
        for _ in range(5):
            await context.tick()
            seen.append((context.get(unit.rows[1]), context.get(unit.read)))

    async def watch(context: Any) -> None:
        for _ in range(12):
            count, = await context.changed(unit.count)
            seen.append(("count", count, context.get(mirror), context.get(unit.read)))

    simulator.add_process(process)
    simulator.add_testbench(drive)
    simulator.add_testbench(watch, background=True)
    simulator.run()
    seen.append("reset")
    simulator.reset()
    simulator.run()
    return seen


def test_benches_see_the_same() -> None:
    found = trace(fast_simulator)
    assert found == trace(Simulator)
    first, last = found[:found.index("reset")], found[found.index("reset") + 1:]
    assert first == last
    assert len({item for item in first if item[0] == "count"}) > 5


@pytest.mark.parametrize("way", WAYS)
def test_what_logic_drives_cannot_be_assigned(way: Any) -> None:
    unit = Unit()

    async def drive(context: Any) -> None:
        context.set(unit.less, 1)

    simulator = way(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(drive)
    with pytest.raises(DriverConflict):
        simulator.run()
