"""Resources of the core: latencies, slots, units, write ports, and immediates of a bundle.

docs/isa.md and docs/core.md (Latencies) define them. Slots and immediates are hard limits of a
bundle. A schedule that ignores any other resource gives the same results, but runs slower: the core
holds a bundle until it can execute it.
"""

from collections.abc import Collection, Set
from dataclasses import dataclass, field

from amaranth.utils import ceil_log2

from hdl import isa
from hdl.config import Config
from hdl.isa import Kind, MiscOp, PushOp, Slot, Unit
from sim.compiler.machine.ir import Op, Register, SReg

__all__ = ["VECTOR_UNITS", "Node", "Table", "follows", "is_inline", "latency", "occupancy"]

_LATENCIES = {**isa.LATENCIES, Unit.SMEM: 2}
"""Latencies of units in which all operations take equally long; those of other units but the array
and the cross-lane unit take a cycle."""
_EAGER = 4
"""Cycles by which an eager operation (`Node.of`) may issue before the array can accept it."""
_REDUCE = (MiscOp.SUM_LANES, MiscOp.MAX_LANES)
_ADDING = ("add", "load", "store")
VECTOR_UNITS = (Unit.SIMPLE, Unit.FLOAT, Unit.TRANSCENDENTAL)
"""Units whose results are written through the write port of a slot."""
_PORTS = {slot: f"{slot}.port" for slot in Slot}
"""For each slot, the name in `Table` of the write port through which its results are written."""


def latency(op: Op, config: Config) -> int:
    """Return an operation's latency: cycles until a bundle can use its result without a wait."""
    operation = op.operation
    if operation.unit is Unit.XLU:
        if operation.op in _REDUCE:
            return config.sublanes + 2 * ceil_log2(config.lanes) + 4
        return config.sublanes + (ceil_log2(config.lanes) + 1) // 2 + 4 + _skipped(op, config)
    if operation.unit is Unit.MXU:
        return config.sublanes + 2
    return _LATENCIES.get(operation.unit, 1)


def _skipped(op: Op, config: Config) -> int:
    """Return how many rows the cross-lane unit skips before the result's first row.

    The number depends on the last operand: a distance, or the sublane to broadcast. Half of the
    sublanes is assumed if that operand is known only at run time.
    """
    distance = op.operands[-1]
    if op.operation.op is MiscOp.ROTATE_SUBLANES:
        if not isinstance(distance, int):
            return config.sublanes // 2
        return config.sublanes - distance if distance else 0
    if op.operation.op is MiscOp.BROADCAST_SUBLANE:
        return distance if isinstance(distance, int) else config.sublanes // 2
    return 0


def occupancy(op: Op, config: Config) -> tuple[str, int] | None:
    """Return the unit that processes the operation row by row, and for how many cycles.

    None for operations of other units.
    """
    unit = op.operation.unit
    if unit is Unit.XLU:
        return "xlu", config.sublanes + _skipped(op, config)
    if unit is Unit.MXU:
        if Slot.POP in op.operation.slots:
            return "pop", config.sublanes
        weights = op.operation.op in (PushOp.WEIGHTS, PushOp.WEIGHTS_T)
        return "weights" if weights else "rows", config.sublanes
    return None


def is_inline(value: int) -> bool:
    """Return whether the word ``value`` fits a scalar source without an immediate."""
    signed = value - ((value & 1 << 31) << 1)
    return isa.INLINE_MIN <= signed <= isa.INLINE_MAX


def follows(op: Op, moving: Collection[Register]) -> SReg | None:
    """Return the register of ``moving`` to which the operation adds a constant; None if none."""
    operands = op.operands
    if len(operands) > 2 and isinstance(operands[2], int) and isinstance(operands[1], SReg) \
            and operands[1] in moving and op.name in _ADDING:
        return operands[1]
    return None


_NO_CONSTANTS: Set[int | str] = frozenset()
_SOURCES = {id(operation): tuple(
    (position, operand.kind in (Kind.SOURCE, Kind.VECTOR_SOURCE))
    for position, operand in enumerate(operation.operands)
    if operand.kind in (Kind.SOURCE, Kind.VECTOR_SOURCE, Kind.IMMEDIATE))
    for operation in isa.OPERATIONS}
