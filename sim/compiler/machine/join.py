"""Joins kernels that follow each other, so that they are scheduled as one.

Vectors that one kernel frees may be those of another kernel's buffer. So buffers of joined kernels
overlap, and accesses in straight code must be compared by their addresses (`by_address`). The
accesses within a loop belong to one kernel.
"""

from collections.abc import Sequence
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
)

__all__ = ["by_address", "join"]


def join(codes: Sequence[MachineCode]) -> MachineCode:
    """Return code that does what all codes, of one configuration, do one after the other.

    Each code gets registers of its own.
    """
    numbers = count(1)
    body: Block = []
    for code in codes:
        body += _Copy(numbers).block(code.body)
    return MachineCode(codes[0].config, body, next(numbers))


def by_address(code: MachineCode) -> MachineCode:
    """Return the code with a single buffer for all accesses outside of loops and branches.

    The buffer is all of vector memory. A loop of one iteration counts as straight code.
    """
    everything = VmemBuffer("vmem", 0, code.config.vmem_vectors)

    def straight(block: Block) -> Block:
        found: Block = []
        for item in block:
            if isinstance(item, Op) and item.access is not None and item.access.buffer is not None:
                access = Access(everything, item.access.address)
                found.append(Op(item.operation, item.operands, access, item.fence))
            elif isinstance(item, Loop) and item.count == 1:
                found.append(Loop(item.variable, 1, straight(item.body), steps=item.steps))
            else:
                found.append(item)
        return found

    return MachineCode(code.config, straight(code.body), code.registers)


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
