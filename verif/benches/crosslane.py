"""Bench of the cross-lane unit: its driver, the chains around it, and the golden order of results.

The chain that it reads and the registers behind it are modelled cycle by cycle, as the vector unit
has them; the results follow from the golden machine, without time.
"""

import random
from collections.abc import Iterable
from dataclasses import fields

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject
from numpy.typing import NDArray

from golden.core import GoldenCore
from hdl import isa
from hdl.config import Config
from hdl.encoding import pack
from hdl.isa import MiscOp, Slot
from verif.benches.clocking import ClockDomain, config_argument, pin
from verif.benches.matrix import pack_row
from verif.benches.ports import Ports
from verif.benches.scoreboard import Scoreboard
from verif.hdl.xlu.xlu_bench import OPERATIONS, Op, limit
from verif.system.programs import random_words

__all__ = ["XluBench"]

class XluBench:
    """The unit between chains.

    Operations that are sent issue in order, as soon as the unit is ready and none of their
    registers awaits a result.

    Attributes
    ----------
    config : Config
    rng : random.Random
        Of the bench's decisions, seeded with the test's seed.
    gap, change : float
        Probabilities, in each cycle, that no operation is tried, and that some register which
        nothing awaits or has yet to read becomes another.
    writes : list of int
        Cycles in which registers were written.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"))
        self.rng = random.Random(cocotb.RANDOM_SEED)
        self.gap = self.change = 0.0
        self.writes: list[int] = []
        self._numbers = np.random.default_rng(cocotb.RANDOM_SEED)
        self._results: Scoreboard[tuple[Op, tuple[int, ...]]] = Scoreboard(
            "result", lambda item: f"{item[0]}: {[f'{row:x}' for row in item[1]]}")
        self.domain = ClockDomain(dut)
        self._start = Ports(dut, "start", [field.name for field in fields(Op)] + ["valid"])
        self._pending = Ports(dut, "pending", ("valid", "d"))
        self._chain_control = Ports(dut, "chain", ("load", "source", "shift"))
        self._result = Ports(dut, "result", ("shift", "row"))
        self._write = Ports(dut, "write", ("valid", "d"))
        self._ready, self._free, self._busy, self._row = (
            pin(dut, name) for name in ("ready", "free", "busy", "row"))
        self._start.zero()
        self._row.value = 0
        self._clear()
        self.domain.start()
        cocotb.start_soon(self._drive())
        cocotb.start_soon(self._monitor())

    @classmethod
    async def started(cls, dut: HierarchyObject) -> "XluBench":
        """A bench whose unit has been reset, and its transposer written."""
        bench = cls(dut)
        await bench.reset()
        return bench

    @property
    def checked(self) -> int:
        """Results compared."""
        return self._results.checked

    def _clear(self) -> None:
        shape = self.config.sublanes, self.config.lanes
        self._machine = GoldenCore(self.config)
        self._machine.vectors[:] = random_words(self._numbers, self._machine.vectors.shape)
        self._registers = self._machine.vectors.copy()
        self._chain: NDArray[np.uint32] = np.zeros(shape, np.uint32)
        self._queue: list[Op] = []
        self._awaited: list[Op] = []
        self._rows: list[int] = []
        self._changes: dict[int, NDArray[np.uint32]] = {}
        self._results.clear()

    async def reset(self) -> None:
        """Resets the unit; what is in it is lost, and the tile of the transposer is new."""
        self._queue.clear()
        await self.domain.reset()
        self._clear()
        self.send(Op(MiscOp.TRANSPOSE_IN, a=self.rng.randrange(isa.VECTOR_REGISTERS),
                            amount=group) for group in range(self.config.tile_vregs))

    def send(self, operations: Iterable[Op]) -> None:
        """Queues operations."""
        self._queue.extend(operations)

    def random(self, count: int, ops: tuple[MiscOp, ...] = OPERATIONS,
               registers: int = isa.VECTOR_REGISTERS) -> list[Op]:
        """Random operations."""
        chosen = (self.rng.choice(ops) for _ in range(count))
        return [Op(op, self.rng.randrange(registers), self.rng.randrange(registers),
                          self.rng.randrange(limit(self.config, op))) for op in chosen]

    async def drain(self) -> None:
        """Waits until all that was sent is done."""
        while self._queue:
            await self.domain.edge
        await self.domain.cycles(2)
        while self._busy.value:
            await self.domain.edge
        await self.domain.cycles(5)

    async def finish(self) -> None:
        """Waits for all results.

        Raises
        ------
        AssertionError
            If nothing was compared, or something did not come.
        """
        await self.drain()
        self._results.finish()
        assert not self._rows, "rows came that were not written"
        assert np.array_equal(self._registers, self._machine.vectors)

    def _may_issue(self, operation: Op) -> bool:
        awaited = {one.d for one in self._awaited}
        if operation.reads and operation.a in awaited:
            return False
        pending = self._pending["d"] if self._pending["valid"] else None
        if operation.writes and (operation.d in awaited or operation.d == pending):
            return False
        overwrites = operation.reads and operation.writes and operation.a == operation.d
        return bool((self._free if overwrites else self._ready).value)

    async def _drive(self) -> None:
        """In the middle of each cycle: issues an operation in it, changes a register at its end."""
        while True:
            await self.domain.middle
            self._start.drive(valid=0)
            if self.domain.resetting:
                continue
            issued = None
            if self._queue and self.rng.random() >= self.gap and self._may_issue(self._queue[0]):
                issued = self._queue.pop(0)
                self._issue(issued)
            if self.rng.random() < self.change:
                number = self.rng.randrange(isa.VECTOR_REGISTERS)
                kept = {one.d for one in self._awaited}
                if self._pending["valid"]:
                    kept.add(self._pending["d"])
                if issued is not None:
                    kept |= {issued.a, issued.d}
                if number not in kept:
                    word = random_words(self._numbers, self._chain.shape)
                    self._machine.vectors[number] = word
                    self._changes[number] = word

    def _issue(self, operation: Op) -> None:
        self._start.drive(valid=1, op=operation.op, d=operation.d, a=operation.a,
                          amount=operation.amount)
        machine = self._machine
        # The amount is a source of the bundle, an immediate.
        code = pack({Slot.MISC: {"op": operation.op, "d": operation.d, "a": operation.a,
                                 "b": isa.FIRST_IMMEDIATE}}, (operation.amount,))
        machine.load_program([code])
        machine.start()
        assert machine.step(), f"{operation} must be legal"
        machine.stop()
        if operation.writes:
            self._awaited.append(operation)
            rows = tuple(pack_row(row) for row in machine.vectors[operation.d])
            self._results.expect((operation, rows))

    async def _monitor(self) -> None:
        """At the end of each cycle: does what the vector unit does with chains and registers."""
        while True:
            await self.domain.edge
            if self.domain.resetting:
                continue
            load, shift = self._chain_control["load"], self._chain_control["shift"]
            source = self._chain_control["source"]
            if load:
                self._chain = self._registers[source].copy()
            elif shift:
                self._chain = np.roll(self._chain, -1, axis=0)
            if self._write["valid"]:
                self._written(self._write["d"])
            for number, word in self._changes.items():
                self._registers[number] = word
            self._changes.clear()
            if self._result["shift"]:
                self._rows.append(self._result["row"])
                assert len(self._rows) <= self.config.sublanes, "a whole register is not written"
            if load or shift:
                self._row.value = pack_row(self._chain[0])
            else:
                assert self._busy.value or not self._awaited or self._start["valid"], (
                    "idle before the last result")

    def _written(self, d: int) -> None:
        assert self._awaited, f"register {d} is written, but nothing is awaited"
        operation = self._awaited.pop(0)
        assert operation.d == d, f"register {d} is written by {operation}"
        self._results.check((operation, tuple(self._rows)))
        width = 4 * self.config.lanes
        self._registers[d] = [np.frombuffer(row.to_bytes(width, "little"), "<u4")
                              for row in self._rows]
        self._rows.clear()
        self.writes.append(self.domain.now)