"""For each operation, by its identity: the positions of the operands that may be words or symbols,
and whether a word there needs an immediate if it is not inline."""


def _constants(op: Op) -> Set[int | str]:
    found: set[int | str] | None = None
    for position, is_source in _SOURCES[id(op.operation)]:
        value = op.operands[position]
        if isinstance(value, str) or (is_source and isinstance(value, int)
                                      and not is_inline(value)):
            if found is None:
                found = {value}
            else:
                found.add(value)
    return _NO_CONSTANTS if found is None else found


@dataclass(slots=True, eq=False)
class Node:
    """An operation with the resources that its schedule has to respect.

    Attributes
    ----------
    op : Op
    reads, writes : tuple of Register
        Registers that it reads, and that it writes.
    latency : int
        Number of cycles until its results can be read.
    unit : str or None
        The unit that processes it row by row, if any.
    busy : int
        Number of cycles for which it occupies that unit.
    port : bool
        Whether it writes its result through the write port of its slot.
    constants : set
        The immediates that it needs. An operation may add an offset to a scalar register that
        `sim.compiler.machine.schedule.pipeline` advances. The offset then needs an immediate of its
        own, because the pipeline changes it together with the register.
    """

    op: Op
    reads: tuple[Register, ...]
    writes: tuple[Register, ...]
    latency: int
    unit: str | None
    busy: int
    port: bool
    constants: Set[int | str]

    @staticmethod
    def of(op: Op, config: Config, moving: Collection[Register] = (), *,
           eager: bool = False) -> "Node":
        """Make the node of an operation.

        ``moving`` has the scalar registers that `sim.compiler.machine.schedule.pipeline` advances.
        With ``eager``, an operation of the array may issue a few cycles before the array can accept
        it.
        """
        unit, busy = occupancy(op, config) or (None, 0)
        if eager and op.operation.unit is Unit.MXU:
            busy = max(1, busy - _EAGER)
        constants = _constants(op)
        if moving and follows(op, moving) is not None:
            constants = {f"offset {id(op)}"}
        return Node(op, op.reads, op.writes, latency(op, config), unit, busy,
                    op.operation.unit in VECTOR_UNITS, constants)


