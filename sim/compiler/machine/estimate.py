"""Estimate of the cycles that code takes, from latencies and interlocks.

The estimate follows docs/core.md (One bundle, Chains): a bundle issues when its registers, write
ports and units are free. A few iterations of each loop are simulated; each later iteration takes as
long as the last one simulated. Transfers and semaphores take no time, and conditional branches
count as not taken.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hdl import isa
from hdl.config import Config
from hdl.isa import Slot, Unit
from sim.asm.operands import Mask, Register, Scalar, Vector
from sim.compiler.machine.emit import Code
from sim.compiler.machine.ir import WRITTEN, Op
from sim.compiler.machine.layout import Loops
from sim.compiler.machine.schedule.resources import latency, occupancy

__all__ = ["estimate", "vector_operations"]

_BY_NAME = {(slot, operation.name): operation
            for operation in isa.OPERATIONS for slot in operation.slots}
_PASSES = 6
"""Number of simulated iterations of a loop; each further one takes as long as the last of them."""
_CHAIN = 2
"""Cycles from when a result row arrives in the collector until it is in a vector register."""


@dataclass(slots=True)
class _Effect:
    """Resources that an operation waits for and occupies.

    Attributes
    ----------
    slot : Slot
    registers : tuple of Register
        Registers that it reads or writes.
    results : tuple of Register
        Registers that it writes.
    latency : int
        Number of cycles until its results can be read.
    unit : str or None
        The unit that processes it row by row, if any.
    busy : int
        Number of cycles for which it occupies that unit.
    port : bool
        Whether it writes its result through the write port of its slot.
    swaps : bool
        Whether it makes the next weights active.
    jump : str or None
        For a jump, the label.
    """

    slot: Slot
    registers: tuple[Register, ...]
    results: tuple[Register, ...]
    latency: int
    unit: str | None
    busy: int
    port: bool
    swaps: bool
    jump: str | None


@dataclass
class _Core:
    """Times, in cycles, at which registers and units become free.

    For each unit, ``starts`` has the cycle in which its latest operation starts, and ``free`` the
    cycle in which the unit is free again. A unit queues one operation, so another one can issue as
    soon as the latest has started.
    """

    config: Config
    cycle: int = 0
    ready: dict[Register, int] = field(default_factory=dict)
    ports: set[tuple[Slot, int]] = field(default_factory=set)
    starts: dict[str, int] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)
    results: deque[int] = field(default_factory=deque)

    def issue(self, effects: list[_Effect]) -> None:
        """Issue a bundle in the first cycle in which its operands, units and ports are available.

        ``effects`` are those of its operations.
        """
        cycle = self.cycle
        for effect in effects:
            for register in effect.registers:
                cycle = max(cycle, self.ready.get(register, 0))
            if effect.unit is not None:
                cycle = max(cycle, self.starts.get(effect.unit, 0))
        while any(effect.port and (effect.slot, cycle + effect.latency) in self.ports
                  for effect in effects):
            cycle += 1
        for effect in effects:
            self._execute(effect, cycle)
        self.cycle = cycle + 1
        if len(self.ports) > 256:
            self.ports = {port for port in self.ports if port[1] >= cycle}

    def _execute(self, effect: _Effect, cycle: int) -> None:
        start = cycle
        if effect.port:
            self.ports.add((effect.slot, cycle + effect.latency))
        if effect.unit is not None:
            start = max(cycle, self.free.get(effect.unit, 0))
            if effect.swaps:
                start = max(start, self.free.get("weights", 0))
            if effect.unit == "pop":
                self._pop(effect, cycle)
                return
            if effect.unit == "rows":
                self.results.append(start + effect.busy + self.config.array_latency + _CHAIN)
            self.starts[effect.unit] = start
            self.free[effect.unit] = start + effect.busy
        for register in effect.results:
            self.ready[register] = start + effect.latency

    def _pop(self, effect: _Effect, cycle: int) -> None:
        """Execute the pop with effect ``effect``, which issues in cycle ``cycle``.

        The collector gathers one vector at a time, and starts the next when that one is popped.
        """
        gathered = max(self.results.popleft() if self.results else 0,
                       self.free.get("pop", 0) + effect.busy)
        ready = max(cycle + _CHAIN, gathered)
        self.free["pop"], self.starts["pop"] = ready, ready - 1
        for register in effect.results:
            self.ready[register] = ready


def estimate(code: Code, unknown: int = 1) -> int:
    """Estimate the cycles from the first bundle to the end of the code.

    Parameters
    ----------
    code : Code
        The bundles, and their loops.
    unknown : int
        Number of iterations to assume for a loop if the true number is known only at run time.
    """
    effects = [[_effect(slot, name, operands, code.config) for slot, name, operands in bundle]
               for bundle in code.bundles]
    loops: dict[int, list[Loops]] = {}
    for loop in sorted(code.loops, key=lambda loop: loop.end):
        loops.setdefault(loop.first, []).append(loop)
    core = _Core(code.config)
    return _follow(code, effects, loops, core, (0, len(effects)), unknown) + core.cycle


def vector_operations(code: Code, unknown: int = 1) -> int:
    """Count the vector-slot operations that code executes.

    ``unknown`` is the number of iterations to assume for a loop if the true number is known only at
    run time.
    """
    times = [1] * len(code)
    for loop in code.loops:
        count = loop.count
        if count is None:
            count = unknown // loop.unroll if loop.unroll else 1
        for number in range(loop.first, loop.end):
            times[number] *= count
    return sum(many * sum(slot in (Slot.V0, Slot.V1) for slot, _, _ in bundle)
               for many, bundle in zip(times, code.bundles, strict=True))


def _follow(code: Code, effects: list[list[_Effect]], loops: dict[int, list[Loops]], core: _Core,
            extent: tuple[int, int], unknown: int) -> int:
    """Issue the bundles from ``extent[0]`` to ``extent[1]``, exclusive, for `estimate`.

    ``core`` issues at most `_PASSES` iterations of each loop. Return the estimated cycles of the
    iterations that are not issued.
    ``effects`` has the effects of each bundle's operations, and ``loops`` the loops that begin at
    each bundle. ``unknown`` is the number of iterations to assume for a loop if the true number is
    known only at run time.
    """
    at, end = extent
    skipped = 0
    while at < end:
        starting = loops.get(at, [])
        if starting:
            loop = starting[-1]
            inner = {**loops, at: starting[:-1]}
            count = loop.count
            if count is None:
                count = unknown // loop.unroll if loop.unroll else 1
            period, before = 0, 0
            for _ in range(min(count, _PASSES)):
                before = core.cycle + skipped
                skipped += _follow(code, effects, inner, core, (at, loop.end), unknown)
                period = core.cycle + skipped - before
            skipped += max(0, count - _PASSES) * period
            at = loop.end
            continue
        core.issue(effects[at])
        jump = next((effect.jump for effect in effects[at] if effect.jump is not None), None)
        at = at + 1 if jump is None else code.labels[jump]
    return skipped


def _effect(slot: Slot, name: str, operands: tuple[Any, ...], config: Config) -> _Effect:
    operation = _BY_NAME[slot, name]
    op = Op(operation, operands)
    pairs = list(zip(operation.operands, operands, strict=True))
    registers = tuple(value for _, value in pairs if isinstance(value, (Scalar, Vector, Mask))
                      and not (value.number == 0 and not isinstance(value, Vector)))
    results = tuple(value for operand, value in pairs
                    if operand.kind in WRITTEN and value in registers)
    unit, busy = occupancy(op, config) or (None, 0)
    jump = operands[-1] if name == "jump" else None
    return _Effect(slot, registers, results, latency(op, config), unit, busy,
                   operation.unit in (Unit.SIMPLE, Unit.FLOAT, Unit.TRANSCENDENTAL),
                   name == "rows_swap", jump)
