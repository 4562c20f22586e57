"""Benches that play the scenarios of `verif.models.xlu` on the cross-lane unit's pins."""

from dataclasses import fields

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject

from hdl.config import Config
from verif.benches.clocking import ClockDomain, config_argument, int_reader, pin
from verif.benches.ports import Ports
from verif.benches.rows import pack_row, unpack_row
from verif.models.xlu import (
    MOVES,
    TREE,
    Op,
    Outputs,
    Reset,
    Scenario,
    XluChecker,
    dependent_amounts,
    drain,
    every_distance_to_reset,
    fill_tile,
    random_traffic,
    rows_then_columns,
    two_latencies,
)
from verif.models.xlu import (
    full_rate as run_at_full_rate,
)

bench_test = cocotb.test(timeout_time=2000, timeout_unit="us")


class XluBench:
    """Drives the unit's pins to play scenarios on it; an `XluChecker` checks its outputs.

    Attributes
    ----------
    checker : XluChecker
    rng : np.random.Generator
        Seeded with the test's seed.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.checker = XluChecker(Config.preset(config_argument("preset")))
        self.rng = np.random.default_rng(cocotb.RANDOM_SEED)
        self._domain = ClockDomain(dut)
        self._start = Ports(dut, "start", [field.name for field in fields(Op)] + ["valid"])
        self._pending = Ports(dut, "pending", ("valid", "d"))
        self._chain = Ports(dut, "chain", ("load", "source", "shift"))
        self._result = Ports(dut, "result", ("shift", "row"))
        self._write = Ports(dut, "write", ("valid", "d"))
        self._ready, self._free, self._busy = (
            int_reader(pin(dut, name)) for name in ("ready", "free", "busy"))
        self._row = pin(dut, "row")
        self._start.zero()
        self._row.value = 0

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "XluBench":
        """A bench whose unit has been reset; its registers and its transposer are random."""
        bench = cls(dut)
        bench._domain.start()
        await bench.reset()
        await bench.play(fill_tile(bench.checker, bench.rng))
        return bench

    async def reset(self) -> None:
        """Resets the unit, which drops its operations."""
        self._start.drive(valid=0)
        await self._domain.reset()
        self.checker.restart()
        await self._begin()

    async def play(self, scenario: Scenario) -> None:
        """Runs a scenario to its end."""
        for step in scenario:
            if isinstance(step, Reset):
                await self.reset()
            else:
                self._drive(step)
                await self._begin()

    async def finish(self) -> None:
        """Waits until the unit is idle, and ends the checks."""
        await self.play(drain(self.checker))
        self.checker.finish()

    async def _begin(self) -> None:
        """Waits for the middle of the next cycle, where outputs are read and inputs driven."""
        await self._domain.middle
        self.checker.begin(Outputs(
            ready=bool(self._ready()), free=bool(self._free()),
            busy=bool(self._busy()),
            pending=self._pending["d"] if self._pending["valid"] else None,
            load=self._chain["source"] if self._chain["load"] else None,
            shift=bool(self._chain["shift"]),
            row=(unpack_row(self._result["row"], self.checker.config.lanes)[0]
                 if self._result["shift"] else None),
            write=self._write["d"] if self._write["valid"] else None))

    def _drive(self, op: Op | None) -> None:
        self._row.value = pack_row(self.checker.row)
        if op is None:
            self._start.drive(valid=0)
        else:
            self._start.drive(valid=1, op=op.op, d=op.d, a=op.a, amount=op.amount)
        self.checker.end(op)


@bench_test
async def random_operations(dut: HierarchyObject) -> None:
    """All operations in any order, on few or many registers, while other registers change."""
    bench = await XluBench.started(dut)
    await bench.play(random_traffic(bench.checker, bench.rng, 4000))
    await bench.finish()
    assert bench.checker.checked > 450


@bench_test
async def every_amount(dut: HierarchyObject) -> None:
    """Each operation with each of its amounts, from a register to itself and to another one."""
    bench = await XluBench.started(dut)
    await bench.play(dependent_amounts(bench.checker))
    await bench.finish()


@bench_test
@cocotb.parametrize(kind=["moves", "tree"])
async def full_rate(dut: HierarchyObject, kind: str) -> None:
    """Operations of equal latency and without hazards produce a row in every cycle."""
    bench = await XluBench.started(dut)
    kinds = {"moves": MOVES, "tree": TREE}[kind]
    await bench.play(run_at_full_rate(bench.checker, bench.rng, kinds))
    await bench.finish()


@bench_test
async def results_of_two_latencies(dut: HierarchyObject) -> None:
    """In any sequence of four sums and rotations, none overtakes another, and none is late."""
    bench = await XluBench.started(dut)
    await bench.play(two_latencies(bench.checker))
    await bench.finish()


@bench_test
async def transposes(dut: HierarchyObject) -> None:
    """Transposes whole tiles; then mixes writes of rows with reads of columns, at random."""
    bench = await XluBench.started(dut)
    await bench.play(rows_then_columns(bench.checker, bench.rng))
    await bench.finish()


@bench_test
async def reset_in_the_middle(dut: HierarchyObject) -> None:
    """A reset at every distance from the last start drops everything under way."""
    bench = await XluBench.started(dut)
    await bench.play(every_distance_to_reset(bench.checker, bench.rng))
    await bench.finish()
