"""Dependences between operations of a block, or of a loop's iterations.

An edge from one operation to another has a latency and a distance: the second operation,
``distance`` iterations later, issues at least ``latency`` cycles after the first.

- A read issues at least the writer's latency after the write. A write may share the bundle of an
  earlier read, because a bundle reads before it writes, but not that of an earlier write.
- Accesses to a buffer are ordered unless their indexes differ for certain.
- Operations of the transposer keep their order. So do those of the array, except that weights may
  be pushed before or after pops, and rows before earlier pops while the array has room. Operations
  on semaphores and transfers keep their order, and are ordered with accesses to memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hdl.isa import MiscOp, Slot, Unit
from sim.compiler.machine.ir import Fence, LoopVariable, Op, Register, SReg
from sim.compiler.machine.schedule.resources import Node

__all__ = ["Graph", "Results", "block_graph", "carried", "delay_loads", "heights", "is_barrier",
           "lifetimes", "loop_graph"]

_BARRIERS = (Unit.SEMAPHORE, Unit.OTHER_CORE, Unit.LINKS, Unit.DMA)
_MEMORY = (Unit.VMEM, Unit.SMEM)
_PACE = 2
"""In a paced block (`block_graph`), a load may move in front of at most this number of pushes of
rows."""
_APART = 12
"""Least number of cycles from an operation with a `Fence` to the start of a transfer, if no other
operation of the block with a `Fence` lies between them."""
_Key = tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class Graph:
    """Operations and the edges between them.

    Attributes
    ----------
    nodes : list of Node
    after : list of dict
        For each operation, its outgoing edges: the latency by (other operation, distance).
    before : list of dict
        For each operation, its incoming edges: the latency by (other operation, distance).
    earliest : dict of int to int
        For loads, and for pops whose rows were pushed before the block: the first cycle in which
        the operation may issue, if there is a limit.
    """

    nodes: list[Node]
    after: list[dict[tuple[int, int], int]] = field(default_factory=list)
    before: list[dict[tuple[int, int], int]] = field(default_factory=list)
    earliest: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.after = [{} for _ in self.nodes]
        self.before = [{} for _ in self.nodes]

    def edge(self, first: int, second: int, latency: int, distance: int = 0) -> None:
        """Add an edge from node ``first`` to node ``second``.

        Of edges with the same ends and distance, the longest latency is kept.
        """
        if first == second and not distance:
            return
        if self.after[first].get((second, distance), -1) < latency:
            self.after[first][second, distance] = latency
            self.before[second][first, distance] = latency


def is_barrier(op: Op) -> bool:
    """Return whether accesses to memory must not move past operation ``op``."""
    return op.operation.unit in _BARRIERS


def _is_store(node: Node) -> bool:
    return not node.writes


def _order(first: Node, second: Node) -> int:
    """Return the least number of cycles between two accesses to the same address.

    In the code, ``first`` precedes ``second``.
    """
    return 1 if _is_store(first) else 0


def _ordered_class(op: Op) -> str | None:
    """Return the class of an operation; operations of the same class keep their order.

    The classes are ``array`` and ``transposer``. Return None for other operations.
    """
    if op.operation.unit is Unit.MXU:
        return "array"
    if op.operation.op in (MiscOp.TRANSPOSE_IN, MiscOp.TRANSPOSE_OUT) \
            and Slot.MISC in op.operation.slots:
        return "transposer"
    return None


@dataclass(frozen=True)
class Results:
    """When results of the array can be popped.

    Attributes
    ----------
    latency : int
        Cycles from the push of rows to the earliest useful pop of their results.
    outstanding : int
        Number of results that are not popped yet when a block begins.
    room : int
        Greatest number of results that the array can hold.
    """

    latency: int
    outstanding: int
    room: int


def block_graph(nodes: list[Node], *, paced: bool = False, results: Results | None = None) -> Graph:
    """Build the dependences of the operations ``nodes``, which are executed once, in this order.

    With ``paced``, further edges keep the array busy. A load stays near the pushes of rows that it
    precedes in the code; otherwise, the loads of a long sequence could all move to its front and
    fill all vector registers. A start of a transfer, or a wait for one, stays after the pushes of
    rows that precede it. With ``results``, a pop is delayed until its result is expected:
    operations after it then need not wait for the array. Rows may then also be pushed before
    earlier pops, while the array has room.
    """
    graph = Graph(nodes)
    array = _Array(graph, results)
    writer: dict[Register, int] = {}
    readers: dict[Register, list[int]] = {}
    last: dict[str, int] = {}
    memory = _Memory(graph)
    pace = _Pace(graph, paced)
    for number, node in enumerate(nodes):
        for register in node.reads:
            if register in writer:
                graph.edge(writer[register], number, nodes[writer[register]].latency)
        pace.add(number, node, last.get("array"))
        memory.add(number, node)
        for register in node.writes:
            for reader in readers.pop(register, ()):
                graph.edge(reader, number, 0)
            if register in writer:
                graph.edge(writer[register], number, nodes[writer[register]].latency)
            writer[register] = number
            memory.forget(register)
        for register in node.reads:
            if register not in node.writes:
                readers.setdefault(register, []).append(number)
        kind = _ordered_class(node.op)
        if kind is not None:
            if kind in last and (kind != "array" or results is None):
                graph.edge(last[kind], number, 1)
            last[kind] = number
            if kind == "array" and node.unit is not None:
                # Without this edge, all operands of a long sequence would seem equally urgent.
                if node.unit in last:
                    graph.edge(last[node.unit], number, node.busy)
                last[node.unit] = number
                array.add(number, node.unit)
    return graph


def heights(graph: Graph) -> list[int]:
    """Return the length in cycles of the longest path of dependences from each operation on."""
    found = [0] * len(graph.nodes)
    for number in reversed(range(len(found))):
        node = graph.nodes[number]
        found[number] = max([node.latency, *(
            latency + found[other] for (other, _), latency in graph.after[number].items())])
    return found


def delay_loads(graph: Graph, lead: int) -> None:
    """Set the first cycle in which each load of a block may issue (`Graph.earliest`).

    A load then issues at most ``lead`` cycles before the latest cycle in which it does not lengthen
    the longest path of dependences.

    Without this limit, all loads of a long block could move to its front and fill the vector
    registers, so that more urgent operations have none.
    """
    soonest: list[int] = []
    for number, before in enumerate(graph.before):
        soonest.append(max([graph.earliest.get(number, 0), *(
            soonest[other] + latency for (other, _), latency in before.items())]))
    after = heights(graph)
    end = max((first + rest for first, rest in zip(soonest, after, strict=True)), default=0)
    for number, node in enumerate(graph.nodes):
        if node.op.operation.unit is Unit.VMEM and not _is_store(node):
            graph.earliest[number] = max(0, end - after[number] - lead)


class _Array:
    """Adds edges between the pushes and pops of a block; `add` is called in their order."""

    def __init__(self, graph: Graph, results: Results | None) -> None:
        self._graph, self._results = graph, results
        self._push: int | None = None
        self._rows: list[int] = []
        self._pops: list[int] = []

    def add(self, number: int, unit: str) -> None:
        """Add the edges from earlier pushes and pops to operation ``number``, of unit ``unit``."""
        graph = self._graph
        if unit == "pop":
            if self._rows:
                graph.edge(self._rows[-1], number, 1)
            self._wait(number)
            self._pops.append(number)
            return
        if self._push is not None:
            graph.edge(self._push, number, 1)
        self._push = number
        if unit == "rows":
            self._make_room(number)
            self._rows.append(number)

    def _make_room(self, number: int) -> None:
        """Add an edge to the push ``number`` from the pop that makes room for its results."""
        results, pops = self._results, self._pops
        least = len(pops)
        if results is not None:
            least = min(least, results.outstanding + len(self._rows) + 1 - results.room)
        if least > 0:
            self._graph.edge(pops[least - 1], number, 1)

    def _wait(self, number: int) -> None:
        """Add the edge that delays a pop until its result is expected.

        ``number`` is the number of the pop in its block. The rows of the result were pushed in this
        block or before it.
        """
        results = self._results
        if results is None:
            return
        at = len(self._pops) - results.outstanding
        if at < 0:
            busy = self._graph.nodes[number].busy
            self._graph.earliest[number] = max(0, results.latency + at * busy)
        elif at < len(self._rows):
            self._graph.edge(self._rows[at], number, results.latency)


class _Pace:
    """Adds edges that keep the array busy in a block that starts transfers (a *paced* block)."""

    def __init__(self, graph: Graph, paced: bool) -> None:
        self._graph, self._paced = graph, paced
        self._rows: list[int] = []
        self._transfer: int | None = None

    def add(self, number: int, node: Node, last: int | None) -> None:
        """Add the edges from earlier operations to ``node``, the block's operation ``number``.

        ``last`` is the number of the latest array operation before ``node``, if there is one.
        """
        graph, rows = self._graph, self._rows
        if not self._paced:
            return
        if node.unit == "rows":
            rows.append(number)
            if self._transfer is not None:
                graph.edge(self._transfer, number, 1)
                self._transfer = None
        elif node.op.operation.unit is Unit.VMEM and len(rows) > _PACE:
            graph.edge(rows[-1 - _PACE], number, 0)
        elif node.op.fence is not None and node.op.fence.before and rows:
            # The wait may take long: the array processes the latest rows meanwhile.
            graph.edge(rows[-1], number, 0)
        elif node.op.fence is not None and rows and last is not None:
            # The start holds the core about as long as the array takes for the latest rows.
            graph.edge(last, number, 1)
            graph.nodes[rows[-1]].busy = 1
            self._transfer = number


class _Memory:
    """Adds edges between the accesses to memory of a block; `add` is called in their order.

    Accesses whose indexes have the same terms are compared by their constants. All other accesses
    to a buffer are ordered.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._versions: dict[SReg, int] = {}
        self._accesses: dict[object, dict[_Key, dict[int, list[int]]]] = {}
        self._barrier: int | None = None
        # The last operation with a fence, and the last that later vector accesses must follow.
        self._fence: int | None = None
        self._vector_fence: int | None = None
        self._since: list[int] = []

    def forget(self, register: Register) -> None:
        """Note that a register changes: indexes with its old and new values are not comparable."""
        if isinstance(register, SReg):
            self._versions[register] = self._versions.get(register, 0) + 1

    def add(self, number: int, node: Node) -> None:
        """Add the edges from earlier accesses to ``node``, the block's operation ``number``."""
        barrier = is_barrier(node.op)
        if not barrier and node.op.operation.unit not in _MEMORY:
            return
        if self._barrier is not None:
            self._graph.edge(self._barrier, number, 1)
        if node.op.fence is not None:
            self._add_fence(number, node.op.fence)
            return
        first = self._vector_fence if node.op.operation.unit is Unit.VMEM else self._fence
        if first is not None:
            self._graph.edge(first, number, 1)
        if barrier:
            for other in self._since:
                self._graph.edge(other, number, 1)
            self._since, self._barrier = [], number
            self._fence = self._vector_fence = None
            self._accesses.clear()
            return
        self._since.append(number)
        self._access(number, node)

    def _add_fence(self, number: int, fence: Fence) -> None:
        nodes = self._graph.nodes
        if self._fence is not None:
            # Each transfer holds the core, so rows must be pushed between two of them.
            both = fence.after or not fence.before
            self._graph.edge(self._fence, number, _APART if both else 1)
        for other in self._since:
            access = nodes[other].op.access
            if access is None or access.buffer is None or fence.follows(access):
                self._graph.edge(other, number, 1)
        self._since.append(number)
        self._fence = number
        if fence.before:
            self._vector_fence = number

    def _access(self, number: int, node: Node) -> None:
        assert node.op.access is not None
        index = node.op.access.index
        key = tuple(sorted((term.number, factor, self._versions.get(term, 0)
                            if isinstance(term, SReg) else 0)
                           for term, factor in index.terms.items()))
        groups = self._accesses.setdefault(
            node.op.access.buffer or Unit.SMEM, {})
        nodes = self._graph.nodes
        for other_key, group in groups.items():
            if other_key == key:
                candidates = [group.get(index.constant, [])]
            else:
                candidates = list(group.values())
            for others in candidates:
                for other in others:
                    if (_is_store(node) or _is_store(nodes[other])) and (
                            other_key == key or _may_meet(nodes[other].op, node.op)):
                        self._graph.edge(other, number, _order(nodes[other], node))
        same = groups.setdefault(key, {}).setdefault(index.constant, [])
        if _is_store(node):
            same.clear()
        same.append(number)


