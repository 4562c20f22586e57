"""Joins kernels that follow each other, so that they are scheduled as one.

Vectors that one kernel frees may be those of another kernel's buffer. So buffers of joined kernels
overlap, and accesses in straight code are compared by their addresses (`by_address`). In a loop,
they are still compared by buffer and index, because a whole loop belongs to one kernel.
"""

from collections.abc import Sequence, Set
from itertools import count

from sim.compiler.machine.ir import (
    ALL_ONES,
    ZERO,
    Access,
    Block,
    Branch,
    Condition,
    Index,
    Loop,
    LoopVariable,
    MachineCode,
    MReg,
    Op,
    Register,
    SReg,
    VmemBuffer,
    VReg,
    operations,
)

__all__ = ["by_address", "join"]


def join(codes: Sequence[MachineCode]) -> MachineCode:
    """Return code with the effect of all ``codes``, executed one after the other.

    All are for the same configuration. In the result, each has registers of its own.
    """
    numbers = count(1)
    body: Block = []
    for code in codes:
        body += _Copy(numbers).block(code.body)
    return MachineCode(codes[0].config, body, next(numbers))


def by_address(code: MachineCode) -> MachineCode:
    """Return the code with buffers that overlap replaced by one that covers all of them.

    Only accesses in straight code name this buffer; a loop of one iteration counts as straight
    code. Accesses in other loops and in branches keep their buffers.
    """
    whole = _whole({op.access.buffer for op in operations(code.body)
                    if op.access is not None and op.access.buffer is not None})

    def straight(block: Block) -> Block:
        found: Block = []
        for item in block:
            if isinstance(item, Op) and item.access is not None and item.access.buffer is not None:
                buffer = whole[item.access.buffer]
                access = Access(buffer, item.access.address - buffer.address,
                                item.access.buffer)
                found.append(Op(item.operation, item.operands, access, item.fence))
            elif isinstance(item, Loop) and item.count == 1:
                found.append(Loop(item.variable, 1, straight(item.body), steps=item.steps,
                                  apart=item.apart))
            else:
                found.append(item)
        return found

    return MachineCode(code.config, straight(code.body), code.registers)


def _whole(buffers: Set[VmemBuffer]) -> dict[VmemBuffer, VmemBuffer]:
    """Map each buffer to the union of all buffers with which it overlaps, also indirectly."""
    found: dict[VmemBuffer, VmemBuffer] = {}
    group: list[VmemBuffer] = []
    end = 0
    for buffer in [*sorted(buffers, key=lambda buffer: (buffer.address, -buffer.vectors)), None]:
        if group and (buffer is None or buffer.address >= end):
            first = group[0].address
            found.update(dict.fromkeys(group, VmemBuffer("whole", first, end - first)))
            group = []
        if buffer is not None:
            end = max(end, buffer.address + buffer.vectors) if group else (
                buffer.address + buffer.vectors)
            group.append(buffer)
    return found


class _Copy:
    """Copies code, with new numbers for its registers and loop variables."""

    def __init__(self, numbers: "count[int]") -> None:
        self._numbers = numbers
        self._registers: dict[Register, Register] = {ZERO: ZERO, ALL_ONES: ALL_ONES}
        self._variables: dict[LoopVariable, LoopVariable] = {}

    def block(self, block: Block) -> Block:
        """Copy a block."""
        found: Block = []
        for item in block:
            if isinstance(item, Op):
                found.append(self._op(item))
            elif isinstance(item, Loop):
                variable = self._variables[item.variable] = LoopVariable(next(self._numbers))
                size = self._scalar(item.count) if isinstance(item.count, SReg) else item.count
                again = None if item.again is None else self._condition(item.again)
                found.append(Loop(variable, size, self.block(item.body), again))
            else:
                found.append(Branch(self._condition(item.condition), self.block(item.then),
                                    self.block(item.otherwise)))
        return found

    def _op(self, op: Op) -> Op:
        access = op.access
        if access is not None:
            access = Access(access.buffer, Index(access.index.constant, {
                self._variables[term] if isinstance(term, LoopVariable) else self._scalar(term):
                factor for term, factor in access.index.terms.items()}))
        return Op(op.operation, tuple(
            self._register(value) if isinstance(value, (VReg, MReg, SReg)) else value
            for value in op.operands), access, op.fence)

    def _condition(self, condition: Condition) -> Condition:
        b = condition.b
        return Condition(condition.name, self._scalar(condition.a),
                         self._scalar(b) if isinstance(b, SReg) else b)

    def _scalar(self, register: SReg) -> SReg:
        found = self._register(register)
        assert isinstance(found, SReg)
        return found

    def _register(self, register: Register) -> Register:
        if register not in self._registers:
            self._registers[register] = type(register)(next(self._numbers))
        return self._registers[register]
