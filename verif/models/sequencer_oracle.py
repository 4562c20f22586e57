"""Executes programs bundle by bundle, without timing, and models only the sequencer's own state.

This is a second model, independent of `golden.core`: it was written from the text of the
instruction set, and both share only the tables of `hdl.isa`. Where both models agree, a misreading
of that text is unlikely. So neither model may be derived from the other.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.encoding import unpack
from hdl.isa import (
    INLINE_BASE,
    MASKS,
    SEMAPHORES,
    VECTOR_FLAG,
    Fault,
    Kind,
    MiscOp,
    Operation,
    PushOp,
    ScalarOp,
    Slot,
    Unit,
    operation,
)

WORD = 0xFFFF_FFFF


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


SCALAR: dict[ScalarOp, Callable[[int, int], int]] = {
    ScalarOp.ADD: operator.add,
    ScalarOp.SUB: operator.sub,
    ScalarOp.MUL: operator.mul,
    ScalarOp.AND: operator.and_,
    ScalarOp.OR: operator.or_,
    ScalarOp.XOR: operator.xor,
    ScalarOp.SHL: lambda a, b: a << b if b < 32 else 0,
    ScalarOp.SHR: lambda a, b: a >> b if b < 32 else 0,
    ScalarOp.SAR: lambda a, b: signed(a) >> min(b, 31),
    ScalarOp.EQ: operator.eq,
    ScalarOp.NE: operator.ne,
    ScalarOp.LT: lambda a, b: signed(a) < signed(b),
    ScalarOp.LTU: operator.lt,
    ScalarOp.MIN: lambda a, b: min(signed(a), signed(b)),
    ScalarOp.MAX: lambda a, b: max(signed(a), signed(b)),
}
TAKEN: dict[ScalarOp, Callable[[int, int], bool]] = {
    ScalarOp.BEQ: operator.eq,
    ScalarOp.BNE: operator.ne,
    ScalarOp.BLT: lambda a, b: signed(a) < signed(b),
    ScalarOp.BGE: lambda a, b: signed(a) >= signed(b),
    ScalarOp.BLTU: operator.lt,
    ScalarOp.BGEU: operator.ge,
}


@dataclass
class Parts:
    """A decoded bundle: the operation and the fields of each slot that has an operation."""

    operations: dict[Slot, Operation]
    fields: dict[Slot, dict[str, int]]
    imm: tuple[int, ...]
    illegal: bool

    @classmethod
    def of(cls, bundle: int) -> "Parts":
        fields, imm, reserved = unpack(bundle)
        operations = {}
        illegal = reserved != 0
        for slot, own in fields.items():
            if own["op"]:
                found = operation(slot, own["op"])
                if found is None or found.links:
                    illegal = True
                else:
                    operations[slot] = found
        parts = cls(operations, fields, imm, illegal)
        parts.illegal |= any(not parts._legal(slot, operand.kind, parts.fields[slot][operand.field])
                             for slot, entry in operations.items() for operand in entry.operands)
        return parts

    @staticmethod
    def _legal(slot: Slot, kind: Kind, value: int) -> bool:
        if kind == Kind.VECTOR_SOURCE and value & VECTOR_FLAG:
            return value < VECTOR_FLAG + 32
        if kind in (Kind.SOURCE, Kind.VECTOR_SOURCE):
            return value not in range(35, 40)
        if kind == Kind.MASK_IN:
            return value < MASKS
        if kind == Kind.MASK_OUT:
            return 0 < value < MASKS
        if kind == Kind.SEMAPHORE:
            return value < SEMAPHORES
        if kind == Kind.IMMEDIATE:
            return value < 3
        return True

    def named(self, slot: Slot, *kinds: Kind) -> list[int]:
        """Values of a slot's operands of these kinds, without vector sources that are scalars."""
        entry = self.operations.get(slot)
        values = []
        for operand in entry.operands if entry else ():
            value = self.fields[slot][operand.field]
            if operand.kind in kinds:
                if operand.kind == Kind.VECTOR_SOURCE:
                    if not value & VECTOR_FLAG:
                        continue
                    value -= VECTOR_FLAG
                values.append(value)
        return values

    def all_named(self, *kinds: Kind) -> list[int]:
        return [value for slot in self.operations for value in self.named(slot, *kinds)]


