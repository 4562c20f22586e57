"""Modulo scheduling: iterations of a loop overlap, and a new one starts every few cycles.

Iterative modulo scheduling (Rau, "Iterative modulo scheduling: an algorithm for software pipelining
loops", MICRO-27, 1994): operations are placed by priority in a table that has one row for each
cycle of the initiation interval. An operation that finds no free slot displaces others, which are
then scheduled again.
"""

import heapq
from collections import Counter
from dataclasses import dataclass

from hdl import isa
from hdl.isa import Slot
from sim.compiler.machine.ir import MReg, Register, SReg, VReg
from sim.compiler.machine.schedule.dependences import Graph, lifetimes
from sim.compiler.machine.schedule.resources import Node, Table

__all__ = ["Modulo", "feasible_interval", "least_interval", "modulo_schedule", "pressure"]

_ATTEMPTS = 6
"""Limit of a search: how often it may place operations, divided by the number of operations."""


@dataclass(frozen=True)
class Modulo:
    """A modulo schedule of the operations of a loop's body.

    Attributes
    ----------
    interval : int
        Initiation interval: cycles from the start of one iteration to that of the next.
    times : list of int
        Cycle of each operation in the iteration that starts in cycle 0.
    slots : list of Slot
        Slot of each operation.
    """

    interval: int
    times: list[int]
    slots: list[Slot]

    @property
    def stages(self) -> int:
        """Number of iterations that are in progress at the same time."""
        return max(self.times) // self.interval + 1


def least_interval(nodes: list[Node], *, immediates: bool = True) -> int:
    """Return the least initiation interval that slots, units and immediates allow for a loop.

    ``nodes`` are the operations of the loop's body, without the branch at its end. The result
    allows for this branch, too. Without ``immediates``, only the branch needs one.
    """
    slots: Counter[tuple[Slot, ...]] = Counter(node.op.operation.slots for node in nodes)
    slots[Slot.S1,] += 1
    units: Counter[str] = Counter()
    for node in nodes:
        if node.unit is not None:
            units[node.unit] += node.busy
    bounds = [*units.values(), 1]
    for wide in list(slots):
        inside = sum(count for narrow, count in slots.items() if set(narrow) <= set(wide))
        bounds.append(-(-inside // len(wide)))
    if not immediates:
        return max(bounds)
    constants = 1 + sum(len(node.constants) for node in nodes)
    distinct = len(set().union(*(node.constants for node in nodes)))
    return max(*bounds, -(-min(constants, distinct + 1) // isa.IMMEDIATES))


def modulo_schedule(graph: Graph, interval: int) -> Modulo | None:
    """Find a modulo schedule with this initiation interval; None if the search fails."""
    heights = _heights(graph, interval)
    if heights is None:
        return None
    found = _Search(graph, interval, heights).run()
    if found is None:
        return None
    _delay_sources(graph, found)
    first = min(cycle for _, _, cycle in found.scheduled.values())
    first -= first % interval
    scheduled = [found.scheduled[number] for number in range(len(graph.nodes))]
    return Modulo(interval, [cycle - first for _, _, cycle in scheduled],
                  [slot for _, slot, _ in scheduled])


def feasible_interval(graph: Graph, low: int, high: int) -> int | None:
    """Return the least interval, from ``low`` to ``high``, for which no recurrence takes too long.

    A recurrence is a closed path of dependences between iterations. Intervals are initiation
    intervals, in cycles. Return None if none suffices.
    """
    if _heights(graph, high) is None:
        return None
    while low < high:
        middle = (low + high) // 2
        if _heights(graph, middle) is None:
            low = middle + 1
        else:
            high = middle
    return low


def _heights(graph: Graph, interval: int) -> list[int] | None:
    """Return the length in cycles of the longest path of dependences from each operation on.

    Return None if a recurrence, a closed path of dependences, takes longer than ``interval``.
    """
    found = [0] * len(graph.nodes)
    limit = sum(max(after.values(), default=0) for after in graph.after)
    for _ in range(len(found) + 1):
        changed = False
        for number in reversed(range(len(found))):
            best = found[number]
            for (other, distance), latency in graph.after[number].items():
                height = found[other] + latency - distance * interval
                if height > best:
                    best = height
            if best > limit:
                return None
            if best != found[number]:
                found[number], changed = best, True
        if not changed:
            return found
    return None


class _Search:
    """Search for a modulo schedule with a given initiation interval."""

    def __init__(self, graph: Graph, interval: int, heights: list[int]) -> None:
        self._graph = graph
        self._interval = interval
        self._heights = heights
        self._table = Table(interval)
        self._table.put_loop()
        self._last: dict[int, int] = {}
        self._queue = [(-height, number) for number, height in enumerate(heights)]
        heapq.heapify(self._queue)

    def run(self) -> Table | None:
        """Place all operations in a table of slots and cycles; None if the search is given up."""
        budget = _ATTEMPTS * len(self._graph.nodes)
        while self._queue:
            _, number = heapq.heappop(self._queue)
            if not budget:
                return None
            budget -= 1
            if not self._schedule(number):
                return None
        return self._table

    def _schedule(self, number: int) -> bool:
        node = self._graph.nodes[number]
        scheduled = self._table.scheduled
        start = 0
        for (other, distance), latency in self._graph.before[number].items():
            if other in scheduled:
                earliest = scheduled[other][2] + latency - distance * self._interval
                if earliest > start:
                    start = earliest
        found = self._table.first_room(node, range(start, start + self._interval))
        if found is None:
            start = max(start, self._last.get(number, -1) + 1)
            for cycle in range(start, start + self._interval):
                _, others = self._table.conflicts(node, cycle)
                if -1 not in others:
                    break
            else:
                return False
            for other in others:
                self._evict(other)
            slot = self._table.room(node, cycle)
            if slot is None:
                return False
        else:
            cycle, slot = found
        self._table.put(number, node, slot, cycle)
        self._last[number] = cycle
        for (other, distance), latency in self._graph.after[number].items():
            if other in scheduled and other != number and \
                    scheduled[other][2] < cycle + latency - distance * self._interval:
                self._evict(other)
        return True

    def _evict(self, number: int) -> None:
        self._table.remove(number)
        heapq.heappush(self._queue, (-self._heights[number], number))


def _delay_sources(graph: Graph, table: Table) -> None:
    """Delay operations that read no register written in the loop, such as loads.

    Their results then occupy registers for fewer cycles. An operation can be delayed until just
    before the operations that use its result. ``table`` has the schedule, and is changed.
    """
    interval = table.period
    written = {register for node in graph.nodes for register in node.writes}
    for number in reversed(range(len(graph.nodes))):
        node, slot, cycle = table.scheduled[number]
        if not node.writes or any(register in written for register in node.reads):
            continue
        latest = [table.scheduled[other][2] - latency + distance * interval
                  for (other, distance), latency in graph.after[number].items() if other != number]
        if not latest:
            continue
        table.remove(number)
        found = table.first_room(node, range(min(latest), cycle, -1))
        if found is not None:
            cycle, slot = found
        table.put(number, node, slot, cycle)


def pressure(graph: Graph, schedule: Modulo) -> dict[type, int]:
    """Count the registers of each kind that the values written in a loop need with ``schedule``."""
    needed: dict[type, int] = {VReg: 0, MReg: 0, SReg: 0}
    ends: dict[Register, tuple[int, int]] = dict(
        lifetimes(graph.nodes, schedule.times, schedule.interval))
    for register, (start, end) in ends.items():
        needed[type(register)] += -(-(end - start) // schedule.interval)
    return needed