def _may_meet(first: Op, second: Op) -> bool:
    """Return whether two accesses may be to the same vector."""
    a, b = first.access, second.access
    assert a is not None
    assert b is not None
    return a.buffer is None or b.buffer is None or a.vectors.overlaps(b.vectors)


def carried(nodes: Sequence[Node]) -> set[Register]:
    """Return the registers that a loop's body reads before it writes them, or as it does."""
    found: set[Register] = set()
    read: set[Register] = set()
    for node in nodes:
        read.update(node.reads)
        found.update(register for register in node.writes if register in read)
    return found


def loop_graph(nodes: list[Node], variable: LoopVariable, count: int | None,
               kept: set[Register]) -> Graph:
    """Build the dependences of a loop's body, which writes each register at most once.

    Parameters
    ----------
    nodes : list of Node
        The body.
    variable : LoopVariable
    count : int or None
        Number of iterations; None if it is known only at run time.
    kept : set of Register
        Registers that must not be renamed from one iteration to the next: those that are read
        outside the loop, and those that are `carried`.
    """
    graph = Graph(nodes)
    writer = {register: number for number, node in enumerate(nodes) for register in node.writes}
    for number, node in enumerate(nodes):
        for register in node.reads:
            if register in writer:
                distance = int(writer[register] >= number)
                graph.edge(writer[register], number, nodes[writer[register]].latency, distance)
    for number, node in enumerate(nodes):
        for register in node.reads:
            if register in kept and register in writer:
                graph.edge(number, writer[register], 0, 1 - int(writer[register] >= number))
    _ordered_iterations(graph)
    accesses = [number for number, node in enumerate(nodes) if node.op.operation.unit in _MEMORY]
    written = {register for register in writer if isinstance(register, SReg)}
    for position, second in enumerate(accesses):
        for first in accesses[:position]:
            _memory_edges(graph, first, second, variable, (count, written))
    return graph