def descriptor_fault(words: Sequence[int]) -> Fault:
    """A made-up fault of a descriptor, or none; it depends on the sum of the words."""
    return (Fault.NONE, Fault.NONE, Fault.DMA_DESCRIPTOR, Fault.DMA_RANGE,
            Fault.DMA_ALIGNMENT)[sum(words) % 5]


@dataclass
class Oracle:
    """The sequencer's state, and its changes by bundles."""

    config: Config
    scalars: list[int] = field(default_factory=lambda: [0] * 32)
    smem: list[int] = field(default_factory=list)
    semaphores: list[int] = field(default_factory=lambda: [0] * SEMAPHORES)
    transfers: list[tuple[int, ...]] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)
    pc: int = 0
    loaded: int = 0
    turned: bool = False
    active: bool = False
    held: int = 0
    halted: bool = False
    fault: Fault = Fault.NONE

    def __post_init__(self) -> None:
        self.smem = self.smem or [0] * self.config.smem_words

    def source(self, parts: Parts, slot: Slot, name: str = "b") -> int:
        code = parts.fields[slot][name]
        if code < 32:
            return self.scalars[code]
        return parts.imm[code - 32] if code < 35 else code - INLINE_BASE & WORD

    def address(self, parts: Parts, slot: Slot) -> int:
        return self.scalars[parts.fields[slot]["a"]] + self.source(parts, slot) & WORD

    def descriptor(self, parts: Parts) -> tuple[int, ...] | None:
        """The words of the transfer's descriptor.

        None if the bundle starts no transfer, or the descriptor exceeds scalar memory.
        """
        misc = parts.operations.get(Slot.MISC)
        if misc is None or misc.op != MiscOp.DMA:
            return None
        address = self.source(parts, Slot.MISC)
        words = tuple(self.smem[address:address + DESCRIPTOR_WORDS])
        return words if len(words) == DESCRIPTOR_WORDS else None

    def find_fault(self, parts: Parts) -> Fault:
        """The bundle's fault with the lowest number; `NONE` if it has no fault."""
        if parts.illegal:
            return Fault.ILLEGAL
        for kinds, free in (((Kind.VECTOR_OUT,), None), ((Kind.MASK_OUT,), None),
                            ((Kind.SCALAR_OUT, Kind.SCALAR_INOUT), 0)):
            written = [d for d in parts.all_named(*kinds) if d != free]
            if len(set(written)) != len(written):
                return Fault.CONFLICT
        operations, config = parts.operations, self.config
        s0, misc, push = (operations.get(slot) for slot in (Slot.S0, Slot.MISC, Slot.PUSH))
        if s0 and s0.unit == Unit.SMEM and self.address(parts, Slot.S0) >= config.smem_words:
            return Fault.SMEM_RANGE
        if misc and misc.op == MiscOp.DMA and self.descriptor(parts) is None:
            return Fault.SMEM_RANGE
        if any(self.address(parts, slot) >= config.vmem_vectors for slot in (Slot.LOAD, Slot.STORE)
               if slot in operations):
            return Fault.VMEM_RANGE
        if misc and Fault.INDEX_RANGE in misc.faults:
            limit = (config.tile_vregs if misc.op in (MiscOp.TRANSPOSE_IN, MiscOp.TRANSPOSE_OUT)
                     else config.lanes if "LANE" in misc.op.name and "SUB" not in misc.op.name
                     else config.sublanes)
            if self.source(parts, Slot.MISC) >= limit:
                return Fault.INDEX_RANGE
        if push:
            whole = self.loaded == config.tile_vregs
            weights = push.op in (PushOp.WEIGHTS, PushOp.WEIGHTS_T)
            turned = push.op == PushOp.WEIGHTS_T
            if weights and (whole or (self.loaded and turned != self.turned)):
                return Fault.WEIGHT_LOAD
            if push.op == PushOp.ROWS_SWAP and not whole:
                return Fault.WEIGHT_LOAD
            if push.op == PushOp.ROWS and not self.active:
                return Fault.WEIGHT_LOAD
            if not weights and self.held == config.result_vregs:
                return Fault.FIFO_OVERFLOW
        if Slot.POP in operations and not self.held:
            return Fault.FIFO_UNDERFLOW
        if misc and misc.op == MiscOp.SIGNAL:
            now = self.semaphores[parts.fields[Slot.MISC]["d"]]
            if now + self.source(parts, Slot.MISC) > WORD:
                return Fault.SEMAPHORE
        words = self.descriptor(parts)
        return Fault.NONE if words is None else descriptor_fault(words)

    def waits(self, parts: Parts) -> bool:
        misc = parts.operations.get(Slot.MISC)
        return (misc is not None and misc.op == MiscOp.WAIT and
                self.semaphores[parts.fields[Slot.MISC]["d"]] < self.source(parts, Slot.MISC))

    def execute(self, parts: Parts) -> None:
        """Executes a bundle that has no fault and need not wait."""
        operations, fields = parts.operations, parts.fields
        writes: dict[int, int] = {}
        next_pc = self.pc + 1
        for slot in (Slot.S0, Slot.S1):
            if entry := operations.get(slot):
                own = fields[slot]
                a, b, d = self.scalars[own["a"]], self.source(parts, slot), self.scalars[own["d"]]
                op = entry.op
                assert isinstance(op, ScalarOp)
                if op in SCALAR:
                    writes[own["d"]] = int(SCALAR[op](a, b)) & WORD
                elif op == ScalarOp.LOAD:
                    writes[own["d"]] = self.smem[a + b & WORD]
                elif op == ScalarOp.JUMP:
                    next_pc = b
                elif op == ScalarOp.CALL:
                    writes[own["d"]] = self.pc + 1
                    next_pc = b
                elif op == ScalarOp.LOOP:
                    writes[own["d"]] = d - 1 & WORD
                    next_pc = b if writes[own["d"]] else next_pc
                elif op in TAKEN:
                    next_pc = parts.imm[own["d"]] if TAKEN[op](a, b) else next_pc
                elif op == ScalarOp.HALT:
                    self.halted = True
                    next_pc = self.pc
        if (words := self.descriptor(parts)) is not None:
            self.transfers.append(words)
        if (s0 := operations.get(Slot.S0)) and s0.op == ScalarOp.STORE:
            self.smem[self.address(parts, Slot.S0)] = self.scalars[fields[Slot.S0]["d"]]
        if misc := operations.get(Slot.MISC):
            own, amount = fields[Slot.MISC], self.source(parts, Slot.MISC)
            if misc.op == MiscOp.WAIT:
                self.semaphores[own["d"]] -= amount
            elif misc.op == MiscOp.SIGNAL_OTHER:
                self.signals.append((own["d"], amount))
            elif misc.op == MiscOp.SIGNAL:
                self.semaphores[own["d"]] += amount
            elif misc.op == MiscOp.READ_SEMAPHORE:
                writes[own["d"]] = self.semaphores[own["a"]]
        if push := operations.get(Slot.PUSH):
            if push.op in (PushOp.WEIGHTS, PushOp.WEIGHTS_T):
                self.loaded += 1
                self.turned = push.op == PushOp.WEIGHTS_T
            else:
                self.held += 1
                if push.op == PushOp.ROWS_SWAP:
                    self.loaded, self.active = 0, True
        self.held -= Slot.POP in operations
        for d, value in writes.items():
            if d:
                self.scalars[d] = value
        self.pc = next_pc

    def run(self, program: list[int], limit: int) -> list[int]:
        """Runs to a halt, fault, wait or the limit; returns the addresses of executed bundles."""
        executed: list[int] = []
        while not self.halted and self.fault == Fault.NONE and len(executed) < limit:
            if self.pc >= self.config.imem_bundles:
                self.fault = Fault.PC_RANGE
                break
            parts = Parts.of(program[self.pc] if self.pc < len(program) else 0)
            self.fault = self.find_fault(parts)
            if self.fault != Fault.NONE or self.waits(parts):
                break
            executed.append(self.pc)
            self.execute(parts)
        return executed
