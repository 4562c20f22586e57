"""List scheduling: operations without control flow, ordered by critical path."""

from collections import Counter
from collections.abc import Iterator, Sequence

from hdl.config import Config
from hdl.isa import Slot
from sim.compiler.machine.ir import WRITTEN, MReg, Op, Register, SReg, VReg
from sim.compiler.machine.schedule.dependences import Graph, Results, block_graph
from sim.compiler.machine.schedule.resources import Node, Table

__all__ = ["PRESSURE", "heights", "schedule_block", "single_writes"]

PRESSURE: dict[type, int] = {VReg: 26, MReg: 5, SReg: 22}
"""Limit of the live registers of each kind. At this limit, an operation that needs another register
no longer moves in front of earlier operations."""


def heights(graph: Graph) -> list[int]:
    """Return the length of the critical path from each operation to the end of the block."""
    found = [0] * len(graph.nodes)
    for number in reversed(range(len(found))):
        node = graph.nodes[number]
        found[number] = max([node.latency, *(
            latency + found[other] for (other, _), latency in graph.after[number].items())])
    return found


def schedule_block(ops: Sequence[Op], config: Config, last: Op | None = None, *,
                   ahead: bool = True, crowded: bool = False,
                   outstanding: int | None = None) -> list[list[tuple[Slot, Op]]]:
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
    """
    # In a block that starts transfers, or has a push with a fence, early pushes keep the array from
    # waiting for the core.
    eager = any(op.fence is not None for op in ops)
    nodes = [Node.of(op, config, eager=eager)
             for op in (*ops, *([last] if last is not None else []))]
    results = None if outstanding is None or eager else Results(config.array_latency, outstanding)
    graph = block_graph(nodes, paced=eager, results=results)
    if last is not None:
        for number in range(len(nodes) - 1):
            graph.edge(number, len(nodes) - 1, 0)
    times = _Scheduler(graph, ahead, 2 if crowded else 1).run()
    rows: dict[int, list[tuple[Slot, Op]]] = {}
    for number, (slot, cycle) in enumerate(times):
        rows.setdefault(cycle, []).append((slot, nodes[number].op))
    return [rows[cycle] for cycle in sorted(rows)]


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


class _Scheduler:
    """List scheduling of one block, cycle by cycle."""

    def __init__(self, graph: Graph, ahead: bool, part: int) -> None:
        self._limits = {kind: limit // part for kind, limit in PRESSURE.items()}
        self._graph = graph
        self._ahead = ahead
        self._table = Table()
        self._priorities = [(-height if ahead else 0, number)
                            for number, height in enumerate(heights(graph))]
        self._waiting = [len(before) for before in graph.before]
        self._earliest = [graph.earliest.get(number, 0) for number in range(len(graph.nodes))]
        self._ready = [number for number, waiting in enumerate(self._waiting) if not waiting]
        self._done = [False] * len(graph.nodes)
        self._next = 0
        self._uses: dict[Register, int] = {}
        self._defined: set[Register] = set()
        self._live: dict[type, int] = dict.fromkeys(PRESSURE, 0)
        written: set[Register] = set()
        for node in graph.nodes:
            for register in node.reads:
                self._uses[register] = self._uses.get(register, 0) + 1
                if register not in written and register not in self._defined:
                    self._defined.add(register)
                    self._live[type(register)] += 1
            written.update(node.writes)
        # A register that is read before it is written is a variable, and is live after the block.
        self._kept = self._defined & written

    def run(self) -> list[tuple[Slot, int]]:
        """Return the slot and cycle of each operation."""
        cycle, left = 0, len(self._graph.nodes)
        while left:
            placed = self._cycle(cycle)
            left -= placed
            cycle += 1
            if not placed and self._ready:
                cycle = max(cycle, min(self._earliest[number] for number in self._ready))
        scheduled = self._table.scheduled
        return [(scheduled[number][1], scheduled[number][2]) for number in range(len(scheduled))]

    def _cycle(self, cycle: int) -> int:
        """Place the operations that fit into a cycle, including those that become ready in it.

        Returns the number of operations placed.
        """
        placed = 0
        progress = True
        while progress:
            progress = False
            for number in sorted((number for number in self._ready
                                  if self._earliest[number] <= cycle),
                                 key=self._priorities.__getitem__):
                if not self._allowed(number):
                    continue
                node = self._graph.nodes[number]
                slot = self._table.room(node, cycle)
                if slot is not None:
                    self._table.put(number, node, slot, cycle)
                    self._schedule(number, cycle)
                    placed += 1
                    progress = True
        return placed

    def _allowed(self, number: int) -> bool:
        """Return whether operation ``number`` may be scheduled now.

        It may if it is the first operation that is not scheduled yet. Any other operation would
        move in front of that one; it may if this is allowed and needs no register above the limit.
        """
        while self._next < len(self._done) and self._done[self._next]:
            self._next += 1
        if number == self._next:
            return True
        if not self._ahead:
            return False
        node = self._graph.nodes[number]
        for register in node.writes:
            kind = type(register)
            if self._live[kind] >= self._limits[kind] and not any(
                    type(other) is kind and self._uses[other] == 1 for other in node.reads):
                return False
        return True

    def _schedule(self, number: int, cycle: int) -> None:
        node = self._graph.nodes[number]
        self._ready.remove(number)
        self._done[number] = True
        for register in node.reads:
            self._uses[register] -= 1
            if not self._uses[register] and register in self._defined - self._kept:
                self._defined.discard(register)
                self._live[type(register)] -= 1
        for register in node.writes:
            if register not in self._defined and self._uses.get(register, 0):
                self._defined.add(register)
                self._live[type(register)] += 1
        for (other, _), latency in self._graph.after[number].items():
            self._waiting[other] -= 1
            self._earliest[other] = max(self._earliest[other], cycle + latency)
            if not self._waiting[other]:
                self._ready.append(other)
