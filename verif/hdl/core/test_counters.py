"""Every cycle of a core is charged to one cause, the first that applies."""

import numpy as np
import pytest
from amaranth.sim import SimulatorContext

from hdl.core.counters import COUNTERS, CoreCounters
from hdl.core.interface import WAITS
from verif.hdl.simulation.simulator import fast_simulator

CAUSES = ("x_accepted", "w_accepted", *(f"waiting_{wait}" for wait in WAITS))


@pytest.mark.parametrize("seed", range(3))
def test_counters_charge_each_cycle_once_and_sum_to_all(seed: int) -> None:
    rng = np.random.default_rng([1, seed])
    dut = CoreCounters()
    assert len(COUNTERS) == len(CAUSES) + 1

    async def process(ctx: SimulatorContext) -> None:
        wanted = [0] * len(COUNTERS)
        clears = 0
        for _ in range(800):
            given = rng.random(len(CAUSES)) < rng.choice([0.05, 0.3, 0.9])
            # The sequencer waits for one thing at most.
            waits = np.flatnonzero(given[2:])
            given[2 + waits[1:]] = False
            for cause, value in zip(CAUSES, given, strict=True):
                ctx.set(getattr(dut, cause), int(value))
            clear = rng.random() < 0.01
            ctx.set(dut.clear, int(clear))
            await ctx.tick()
            if clear:
                wanted = [0] * len(COUNTERS)
                clears += 1
            else:
                wanted[int(np.argmax([*given, True]))] += 1
            found = [ctx.get(getattr(dut, counter)) for counter in COUNTERS]
            assert found == wanted
            assert ctx.get(dut.cycles) == sum(wanted)
        assert clears > 2

    simulator = fast_simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.run()


def test_counters_hold_more_than_a_week() -> None:
    for counter in ("cycles", *COUNTERS):
        assert len(getattr(CoreCounters(), counter)) == 48
