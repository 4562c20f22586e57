"""Orders the operations of devices so that kernels run while values are exchanged."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hdl.config import Config
from hdl.link.format import LinkConfig
from sim.compiler.collectives.shares import SumShares
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.graph.torus import CORES, Torus
from sim.compiler.program.tilings import CONTROL, HELD
from sim.compiler.tiling import standard

__all__ = ["hoist", "overlap"]


def hoist(graph: Graph, config: Config) -> None:
    """Reorder a graph so that exchanges start early, the largest first.

    Operations on which no exchange depends move to the end. There, each is placed by the last
    exchange on which it depends: the later this exchange, the later the operation. Kernels run
    during an exchange until an operation needs the received value. So the operations that prepare a
    small exchange run during a larger one, and those that use a large exchange run during smaller
    ones. A short product that prepares a small exchange moves in front of an earlier product: the
    array then computes that one while the results of the short product leave the array.
    """
    for operation in graph.operations:
        for region in operation.regions if operation.kind in CONTROL else ():
            hoist(region, config)
    exchanges = [operation for operation in graph.operations if operation.kind == "exchange"]
    numbers = {value: number for number, operation in enumerate(graph.operations)
               for value in operation.results}
    found: list[int] = []
    for exchange in sorted(exchanges, key=lambda operation: -operation.result.type.size):
        first = not found
        for number in sorted(_needed(graph, numbers[exchange.result], numbers).difference(found)):
            found.insert(len(found) if first else _place(graph, number, found, config), number)
    order = dict.fromkeys(found)
    waits: list[int] = []
    # For each value, the position in `order` of the last exchange that it depends on; 0 if none.
    last: dict[Value, int] = {}
    positions = {number: position for position, number in enumerate(order, 1)}
    for number, operation in enumerate(graph.operations):
        own = positions[number] if operation.kind == "exchange" else 0
        latest = max(own, *(last.get(value, 0) for value in operation.operands), 0)
        last.update(dict.fromkeys(operation.results, latest))
        waits.append(latest)
    order.update(dict.fromkeys(sorted(range(len(graph.operations)), key=waits.__getitem__)))
    graph.operations = [graph.operations[number] for number in order]


def _place(graph: Graph, number: int, order: Sequence[int], config: Config) -> int:
    """Return the position in ``order`` at which to insert operation ``number``.

    ``order`` has numbers of operations; among them are those on which the new one depends. If the
    new one is a short product, take the first product in ``order`` after the operations that
    compute its operands. The new one is inserted right before that product, unless the result of
    that product is exchanged. In all other cases, the position is the end.
    """
    operation = graph.operations[number]
    if operation.kind != "dot_general" or _array_cycles(operation, config) > config.array_latency:
        return len(order)
    needed, exchanged = set(operation.operands), {
        value for other in graph.operations if other.kind == "exchange" for value in other.operands}
    for position in range(len(order), 0, -1):
        if not needed.isdisjoint(graph.operations[order[position - 1]].results):
            break
    else:
        position = 0
    for later in range(position, len(order)):
        other = graph.operations[order[later]]
        if other.kind == "dot_general":
            return len(order) if other.result in exchanged else later
    return len(order)


def _array_cycles(operation: Operation, config: Config) -> float:
    """Return for how many cycles a product would keep the array busy if it filled all cells."""
    value = operation.operands[0]
    contracted = math.prod(value.shape[at] for at in operation.attributes[
        "lhs_contracting_dimensions"])
    return operation.result.type.size * contracted / config.lanes ** 2


def _needed(graph: Graph, last: int, numbers: dict[Value, int]) -> set[int]:
    """Return the numbers of operation ``last`` and of all operations that it depends on.

    ``numbers`` maps each value to the number of the operation that computes it.
    """
    found, pending = {last}, [last]
    while pending:
        new = {numbers[value] for value in graph.operations[pending.pop()].operands
               if value in numbers} - found
        found |= new
        pending.extend(new)
    return found


def overlap(graph: Graph, torus: Torus, config: Config) -> None:
    """Reorder a pod's graph so that kernels run while values cross the links.

    Operations are chosen one at a time: the one that its cores can start first, by the estimates of
    this module. Among several, exchanges come first, then operations that soon lead to an exchange,
    and then those on the longest path to the end of the graph. All devices execute the same order,
    so they agree on the order of exchanges. A graph with control flow goes to `hoist` instead.
    """
    if any(operation.kind in CONTROL for operation in graph.operations):
        hoist(graph, config)
        return
    if any(operation.kind in ("exchange", "pod_sum") for operation in graph.operations):
        graph.operations = _Scheduler(graph, torus, config).order()


@dataclass
class _Step:
    """An operation to order.

    Attributes
    ----------
    operation : Operation
    cores : tuple of int
        Numbers of the cores that execute it.
    cycles : float
        Estimated cycles of its code on each of these cores.
    travel : float
        Estimated cycles for which an exchange uses its link, or the connection between the cores;
        0 for other operations.
    before : int
        Number of operations that it depends on and that are not ordered yet.
    after : list of _Step
        The operations that depend on it.
    path : float
        Estimated cycles from its start to the end of the graph.
    soon : float
        Estimated cycles of kernels from its start to the next exchange that depends on it.
    is_early : bool
        Whether it is an early sum (`sim.compiler.passes.join_sums`), or such a sum depends on it.
    """

    operation: Operation
    cores: tuple[int, ...]
    cycles: float
    travel: float
    before: int = 0
    after: "list[_Step]" = field(default_factory=list)
    path: float = 0
    soon: float = math.inf
    is_early: bool = False


class _Scheduler:
    """Orders a graph's operations by a rough simulation of both cores of a chip."""

    _KERNEL = 60
    """Cycles of a kernel that do not depend on its size."""
    _SOON = 1500
    """An operation leads to an exchange soon if `_Step.soon` is at most this number of cycles."""
    _LEAST = 1000
    """Kernels run during a sum only if they take at least this number of cycles in all."""
    _LATENCY = 150
    """Cycles from the start of an exchange to the first vector's arrival."""

    def __init__(self, graph: Graph, torus: Torus, config: Config) -> None:
        self._graph, self._torus, self._config = graph, torus, config
        link = LinkConfig()
        self._link_cycles = config.sublanes * config.row_bytes * link.rate_cycles / (
            link.rate_flits * max(config.link_bytes, 1))
        self._live = self._cores()
        self._steps = self._made()
        self._clock = [0.0] * CORES
        # When each value is there, by core, and when each link is free.
        self._ready: dict[tuple[Value, int], float] = {}
        self._free: dict[object, float] = {}

    def order(self) -> list[Operation]:
        """Return the graph's operations in the new order."""
        waiting = [step for step in self._steps if not step.before]
        found: list[_Step] = []
        while waiting:
            chosen = min(waiting, key=lambda step: (
                not step.is_early, self._wait(step), step.operation.kind != "exchange",
                step.soon > self._SOON, -step.path))
            waiting.remove(chosen)
            self._run(chosen)
            found.append(chosen)
            for step in chosen.after:
                step.before -= 1
                if not step.before:
                    waiting.append(step)
        assert len(found) == len(self._steps)
        self._mark(found)
        return [step.operation for step in found]

    def _mark(self, steps: Sequence[_Step]) -> None:
        """Set the attribute ``meanwhile`` of sums: cycles of the kernels that may run during a sum.

        These are the kernels of the operations after the sum, up to the first one that needs its
        result or another core. The attribute is missing if they take few cycles.
        """
        for number, step in enumerate(steps):
            if step.operation.kind != "pod_sum":
                continue
            results, cycles = {*step.operation.results}, 0.0
            for later in steps[number + 1:]:
                if (later.operation.kind in ("exchange", "pod_sum", "by_device")
                        or not results.isdisjoint(later.operation.operands)):
                    break
                cycles += later.cycles
            if cycles >= self._LEAST:
                step.operation.attributes["meanwhile"] = cycles

    def _wait(self, step: _Step) -> float:
        """Return for how many cycles cores have to wait before they can start an operation."""
        return max((max(0.0, self._start(step, core) - self._clock[core]) for core in step.cores),
                   default=0.0)

    def _start(self, step: _Step, core: int) -> float:
        return max((self._ready.get((value, core), 0.0) for value in step.operation.operands),
                   default=0.0)

    def _run(self, step: _Step) -> None:
        for core in step.cores:
            self._clock[core] = max(self._clock[core], self._start(step, core)) + step.cycles
        sums = step.operation.kind == "pod_sum"
        for core in range(CORES):
            end = self._clock[core] if core in step.cores else self._start(step, core)
            if sums:
                end += self._sum_cycles(step.operation)
            if step.travel and core in step.cores:
                # The cores of a chip share its links.
                way = self._route(step.operation)
                end = self._free[way] = max(end, self._free.get(way, 0.0)) + step.travel
                end += self._LATENCY
            self._ready.update(dict.fromkeys(
                ((value, core) for value in step.operation.results), end))

    def _route(self, operation: Operation) -> tuple[object, ...]:
        way = operation.attributes.get("way", 1)
        return self._torus.ring(operation.attributes.get("sources", (1, 0)), way), way

    def _cores(self) -> dict[Value, set[int]]:
        """Return, for each value, the numbers of the cores that need it."""
        live: dict[Value, set[int]] = {value: set(range(CORES)) for value in self._graph.outputs}
        for operation in reversed(self._graph.operations):
            wanted = set().union(*(live.get(value, ()) for value in operation.results))
            if operation.kind in ("by_device", "exchange"):
                if operation.kind == "exchange":
                    wanted |= self._movers(operation)
                for device, value in enumerate(operation.operands):
                    core, *_ = self._torus.place(device)
                    live.setdefault(value, set()).update({core} & wanted)
            else:
                for value in operation.operands:
                    live.setdefault(value, set()).update(wanted)
        return live

    def _movers(self, operation: Operation) -> set[int]:
        """Return the numbers of the cores that send a value in an exchange."""
        sources = operation.attributes.get("sources", (1, 0))
        return {self._torus.place(device)[0] for device, source in enumerate(sources)
                if device != source}

    def _made(self) -> list[_Step]:
        makers: dict[Value, _Step] = {}
        steps = []
        for operation in self._graph.operations:
            exchanges = operation.kind == "exchange"
            wanted = self._movers(operation) if exchanges else set().union(
                *(self._live.get(value, ()) for value in operation.results))
            step = _Step(operation, tuple(sorted(wanted)), self._cycles(operation),
                         self._travel(operation) if exchanges else 0.0)
            for found in _distinct(makers[value] for value in operation.operands
                                   if value in makers):
                step.before += 1
                found.after.append(step)
            makers.update(dict.fromkeys(operation.results, step))
            steps.append(step)
        for step in reversed(steps):
            sums = step.operation.kind == "pod_sum"
            step.path = (step.cycles + step.travel
                         + (self._sum_cycles(step.operation) if sums else 0.0)
                         + max((later.path for later in step.after), default=0.0))
            step.is_early = "early" in step.operation.attributes or any(
                later.is_early for later in step.after)
            step.soon = step.cycles + min(
                (0.0 if later.travel else later.soon for later in step.after), default=math.inf)
        return steps

    def _vectors(self, values: Iterable[Value]) -> int:
        return sum(standard(value.shape, self._config).vectors for value in values
                   if value.type.size)

    def _travel(self, operation: Operation) -> float:
        vectors = self._vectors(operation.results)
        if self._route(operation)[0] == "core":
            return vectors * self._config.sublanes
        return vectors * self._link_cycles

    def _sum_cycles(self, operation: Operation) -> float:
        shape = self._torus.width, self._torus.height
        return SumShares.of(self._config, shape, self._vectors(operation.operands)).cycles(
            self._config)

    def _cycles(self, operation: Operation) -> float:
        """Estimate the cycles of an operation's code on a core."""
        kind = operation.kind
        if kind in HELD or kind in ("by_device", "reshape") or not operation.results[0].type.size:
            return 0
        if kind == "exchange":
            return 10
        if kind == "pod_sum":
            # Kernels run behind it.
            return 0
        if kind == "dot_general":
            return 300 + 1.5 * _array_cycles(operation, self._config)
        if kind == "dynamic_update_slice":
            return self._KERNEL + 2 * self._vectors(operation.operands[1:2])
        if kind in ("slice", "dynamic_slice"):
            return self._KERNEL + 2 * self._vectors(operation.results)
        return self._KERNEL + self._vectors((*operation.operands, *operation.results))


def _distinct(steps: Iterable[_Step]) -> list[_Step]:
    found: dict[int, _Step] = {}
    for step in steps:
        found[id(step)] = step
    return list(found.values())
