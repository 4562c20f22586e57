"""Transformations of loops: short loops are unrolled, and invariant operations move out of loops.

- A short loop within a loop becomes straight code, so that iterations of the outer loop can
  overlap. So does a short loop that uses the cross-lane unit, so that its iterations overlap.
- An operation whose sources a loop does not change is *invariant*. It moves out of the loop, to
  the code before it, as long as enough registers are free.
- If the constants of a loop need more immediates than its bundles have, some of them move to scalar
  registers.
"""

from collections import Counter
from itertools import count

from hdl import isa
from hdl.isa import Kind, ScalarOp, Unit
from sim.compiler.machine.ir import (
    ZERO,
    Access,
    Block,
    Branch,
    Index,
    Loop,
    LoopVariable,
    MachineCode,
    MReg,
    Op,
    Register,
    SReg,
    VReg,
    operations,
    scalar_operation,
)
from sim.compiler.machine.schedule.dependences import is_barrier
from sim.compiler.machine.schedule.modulo import least_interval
from sim.compiler.machine.schedule.resources import Node, is_inline

__all__ = ["MOST_ITERATIONS", "hoist", "sizes", "unroll"]

_SHORT = 8, 48
"""Maximum number of iterations of a loop that is unrolled, and of operations in all of them."""
MOST_ITERATIONS = 32
"""Maximum number of iterations of a loop that is unrolled, in code of several kernels. In that of
one kernel, the maximum is less."""
_INVARIANTS: dict[type, int] = {VReg: 10, MReg: 2, SReg: 6}
"""Maximum number of registers, by kind, for results of operations moved out of a nest of loops."""
_PURE = (Unit.SCALAR, Unit.SIMPLE, Unit.FLOAT, Unit.TRANSCENDENTAL)
_MEMORY = (Unit.VMEM, Unit.SMEM)
_ADD = scalar_operation(ScalarOp.ADD)


def unroll(code: MachineCode, *, joined: int | None = None) -> MachineCode:
    """Return the code with short innermost loops unrolled.

    In the code of one kernel, only loops that are within other loops, or use the cross-lane unit,
    are unrolled. In the code of several kernels, all short loops are, because their iterations can
    overlap with the code before and after them. For such code, ``joined`` is the maximum number of
    operations of a loop that is unrolled, in all its iterations together.
    """
    limits = _SHORT if joined is None else (MOST_ITERATIONS, joined)
    reads = Counter(register for op in operations(code.body) for register in op.reads)
    writes = Counter(register for op in operations(code.body) for register in op.writes)
    _count_control(code.body, reads)
    numbers = count(code.registers + 1)

    def block(items: Block, inside: bool) -> Block:
        found: Block = []
        for item in items:
            if isinstance(item, Op):
                found.append(item)
            elif isinstance(item, Branch):
                found.append(Branch(item.condition, block(item.then, inside),
                                    block(item.otherwise, inside)))
            else:
                body = block(item.body, True)
                if _is_short(item, body, limits) and (
                        joined is not None or inside or _crosses(body)):
                    found += copies(item, body)
                else:
                    found.append(Loop(item.variable, item.count, body, item.again))
        return found

    def copies(loop: Loop, body: Block) -> Block:
        ops = [op for op in body if isinstance(op, Op)]
        local = _local(ops, reads, writes)
        found: Block = []
        assert isinstance(loop.count, int)
        for iteration in range(loop.count):
            names: dict[Register, Register] = {
                register: type(register)(next(numbers)) for register in local}
            found += [_at(op, loop.variable, iteration).replaced(names) for op in ops]
        return found

    body = block(code.body, False)
    return MachineCode(code.config, body, next(numbers))


def sizes(block: Block) -> set[int]:
    """Return the sizes of the loops that `unroll` may unroll if ``joined`` is large enough.

    The size of a loop is the number of operations in all its iterations together.
    """
    found: set[int] = set()
    for item in block:
        if isinstance(item, Loop):
            size = _size(item)
            found |= sizes(item.body) | ({size} if size is not None else set())
        elif isinstance(item, Branch):
            found |= sizes(item.then) | sizes(item.otherwise)
    return found


