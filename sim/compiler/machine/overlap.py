"""Chooses how the iterations of an innermost loop overlap."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

from hdl.config import Config
from hdl.isa import ScalarOp
from sim.compiler.machine.ir import (
    ZERO,
    Block,
    Condition,
    Loop,
    LoopVariable,
    Op,
    Register,
    SReg,
    operations,
    scalar_operation,
)
from sim.compiler.machine.registers.coloring import COLORS
from sim.compiler.machine.schedule.dependences import (
    Graph,
    block_graph,
    carried,
    heights,
    is_barrier,
    loop_graph,
)
from sim.compiler.machine.schedule.modulo import (
    Modulo,
    feasible_interval,
    least_interval,
    modulo_schedule,
    pressure,
)
from sim.compiler.machine.schedule.pattern import Pattern
from sim.compiler.machine.schedule.pipeline import Pipeline, plan_pipeline
from sim.compiler.machine.schedule.resources import Node, follows
from sim.compiler.machine.schedule.straight import single_writes

__all__ = ["Usage", "forget", "overlap"]

_OPERATIONS = 256
"""A loop with more operations is not pipelined: enough of them overlap within one iteration."""
_SHARE = 4
"""A pipelined loop takes at most 1 / ``_SHARE`` of instruction memory."""
_TRIES = 12
"""Number of initiation intervals to try before giving up."""
_COUNTERS = 3
"""Number of scalar registers that are reserved for counters of loops."""
_ADD = scalar_operation(ScalarOp.ADD)
_SEARCHES: "dict[Hashable, _Search]" = {}
"""Searches for modulo schedules, by all that they depend on, until `forget` is called."""


class Usage:
    """Positions at which code uses each register.

    A position is the number of an operation or condition in the order of the code.
    """

    def __init__(self, block: Block) -> None:
        self._reads: Counter[Register] = Counter()
        self._extent: dict[Register, tuple[int, int]] = {}
        self._loops: dict[int, tuple[int, int]] = {}
        self._position = 0
        self._walk(block)

    def read_elsewhere(self, loop: Loop) -> set[Register]:
        """Return the registers that the loop writes and that code outside of its body reads."""
        inside = Counter(register for op in operations(loop.body) for register in op.reads)
        return {register for op in operations(loop.body) for register in op.writes
                if self._reads[register] > inside[register]}

    def capacity(self, loop: Loop) -> dict[type, int]:
        """Return how many registers of each kind may hold values that the loop's body computes.

        These are all registers but two groups: those reserved for counters, and those that are
        written before the loop, read in it or after it, and not changed by its body.
        """
        start, _ = self._loops[id(loop)]
        written = {register for op in operations(loop.body) for register in op.writes}
        free = {kind: len(colors) for kind, colors in COLORS.items()}
        free[SReg] -= _COUNTERS
        for register, (first, last) in self._extent.items():
            if first < start <= last and register not in written:
                free[type(register)] -= 1
        return free

    def _walk(self, block: Block) -> None:
        for item in block:
            if isinstance(item, Op):
                self._use(item.reads, item.writes)
            elif isinstance(item, Loop):
                self._loop(item)
            else:
                self._condition(item.condition)
                self._walk(item.then)
                self._walk(item.otherwise)

    def _loop(self, loop: Loop) -> None:
        if isinstance(loop.count, SReg):
            self._use([loop.count])
        start = self._position
        self._walk(loop.body)
        if loop.again is not None:
            self._condition(loop.again)
        self._loops[id(loop)] = start, self._position
        for op in operations(loop.body):
            for register in (*op.reads, *op.writes):
                first, _ = self._extent[register]
                if first < start:
                    self._extent[register] = first, self._position
        self._position += 1

    def _condition(self, condition: Condition) -> None:
        self._use(register for register in (condition.a, condition.b)
                  if isinstance(register, SReg) and register is not ZERO)

    def _use(self, reads: Iterable[Register], writes: Iterable[Register] = ()) -> None:
        reads = list(reads)
        self._reads.update(reads)
        for register in (*reads, *writes):
            first, _ = self._extent.get(register, (self._position, 0))
            self._extent[register] = first, self._position
        self._position += 1


def overlap(loop: Loop, config: Config, usage: "Usage", numbers: Iterator[int]) -> Pipeline | None:
    """Return a pipeline for the loop, or None if no pipeline is possible or worthwhile.

    There is none if the loop contains control flow, or operations past which no access to memory
    may move. ``usage`` tells where the whole code, of which the loop is a part, uses registers;
    ``numbers`` yields the numbers of new registers.
    """
    ops = [item for item in loop.body if isinstance(item, Op)]
    if loop.count is None or len(ops) != len(loop.body) or not 0 < len(ops) <= _OPERATIONS \
            or any(is_barrier(op) for op in ops):
        return None
    moving = [register for register, _ in loop.steps]
    ops = single_writes(_own_offsets(ops, moving, numbers), numbers)
    nodes = [Node.of(op, config, moving) for op in ops]
    kept = usage.read_elsewhere(loop) | carried(nodes)
    number = loop.count if isinstance(loop.count, int) else None
    pattern = Pattern(nodes)
    key = pattern.key, pattern.numbers((loop.variable,)), pattern.numbers(kept), number
    search = _SEARCHES.get(key)
    if search is None:
        search = _SEARCHES[key] = _Search(nodes, loop.variable, number, kept)
    graph, interval = Graph(nodes), search.interval
    capacity = usage.capacity(loop)

    def new(kind: type[Register]) -> Register:
        return kind(next(numbers))

    for _ in range(_TRIES):
        if interval is None or interval > search.longest:
            return None
        schedule = search.schedule(interval)
        if schedule is not None and _fits(pressure(graph, schedule), capacity):
            pipeline = plan_pipeline(graph, schedule, loop.steps, kept, new,
                                     power=number is None)
            bundles = (2 * pipeline.lead + 2 * pipeline.unroll) * interval
            if bundles <= config.imem_bundles // _SHARE and _fits(
                    _registers(pipeline), capacity):
                return pipeline
        interval += max(1, interval // 8)
    return None


def forget() -> None:
    """Free what `overlap` has kept."""
    _SEARCHES.clear()


class _Search:
    """Search for modulo schedules of a loop; the parameters are those of `loop_graph`.

    Attributes
    ----------
    longest : int
        Length of the longest path of dependences within an iteration, in cycles.
    interval : int or None
        The least initiation interval to try; None if there is none up to ``longest``.
    """

    def __init__(self, nodes: list[Node], variable: LoopVariable, count: int | None,
                 kept: set[Register]) -> None:
        self._graph = loop_graph(nodes, variable, count, kept)
        self._schedules: dict[int, Modulo | None] = {}
        self.longest = max(heights(block_graph(nodes)))
        low = least_interval(nodes)
        self.interval = None if low > self.longest else feasible_interval(
            self._graph, low, self.longest)

    def schedule(self, interval: int) -> Modulo | None:
        """Return a modulo schedule with an initiation interval; None if none is found."""
        if interval not in self._schedules:
            self._schedules[interval] = modulo_schedule(self._graph, interval)
        return self._schedules[interval]


def _fits(needed: dict[type, int], capacity: dict[type, int]) -> bool:
    return all(needed[kind] <= capacity[kind] for kind in needed)


def _registers(pipeline: Pipeline) -> dict[type, int]:
    """Count the registers of each kind that a pipeline needs, including its `Pipeline.copies`."""
    needed = pressure(pipeline.graph, pipeline.schedule)
    for register, copies in pipeline.copies.items():
        start, end = pipeline.ends[register]
        needed[type(register)] += len(copies) - -(-(end - start) // pipeline.schedule.interval)
    return needed


def _own_offsets(ops: list[Op], moving: list[SReg], numbers: Iterator[int]) -> list[Op]:
    """Change ``ops`` so that all readers of a register of ``moving`` add a constant to it.

    ``moving`` are the registers that the loop advances. A pipeline advances them at other times
    than the loop, and makes up for that in these constants. An operation without such a constant
    reads a copy of the register in the changed code; a new operation makes the copy by adding 0 to
    the register. ``numbers`` yields the numbers of the copies.
    """
    found = []
    for op in ops:
        copies: dict[Register, Register] = {}
        for register in op.reads:
            if isinstance(register, SReg) and register in moving and follows(op, moving) is None:
                copies[register] = SReg(next(numbers))
                found.append(Op(_ADD, (copies[register], register, 0)))
        found.append(op.replaced(copies) if copies else op)
    return found
