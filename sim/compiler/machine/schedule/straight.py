"""List scheduling: operations without control flow, ordered by critical path."""

import sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from hdl.config import Config
from hdl.isa import IMMEDIATES, Slot
from sim.compiler.machine.ir import WRITTEN, MReg, Op, Register, SReg, VReg
from sim.compiler.machine.schedule.dependences import (
    Graph,
    Results,
    block_graph,
    delay_loads,
    heights,
)
from sim.compiler.machine.schedule.pattern import Pattern
from sim.compiler.machine.schedule.resources import Node

__all__ = ["PRESSURE", "forget", "schedule_block", "single_writes"]

PRESSURE: dict[type, int] = {VReg: 26, MReg: 5, SReg: 22}
"""Limit of the live registers of each kind. At this limit, an operation that needs another register
no longer moves in front of earlier operations."""
_TIMES: dict[Hashable, list[tuple[Slot, int]]] = {}
"""The slot and cycle of each operation of a block, by all that they depend on, until `forget` is
called."""


def schedule_block(ops: Sequence[Op], config: Config, last: Op | None = None, *,
                   ahead: bool = True, crowded: bool = False,
                   outstanding: int | None = None, lead: int | None = None,
                   live: int | None = None) -> list[list[tuple[Slot, Op]]]:
    """Schedule operations without control flow; return the bundles.

    The bundles have the same effect as executing ``ops`` in order.

    Parameters
    ----------
    ops : sequence of Op
    config : Config
    last : Op or None
        A branch that follows the operations; it is placed in the last bundle.
    ahead : bool
        Whether operations may move in front of earlier ones; if False, they may only share bundles.
    crowded : bool
        Whether the block tries to use at most half of the registers.
    outstanding : int or None
        Number of results that the array holds when the block begins, if known.
    lead : int or None
        Maximum number of cycles by which a load may be early (`delay_loads`); used if
        ``outstanding`` is known.
    live : int or None
        Limit of the live vector registers, instead of that in `PRESSURE`.
    """
    # In a block that starts transfers, or has a push with a fence, early pushes keep the array from
    # waiting for the core.
    eager = any(op.fence is not None and op.fence.paced for op in ops)
    nodes = [Node.of(op, config, eager=eager)
             for op in (*ops, *([last] if last is not None else []))]
    results = None if outstanding is None or eager else Results(
        config.array_latency, outstanding, config.result_vregs)
    limits = {kind: limit // (2 if crowded else 1) for kind, limit in PRESSURE.items()}
    if live is not None:
        limits[VReg] = live
    options = ahead, last is not None, eager, lead, *limits.values()
    key = Pattern(nodes).key, results, options
    times = _TIMES.get(key)
    if times is None:
        graph = block_graph(nodes, paced=eager, results=results)
        if last is not None:
            for number in range(len(nodes) - 1):
                graph.edge(number, len(nodes) - 1, 0)
        if results is not None and lead is not None:
            delay_loads(graph, lead)
        times = _TIMES[key] = _Scheduler(graph, ahead, limits).run()
    rows: dict[int, list[tuple[Slot, Op]]] = {}
    for number, (slot, cycle) in enumerate(times):
        rows.setdefault(cycle, []).append((slot, nodes[number].op))
    return [rows[cycle] for cycle in sorted(rows)]


def forget() -> None:
    """Free what `schedule_block` has kept."""
    _TIMES.clear()


def single_writes(ops: Sequence[Op], numbers: Iterator[int]) -> list[Op]:
    """Rename registers so that ``ops`` write each of them once; return the changed operations.

    The last write to a register remains; each earlier one goes to a new register, whose number is
    the next of ``numbers``.
    """
    left = Counter(register for op in ops for register in op.writes)
    if max(left.values(), default=0) < 2:
        return list(ops)
    names: dict[Register, Register] = {}
    found = []
    for op in ops:
        written = op.writes
        fresh: dict[Register, Register] = {}
        for register in written:
            left[register] -= 1
            fresh[register] = type(register)(next(numbers)) if left[register] else register
        operands = list(op.operands)
        for position, (operand, value) in enumerate(
                zip(op.operation.operands, op.operands, strict=True)):
            if isinstance(value, (VReg, MReg, SReg)):
                table = fresh if operand.kind in WRITTEN and value in fresh else names
                operands[position] = table.get(value, value)
        access = None if op.access is None else op.access.replaced(names)
        found.append(Op(op.operation, tuple(operands), access, op.fence))
        names.update(fresh)
    return found


@dataclass(slots=True, eq=False)
class _Group:
    """Ready operations that occupy the same resources and write the same kind of register.

    An operation is ready when all operations on which it depends are scheduled. The lists hold the
    ranks of operations in ascending order (`_Scheduler`).

    Attributes
    ----------
    kind : type or None
        Class of the register that they write, if any.
    plain : list of int
        Operations whose results need a register in addition to those that are live.
    freeing : list of int
        Operations that are the last to read a register of ``kind``, which they then free.
    """

    kind: type | None
    plain: list[int] = field(default_factory=list)
    freeing: list[int] = field(default_factory=list)


class _Resources:
    """The resources that are free while a schedule advances from cycle to cycle."""

    def __init__(self) -> None:
        self.cycle = 0
        self._slots: set[Slot] = set()
        self._constants: set[int | str] = set()
        self._ports: set[tuple[Slot, int]] = set()
        self._units: dict[str, int] = {}

    def advance(self, cycle: int) -> None:
        """Go on to a later cycle, in which all slots and immediates are free again."""
        self.cycle = cycle
        self._slots.clear()
        self._constants.clear()

    def immediates(self, node: Node) -> bool:
        """Return whether this cycle's bundle has room for the immediates of ``node``."""
        return not node.constants or len(self._constants | node.constants) <= IMMEDIATES

    def free(self, node: Node) -> int:
        """Return the first cycle in which the unit of ``node`` is free; 0 if it uses no unit."""
        return 0 if node.unit is None else self._units.get(node.unit, 0)

    def slot(self, node: Node) -> Slot | None:
        """Return a slot in which ``node`` fits in this cycle; None if there is none.

        The node's immediates are not considered.
        """
        if self.free(node) > self.cycle:
            return None
        end = self.cycle + node.latency
        return next((slot for slot in node.op.operation.slots if slot not in self._slots
                     and not (node.port and (slot, end) in self._ports)), None)

    def put(self, node: Node, slot: Slot) -> None:
        """Put ``node`` in a slot of this cycle; occupy its resources."""
        self._slots.add(slot)
        self._constants |= node.constants
        if node.port:
            self._ports.add((slot, self.cycle + node.latency))
        if node.unit is not None:
            self._units[node.unit] = self.cycle + node.busy


class _Scheduler:
    """List scheduling of one block, cycle by cycle.

    The *rank* of an operation is its position in the order of priorities, from 0, the most urgent.
    In each cycle, operations that are ready are tried in the order of their ranks, until none of
    them fits.
    """

    def __init__(self, graph: Graph, ahead: bool, limits: Mapping[type, int]) -> None:
        self._limits = limits
        self._nodes, self._after = graph.nodes, graph.after
        self._ahead = ahead
        critical = heights(graph) if ahead else [0] * len(graph.nodes)
        self._order = sorted(range(len(critical)), key=lambda number: -critical[number])
        self._ranks = [0] * len(critical)
        for rank, number in enumerate(self._order):
            self._ranks[number] = rank
        self._waiting = [len(before) for before in graph.before]
        self._earliest = [graph.earliest.get(number, 0) for number in range(len(graph.nodes))]
        self._times: list[tuple[Slot, int] | None] = [None] * len(graph.nodes)
        self._resources = _Resources()
        self._next = 0
        self._groups: list[_Group] = []
        self._group = self._grouped()
        self._active = [False] * len(graph.nodes)
        # A heap of (first possible cycle, rank): operations whose predecessors are scheduled, but
        # which are not in a group yet.
        self._later: list[tuple[int, int]] = []
        self._registers()
        for number, waiting in enumerate(self._waiting):
            if not waiting:
                heappush(self._later, (self._earliest[number], self._ranks[number]))

    def _grouped(self) -> list[_Group]:
        """Make all groups, with empty lists; return the group of each operation."""
        groups: dict[object, _Group] = {}
        found = []
        for node in self._nodes:
            assert len(node.writes) <= 1
            kind = type(node.writes[0]) if node.writes else None
            key = node.op.operation.slots, node.unit, node.busy, node.latency, node.port, kind
            found.append(groups.setdefault(key, _Group(kind)))
        self._groups = list(groups.values())
        return found

    def _registers(self) -> None:
        """Count the uses of each register, and the live registers of each kind."""
        self._readers: dict[Register, list[int]] = {}
        self._uses: Counter[Register] = Counter()
        self._frees = [False] * len(self._nodes)
        self._defined: set[Register] = set()
        written: set[Register] = set()
        for number, node in enumerate(self._nodes):
            for register in node.reads:
                self._readers.setdefault(register, []).append(number)
                self._uses[register] += 1
                if register not in written:
                    self._defined.add(register)
            written.update(node.writes)
        self._live: dict[type, int] = dict.fromkeys(PRESSURE, 0)
        for register in self._defined:
            self._live[type(register)] += 1
        # A register that is read before it is written is a variable, and is live after the block.
        self._kept = self._defined & written
        for register, uses in self._uses.items():
            if uses == 1:
                self._note_last(register)

    def _note_last(self, register: Register) -> None:
        """Record that all operations that read ``register``, except one, are scheduled."""
        number = next(number for number in self._readers[register] if self._times[number] is None)
        group = self._group[number]
        if self._frees[number] or group.kind is not type(register):
            return
        self._frees[number] = True
        if self._active[number]:
            rank = self._ranks[number]
            del group.plain[bisect_left(group.plain, rank)]
            insort(group.freeing, rank)

    def run(self) -> list[tuple[Slot, int]]:
        """Return the slot and cycle of each operation."""
        while self._next < len(self._nodes):
            self._resources.advance(self._cycle())
        return [time for time in self._times if time is not None]

    def _cycle(self) -> int:
        """Place the operations that fit into a cycle, including those that become ready in it.

        Returns the next cycle in which an operation may fit.
        """
        resources, cycle = self._resources, self._resources.cycle
        full: set[int] = set()
        blocked: list[_Group] = []
        wake, placed, progress = sys.maxsize, False, True
        while progress:
            progress = False
            while self._later and self._later[0][0] <= cycle:
                self._enter(heappop(self._later)[1])
            groups = [group for group in self._groups
                      if (group.plain or group.freeing) and group not in blocked]
            last = -1
            while (rank := self._candidate(groups, last)) is not None:
                last, number = rank, self._order[rank]
                node = self._nodes[number]
                if rank in full or not resources.immediates(node):
                    full.add(rank)
                    wake = cycle + 1
                    continue
                slot = resources.slot(node)
                if slot is None:
                    groups.remove(self._group[number])
                    blocked.append(self._group[number])
                    wake = min(wake, max(cycle + 1, resources.free(node)))
                    continue
                resources.put(node, slot)
                self._schedule(number, slot, cycle)
                placed = progress = True
        if placed:
            return cycle + 1
        return min(wake, self._later[0][0]) if self._later else wake

    def _candidate(self, groups: Sequence[_Group], last: int) -> int | None:
        """Return the lowest rank above ``last`` whose operation may be scheduled now, or None.

        The operation must be in one of ``groups``. The first operation of the block that is not
        scheduled yet may always be scheduled. Any other one would move in front of it, and may do
        so only if this is allowed and needs no register above the limit.
        """
        best = len(self._order)
        if self._next < best and self._active[self._next] and self._group[self._next] in groups:
            rank = self._ranks[self._next]
            best = rank if rank > last else best
        if self._ahead:
            for group in groups:
                found = group.freeing
                at = bisect_right(found, last)
                if at < len(found) and found[at] < best:
                    best = found[at]
                if group.kind is None or self._live[group.kind] < self._limits[group.kind]:
                    found = group.plain
                    at = bisect_right(found, last)
                    if at < len(found) and found[at] < best:
                        best = found[at]
        return best if best < len(self._order) else None

    def _enter(self, rank: int) -> None:
        """Add the operation of rank ``rank``, which has become ready, to its group."""
        number = self._order[rank]
        group = self._group[number]
        self._active[number] = True
        insort(group.freeing if self._frees[number] else group.plain, rank)

    def _schedule(self, number: int, slot: Slot, cycle: int) -> None:
        node, group, rank = self._nodes[number], self._group[number], self._ranks[number]
        ranks = group.freeing if self._frees[number] else group.plain
        del ranks[bisect_left(ranks, rank)]
        self._active[number] = False
        self._times[number] = slot, cycle
        while self._next < len(self._times) and self._times[self._next] is not None:
            self._next += 1
        self._uses.subtract(node.reads)
        for register in node.reads:
            if self._uses[register] == 1:
                self._note_last(register)
            elif not self._uses[register] and register in self._defined \
                    and register not in self._kept:
                self._defined.discard(register)
                self._live[type(register)] -= 1
        for register in node.writes:
            if register not in self._defined and self._uses.get(register, 0):
                self._defined.add(register)
                self._live[type(register)] += 1
        for (other, _), latency in self._after[number].items():
            self._waiting[other] -= 1
            self._earliest[other] = max(self._earliest[other], cycle + latency)
            if not self._waiting[other]:
                heappush(self._later, (self._earliest[other], self._ranks[other]))