def _size(loop: Loop) -> int | None:
    """Return the size of a loop (`sizes`); None if it is never unrolled."""
    if not isinstance(loop.count, int) or loop.count > MOST_ITERATIONS:
        return None
    total = 0
    for item in loop.body:
        size = 1 if isinstance(item, Op) else _size(item) if isinstance(item, Loop) else None
        if size is None:
            return None
        total += size
    return loop.count * total


def _count_control(block: Block, reads: "Counter[Register]") -> None:
    """Add to ``reads`` how often loops, branches and indexes of a block read each register."""
    for item in block:
        if isinstance(item, Op):
            if item.access is not None:
                reads.update(term for term in item.access.index.terms if isinstance(term, SReg))
            continue
        conditions = [item.condition] if isinstance(item, Branch) else \
            [item.again] if item.again is not None else []
        for condition in conditions:
            reads.update(value for value in (condition.a, condition.b) if isinstance(value, SReg))
        if isinstance(item, Loop):
            if isinstance(item.count, SReg):
                reads[item.count] += 1
            _count_control(item.body, reads)
        else:
            _count_control(item.then, reads)
            _count_control(item.otherwise, reads)


def _is_short(loop: Loop, body: Block, limits: tuple[int, int]) -> bool:
    return isinstance(loop.count, int) and loop.count <= limits[0] and \
        loop.count * len(body) <= limits[1] and all(isinstance(item, Op) for item in body)


def _crosses(body: Block) -> bool:
    """Return whether the block uses the cross-lane unit."""
    return any(isinstance(item, Op) and item.operation.unit is Unit.XLU for item in body)


def _local(ops: list[Op], reads: "Counter[Register]", writes: "Counter[Register]") \
        -> list[Register]:
    """Return the registers that only ``ops`` use, and write once, before all reads.

    ``reads`` and ``writes`` count the reads and writes of each register in the whole code.
    """
    inside: Counter[Register] = Counter()
    early: set[Register] = set()
    written: list[Register] = []
    for op in ops:
        used = [*op.reads, *([term for term in op.access.index.terms if isinstance(term, SReg)]
                             if op.access is not None else [])]
        inside.update(used)
        early.update(register for register in used if register not in written)
        written += op.writes
    return [register for register in written if writes[register] == 1
            and register not in early and inside[register] == reads[register]]


def _at(op: Op, variable: LoopVariable, iteration: int) -> Op:
    """Return ``op`` with the loop variable ``variable`` replaced by the number ``iteration``."""
    if op.access is None or variable not in op.access.index.terms:
        return op
    index = op.access.index
    terms = {term: factor for term, factor in index.terms.items() if term is not variable}
    moved = Index(index.constant + iteration * index.terms[variable], terms)
    return Op(op.operation, op.operands, Access(op.access.buffer, moved))


def hoist(code: MachineCode, *, constants: int, invariants: bool) -> MachineCode:
    """Return the code with operations and constants moved out of loops.

    Call this after `sim.compiler.machine.addresses.lower_addresses`.

    Parameters
    ----------
    code : MachineCode
    constants : int
        Number of scalar registers that each nest of loops may use for constants.
    invariants : bool
        Whether to move invariant operations: those whose sources the loop does not change.
    """
    writes = Counter(register for op in operations(code.body) for register in op.writes)
    _count_steps(code.body, writes)
    numbers = count(code.registers + 1)
    body = _Hoisting(code, writes, numbers, constants, invariants).top(code.body)
    return MachineCode(code.config, body, next(numbers))


def _count_steps(block: Block, writes: "Counter[Register]") -> None:
    """Add 1 to the count in ``writes`` of each register that a loop of the block advances."""
    for item in block:
        if isinstance(item, Loop):
            writes.update(register for register, _ in item.steps)
            _count_steps(item.body, writes)
        elif isinstance(item, Branch):
            _count_steps(item.then, writes)
            _count_steps(item.otherwise, writes)