def _ordered_iterations(graph: Graph) -> None:
    """Add edges that keep array operations in order, and likewise transposer operations.

    The edges also order the last operation of an iteration before the first of the next one.
    """
    for kind in ("array", "transposer"):
        members = [number for number, node in enumerate(graph.nodes)
                   if _ordered_class(node.op) == kind]
        for first, second in pairwise(members):
            graph.edge(first, second, 1)
        if len(members) > 1:
            graph.edge(members[-1], members[0], 1, 1)


def _memory_edges(graph: Graph, first: int, second: int, variable: LoopVariable,
                  loop: tuple[int | None, set[SReg]]) -> None:
    """Add edges between two accesses of a loop's body; ``first`` precedes ``second``.

    ``variable`` is the loop's variable. ``loop`` has the number of iterations, or None if it is not
    known, and the scalar registers that the body writes.
    """
    count, written = loop
    a, b = graph.nodes[first], graph.nodes[second]
    at, bt = a.op.access, b.op.access
    assert at is not None
    assert bt is not None
    if a.op.operation.unit is not b.op.operation.unit or at.buffer != bt.buffer \
            or not (_is_store(a) or _is_store(b)):
        return
    comparable = at.index.terms == bt.index.terms and not any(
        isinstance(term, SReg) and term in written for term in at.index.terms)
    step = at.index.terms.get(variable, 0)
    difference = at.index.constant - bt.index.constant
    if comparable and step:
        if difference % step:
            return
        distance = difference // step
        if count is not None and abs(distance) >= count:
            return
        if distance >= 0:
            graph.edge(first, second, _order(a, b), distance)
        else:
            graph.edge(second, first, _order(b, a), -distance)
    elif not comparable or not difference:
        graph.edge(first, second, _order(a, b))
        graph.edge(second, first, _order(b, a), 1)


def lifetimes(nodes: Sequence[Node], times: Sequence[int], period: int) \
        -> Mapping[Register, tuple[int, int]]:
    """Return when each register that a loop's body writes is in use: a range of cycles.

    Parameters
    ----------
    nodes : sequence of Node
        The body.
    times : sequence of int
        Cycle of each operation in the iteration that starts in cycle 0.
    period : int
        Initiation interval, in cycles.

    Returns
    -------
    mapping of Register to (int, int)
        The cycle of the write, and the cycle of the last read; a read in the next iteration counts
        ``period`` cycles later.
    """
    writer = {register: number for number, node in enumerate(nodes) for register in node.writes}
    ends = {register: (times[number], times[number] + 1) for register, number in writer.items()}
    for number, node in enumerate(nodes):
        for register in node.reads:
            if register in writer:
                late = period if writer[register] >= number else 0
                start, end = ends[register]
                ends[register] = start, max(end, times[number] + late)
    return ends
