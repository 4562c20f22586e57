"""Estimate of the cycles that code takes, from latencies and interlocks.

The estimate follows docs/core.md (One bundle, Chains): a bundle issues when its registers, write
ports and units are free. A few iterations of each loop are simulated; each later iteration takes as
long as the last one simulated. Transfers and semaphores take no time, and conditional branches
count as not taken.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hdl import isa
from hdl.config import Config
from hdl.isa import Slot
from sim.asm.operands import Mask, Scalar, Vector
from sim.compiler.machine.emit import Code
from sim.compiler.machine.ir import WRITTEN, Op
from sim.compiler.machine.layout import Loops
from sim.compiler.machine.schedule.resources import VECTOR_UNITS, latency, occupancy

__all__ = ["estimate", "vector_operations"]

_PASSES = 6
"""Number of simulated iterations of a loop; each further one takes as long as the last of them."""
_CHAIN = 2
"""Cycles from when a result row arrives in the collector until it is in a vector register."""
_BANK = 64
"""Numbers of registers, for `_Bundle`, that each kind of register has."""
_FIRST = {Vector: 0, Scalar: _BANK, Mask: 2 * _BANK}
"""Number of register 0 of each kind, for `_Bundle`."""
_OPERATIONS = {(slot, operation.name): (operation, tuple(
    (position, operand.kind in WRITTEN) for position, operand in enumerate(operation.operands)))
    for operation in isa.OPERATIONS for slot in operation.slots}
"""For each operation, by slot and name: the positions of its operands, and whether it writes them.
"""


@dataclass(slots=True)
class _Use:
    """Use of a unit that processes an operation row by row.

    Attributes
    ----------
    unit : str
    busy : int
        Number of cycles for which the operation occupies the unit.
    swaps : bool
        Whether the operation makes the next weights active.
    results : sequence of int
        Registers that it writes (`_Bundle`).
    latency : int
        Number of cycles until its results can be read.
    """

    unit: str
    busy: int
    swaps: bool
    results: Sequence[int]
    latency: int


@dataclass(slots=True)
class _Bundle:
    """Resources that a bundle waits for and occupies.

    Vector, scalar and mask registers are numbered together; s0 and m0 are left out.

    Attributes
    ----------
    registers : list of int
        Registers that it reads or writes.
    ports : list of (Slot, int)
        The write ports that it uses, and how many cycles after it issues.
    results : list of (int, int)
        Registers that operations without a unit write, and the cycles until they can be read.
    uses : list of _Use
    jump : str or None
        For a jump, the label.
    """

    registers: list[int] = field(default_factory=list)
    ports: list[tuple[Slot, int]] = field(default_factory=list)
    results: list[tuple[int, int]] = field(default_factory=list)
    uses: list[_Use] = field(default_factory=list)
    jump: str | None = None

    def add(self, slot: Slot, name: str, operands: tuple[Any, ...], config: Config) -> None:
        """Add an operation; the arguments are those of `Code.bundles`."""
        operation, positions = _OPERATIONS[slot, name]
        written: list[int] = []
        for position, is_written in positions:
            value = operands[position]
            first = _FIRST.get(type(value))
            if first is not None and (value.number or not first):
                self.registers.append(first + value.number)
                if is_written:
                    written.append(first + value.number)
        op = Op(operation, operands)
        cycles, use = latency(op, config), occupancy(op, config)
        if use is not None:
            self.uses.append(_Use(*use, name == "rows_swap", written, cycles))
        else:
            self.results += [(register, cycles) for register in written]
        if operation.unit in VECTOR_UNITS:
            self.ports.append((slot, cycles))
        if name == "jump":
            self.jump = operands[-1]


@dataclass
class _Core:
    """Times, in cycles, at which registers and units become free.

    For each unit, ``starts`` has the cycle in which its latest operation starts, and ``free`` the
    cycle in which the unit is free again. A unit queues one operation, so another one can issue as
    soon as the latest has started.
    """

    config: Config
    cycle: int = 0
    ready: list[int] = field(default_factory=lambda: [0] * (len(_FIRST) * _BANK))
    ports: set[tuple[Slot, int]] = field(default_factory=set)
    starts: dict[str, int] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)
    results: deque[int] = field(default_factory=deque)

    def issue(self, bundle: _Bundle) -> None:
        """Issue a bundle in the first cycle in which its operands, units and ports are free."""
        cycle, ready = self.cycle, self.ready
        for register in bundle.registers:
            if ready[register] > cycle:
                cycle = ready[register]
        for use in bundle.uses:
            cycle = max(cycle, self.starts.get(use.unit, 0))
        if bundle.ports:
            wanted = [(slot, cycle + late) for slot, late in bundle.ports]
            while not self.ports.isdisjoint(wanted):
                cycle += 1
                wanted = [(slot, cycle + late) for slot, late in bundle.ports]
            self.ports.update(wanted)
            if len(self.ports) > 256:
                self.ports = {port for port in self.ports if port[1] >= cycle}
        for register, late in bundle.results:
            ready[register] = cycle + late
        for use in bundle.uses:
            self._use(use, cycle)
        self.cycle = cycle + 1

    def _use(self, use: _Use, cycle: int) -> None:
        """Use a unit for an operation that issues in cycle ``cycle``."""
        if use.unit == "pop":
            self._pop(use, cycle)
            return
        start = max(cycle, self.free.get(use.unit, 0))
        if use.swaps:
            start = max(start, self.free.get("weights", 0))
        if use.unit == "rows":
            self.results.append(start + use.busy + self.config.array_latency + _CHAIN)
        self.starts[use.unit] = start
        self.free[use.unit] = start + use.busy
        for register in use.results:
            self.ready[register] = start + use.latency

    def _pop(self, use: _Use, cycle: int) -> None:
        """Execute a pop that issues in cycle ``cycle``.

        The collector gathers one vector at a time, and starts the next when that one is popped.
        """
        gathered = max(self.results.popleft() if self.results else 0,
                       self.free.get("pop", 0) + use.busy)
        ready = max(cycle + _CHAIN, gathered)
        self.free["pop"], self.starts["pop"] = ready, ready - 1
        for register in use.results:
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
    if unknown not in code.cycles:
        code.cycles[unknown] = _estimated(code, unknown)
    return code.cycles[unknown]


def _estimated(code: Code, unknown: int) -> int:
    bundles = []
    for operations in code.bundles:
        bundles.append(bundle := _Bundle())
        for slot, name, operands in operations:
            bundle.add(slot, name, operands, code.config)
    loops: dict[int, list[Loops]] = {}
    for loop in sorted(code.loops, key=lambda loop: loop.end):
        loops.setdefault(loop.first, []).append(loop)
    core = _Core(code.config)
    return _follow(code, bundles, loops, core, (0, len(bundles)), unknown) + core.cycle


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


def _follow(code: Code, bundles: Sequence[_Bundle], loops: dict[int, list[Loops]], core: _Core,
            extent: tuple[int, int], unknown: int) -> int:
    """Issue the bundles from ``extent[0]`` to ``extent[1]``, exclusive, for `estimate`.

    ``core`` issues at most `_PASSES` iterations of each loop. Return the estimated cycles of the
    iterations that are not issued.

    ``bundles`` are those of the code, and ``loops`` has the loops that begin at each of them.
    ``unknown`` is the number of iterations to assume for a loop if the true number is known only at
    run time.
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
                skipped += _follow(code, bundles, inner, core, (at, loop.end), unknown)
                period = core.cycle + skipped - before
            skipped += max(0, count - _PASSES) * period
            at = loop.end
            continue
        core.issue(bundles[at])
        jump = bundles[at].jump
        at = at + 1 if jump is None else code.labels[jump]
    return skipped