class _Hoisting:
    """Moves invariant operations and constants out of loops, from the innermost loop outward."""

    def __init__(self, code: MachineCode, writes: "Counter[Register]", numbers: "count[int]",
                 constants: int, invariants: bool) -> None:
        self._config = code.config
        self._writes = writes
        self._numbers = numbers
        self._constants = constants
        self._invariants = invariants
        self._left: dict[type, int] = {}
        self._held: dict[int, SReg] = {}

    def top(self, block: Block) -> Block:
        """Return a block that is not within a loop, with its loops transformed."""
        found: Block = []
        for item in block:
            if isinstance(item, Loop):
                self._left = dict(_INVARIANTS) if self._invariants else dict.fromkeys(
                    _INVARIANTS, 0)
                self._held = {}
                front, loop = self._loop(item)
                found += [Op(_ADD, (register, ZERO, value))
                          for value, register in self._held.items()]
                found += [*front, loop]
            elif isinstance(item, Branch):
                found.append(Branch(item.condition, self.top(item.then), self.top(item.otherwise)))
            else:
                found.append(item)
        return found

    def _loop(self, loop: Loop) -> tuple[list[Op], Loop]:
        """Return the operations that move out of a loop, and the loop without them."""
        body = self._inside(loop.body)
        ops = [item for item in body if isinstance(item, Op)]
        if len(ops) == len(body):
            body = list(self._immediates(ops, loop))
        front: list[Op] = []
        written = {register for op in operations(body) for register in op.writes}
        written |= {register for register, _ in loop.steps}
        stores = {op.access.buffer for op in operations(body)
                  if op.access is not None and op.operation.unit in _MEMORY and not op.writes}
        fixed = any(map(is_barrier, operations(body)))
        rest: Block = []
        for item in body:
            if isinstance(item, Op) and self._moves(item, written) and not (
                    item.operation.unit in _MEMORY and (
                        fixed or item.access is None or item.access.buffer in stores)):
                front.append(item)
                written -= set(item.writes)
                for register in item.writes:
                    self._left[type(register)] -= 1
            else:
                rest.append(item)
        return front, Loop(loop.variable, loop.count, rest, loop.again, loop.steps)

    def _inside(self, block: Block) -> Block:
        found: Block = []
        for item in block:
            if isinstance(item, Loop):
                front, loop = self._loop(item)
                for op in front:
                    for register in op.writes:
                        self._left[type(register)] += 1
                found += [*front, loop]
            elif isinstance(item, Branch):
                found.append(Branch(item.condition, self._inside(item.then),
                                    self._inside(item.otherwise)))
            else:
                found.append(item)
        return found

    def _moves(self, op: Op, written: set[Register]) -> bool:
        if op.operation.unit not in _PURE + _MEMORY or not op.writes:
            return False
        [register] = op.writes
        return self._left[type(register)] > 0 and self._writes[register] == 1 \
            and not any(source in written for source in op.reads)

    def _immediates(self, ops: list[Op], loop: Loop) -> list[Op]:
        """Replace constants by scalar registers if the loop's bundles have too few immediates.

        ``ops`` are the operations of the body of ``loop``. Return them with the replacements.
        """
        moving = [register for register, _ in loop.steps]
        nodes = [Node.of(op, self._config, moving) for op in ops]
        uses: Counter[int] = Counter()
        for node in nodes:
            if node.op.access is None:
                uses.update(value for value in node.constants if isinstance(value, int))
        if not uses:
            return ops
        needed = 1 + len(uses) + sum(len(node.constants) for node in nodes
                                     if node.op.access is not None)
        excess = needed - (isa.IMMEDIATES - 1) * least_interval(nodes, immediates=False)
        chosen = [value for value, _ in uses.most_common(max(0, excess))]
        table = {}
        for value in chosen:
            if value not in self._held:
                if len(self._held) >= self._constants:
                    continue
                self._held[value] = SReg(next(self._numbers))
            table[value] = self._held[value]
        return [_with_registers(op, table) if op.access is None else op for op in ops]


def _with_registers(op: Op, table: dict[int, SReg]) -> Op:
    if not table:
        return op
    return Op(op.operation, tuple(
        table.get(value, value)
        if operand.kind in (Kind.SOURCE, Kind.VECTOR_SOURCE) and isinstance(value, int)
        and not is_inline(value) else value
        for operand, value in zip(op.operation.operands, op.operands, strict=True)), op.access,
        op.fence)