@dataclass(slots=True)
class Table:
    """The resources that a schedule of overlapping iterations occupies in each cycle.

    The *row* of a cycle is its remainder by ``period``. A resource is a slot, its write port, or a
    unit.

    Attributes
    ----------
    period : int
        Number of cycles after which occupation repeats.
    taken : dict of (str, int) to int
        For each resource and row that is occupied, the number of an operation that occupies it.
    rows : dict of str to int
        For each resource, the rows in which it is occupied: row r if bit r is 1.
    constants : dict of int to list of (int, set)
        For each row, the operations that need immediates: pairs (number, its immediates).
    scheduled : dict of int to (Node, Slot, int)
        For each scheduled operation, its node, slot and cycle.
    """

    period: int
    taken: dict[tuple[str, int], int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    constants: dict[int, list[tuple[int, Set[int | str]]]] = field(default_factory=dict)
    scheduled: dict[int, tuple[Node, Slot, int]] = field(default_factory=dict)

    def _keys(self, node: Node, slot: Slot, cycle: int) -> list[tuple[str, int]]:
        period = self.period
        keys: list[tuple[str, int]] = [(slot, cycle % period)]
        if node.port:
            keys.append((_PORTS[slot], (cycle + node.latency) % period))
        if node.unit is not None:
            keys += self._unit_keys(node, cycle)
        return keys

    def _unit_keys(self, node: Node, cycle: int) -> list[tuple[str, int]]:
        unit, period = node.unit, self.period
        if unit is None:
            return []
        return [(unit, at % period) for at in range(cycle, cycle + node.busy)]

    def _from(self, resource: str, cycle: int) -> int:
        """Return a bit for each cycle of a period: whether a resource is occupied.

        Bit n is for the n-th cycle after ``cycle``.
        """
        rows, period = self.rows.get(resource, 0), self.period
        if not rows:
            return 0
        row = cycle % period
        return rows >> row | (rows & (1 << row) - 1) << period - row

    def room(self, node: Node, cycle: int) -> Slot | None:
        """Return a slot in which the operation ``node`` fits in ``cycle``; None if none is free."""
        if node.constants and not self._immediates(node, cycle):
            return None
        taken, period = self.taken, self.period
        if node.unit is not None and not taken.keys().isdisjoint(self._unit_keys(node, cycle)):
            return None
        at, end = cycle % period, (cycle + node.latency) % period
        for slot in node.op.operation.slots:
            if (slot, at) not in taken and not (node.port and (_PORTS[slot], end) in taken):
                return slot
        return None

    def first_room(self, node: Node, cycles: range) -> tuple[int, Slot] | None:
        """Find the first of ``cycles`` in which the operation ``node`` fits, and a slot for it.

        ``cycles`` are consecutive, in ascending or descending order; only the first ``period`` of
        them are looked at. Return None if the operation fits in none of them.
        """
        slot = self.room(node, cycles[0]) if cycles else None
        if slot is not None:
            return cycles[0], slot
        cycles = cycles[1:self.period]
        if not cycles:
            return None
        # Bit n of these masks stands for the cycle ``first + n``.
        first = min(cycles[0], cycles[-1])
        every = -1
        for slot in node.op.operation.slots:
            occupied = self._from(slot, first)
            if node.port:
                occupied |= self._from(_PORTS[slot], first + node.latency)
            every &= occupied
        if node.unit is not None:
            for at in range(first, first + node.busy):
                every |= self._from(node.unit, at)
        free = (1 << len(cycles)) - 1 & ~every
        while free:
            after = (free & -free if cycles.step > 0 else free).bit_length() - 1
            slot = self.room(node, first + after)
            if slot is not None:
                return first + after, slot
            free ^= 1 << after
        return None

    def _immediates(self, node: Node, cycle: int) -> bool:
        row = cycle % self.period
        others = self.constants.get(row)
        if not others:
            return True
        return len(set(node.constants).union(*(held for _, held in others))) <= isa.IMMEDIATES

    def put(self, number: int, node: Node, slot: Slot, cycle: int) -> None:
        """Put ``node``, operation ``number``, in a slot of a cycle; occupy its resources."""
        self._occupy(number, self._keys(node, slot, cycle))
        if node.constants:
            row = cycle % self.period
            self.constants.setdefault(row, []).append((number, node.constants))
        self.scheduled[number] = node, slot, cycle

    def put_loop(self) -> None:
        """Occupy the slot and the immediate of the branch at the loop's end, in the last row.

        The branch has number -1.
        """
        self._occupy(-1, [(Slot.S1, self.period - 1)])
        self.constants[self.period - 1] = [(-1, {"loop"})]

    def _occupy(self, number: int, keys: list[tuple[str, int]]) -> None:
        taken, rows = self.taken, self.rows
        for key in keys:
            taken[key] = number
            resource, row = key
            rows[resource] = rows.get(resource, 0) | 1 << row

    def remove(self, number: int) -> None:
        """Remove operation ``number``, and free its resources."""
        node, slot, cycle = self.scheduled.pop(number)
        for key in self._keys(node, slot, cycle):
            if self.taken.get(key) == number:
                del self.taken[key]
                resource, row = key
                self.rows[resource] ^= 1 << row
        if node.constants:
            row = cycle % self.period
            self.constants[row] = [pair for pair in self.constants[row] if pair[0] != number]

    def conflicts(self, node: Node, cycle: int) -> tuple[Slot, set[int]]:
        """Return the slot in which the fewest operations keep ``node`` from being put in ``cycle``.

        Also return the numbers of these operations.
        """
        best: tuple[Slot, set[int]] | None = None
        for slot in node.op.operation.slots:
            found = {self.taken[key] for key in self._keys(node, slot, cycle) if key in self.taken}
            if best is None or len(found) < len(best[1]):
                best = slot, found
        assert best is not None
        if node.constants:
            row = cycle % self.period
            held: set[int | str] = set(node.constants)
            for number, constants in self.constants.get(row, ()):
                if number in best[1]:
                    continue
                if len(held | constants) > isa.IMMEDIATES:
                    best[1].add(number)
                else:
                    held |= constants
        return best
