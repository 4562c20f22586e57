"""Decoders of a bundle: its registers, its faults, and its operations for the units.

This module lists no operations: the codes of each slot, and the meanings of its fields, are taken
from `hdl.isa.OPERATIONS`.
"""

from itertools import combinations
from typing import Any

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import instance
from ..config import Config
from ..dma.format import DESCRIPTOR_WORDS
from ..isa import (
    BUNDLE_BITS,
    BUNDLE_LAYOUT,
    FIRST_IMMEDIATE,
    IMMEDIATES,
    INLINE_BASE,
    INLINE_MIN,
    MASKS,
    OPERATIONS,
    SCALAR_REGISTERS,
    SEMAPHORES,
    SLOTS,
    SOURCE_BITS,
    VECTOR_REGISTERS,
    Fault,
    Kind,
    LoadOp,
    Operation,
    PopOp,
    PushOp,
    Slot,
    StoreOp,
    Unit,
    VectorOp,
    index_limits,
)
from ..target import Target
from ..vpu.interface import LoadIssue, RegisterWrite, StoreIssue, VectorIssue
from .interface import FAULT_BITS, RowPush, XluIssue
from .ledger import ROWS, WEIGHTS

__all__ = ["SCALAR_PORTS", "BundleDecoder", "BundleFaults", "ComparingDecoder", "UnitDecoder",
           "fault_codes", "kind_codes", "scalar_codes", "unit_codes", "unit_ports"]

_REGISTER_BITS = ceil_log2(SCALAR_REGISTERS)
assert SCALAR_REGISTERS == VECTOR_REGISTERS == FIRST_IMMEDIATE == 1 << _REGISTER_BITS
_NOP = 0


def _operations(slot: Slot, links: bool = False) -> list[Operation]:
    """Return the operations that ``slot`` can hold; ``links``: whether the chip has links."""
    return [operation for operation in OPERATIONS
            if slot in operation.slots and (links or not operation.links)]


def kind_codes(slot: Slot, field: str, *kinds: Kind, links: bool = False) -> list[int]:
    """Return the codes of the slot's operations with an operand of one of ``kinds`` in ``field``.

    ``links``: whether the chip has links.
    """
    return [operation.op.value for operation in _operations(slot, links)
            for operand in operation.operands
            if operand.field == field and operand.kind in kinds]


def unit_codes(slot: Slot, unit: Unit) -> list[int]:
    """Return the codes of the operations in ``slot`` that ``unit`` executes."""
    return [operation.op.value for operation in _operations(slot, unit is Unit.LINKS)
            if operation.unit == unit]


def fault_codes(slot: Slot, fault: Fault) -> list[int]:
    """Return the codes of the operations in ``slot`` that can raise ``fault``.

    The list omits operations that only a chip with links has.
    """
    return [operation.op.value for operation in _operations(slot) if fault in operation.faults]


def scalar_codes(slot: Slot, field: str) -> list[int]:
    """Return the codes of the operations in ``slot`` that read a scalar operand from ``field``.

    The list omits operations that only a chip with links has.
    """
    return kind_codes(slot, field, Kind.SCALAR_IN, Kind.SCALAR_INOUT, Kind.SOURCE,
                      Kind.VECTOR_SOURCE)


SCALAR_PORTS: tuple[tuple[Slot, str], ...] = tuple(
    (slot, field) for slot, fields in SLOTS.items() for field in fields
    if scalar_codes(slot, field))
"""(slot, field) of each field that can hold a scalar operand on a chip without links. Each has a
port in `hdl.core.scalar.ScalarOperands`."""


def _beyond(number: Value, count: int) -> Value:
    """Return a bit that is 1 if ``number`` is at least ``count``."""
    return number >= count if 1 << len(number) > count else Const(0)


class _Sets:
    """The registers of one kind that the slots of a bundle use, as bit vectors."""

    def __init__(self, m: Module, name: str, size: int) -> None:
        self._m = m
        self._name = name
        self._size = size
        self._bits = ceil_log2(size)
        self._members: list[tuple[Slot, Signal]] = []
        self._uses: list[tuple[Slot, Value, Value]] = []

    def add(self, slot: Slot, used: Value, number: Value) -> None:
        """Record that ``slot`` uses register ``number`` if the signal ``used`` is set."""
        member = Signal(self._size, name=f"{slot}_{self._name}_{len(self._members)}")
        self._m.d.comb += member.eq(used << number[:self._bits])
        self._members.append((slot, member))
        self._uses.append((slot, used, number[:self._bits]))

    def union(self, without: Slot | None = None) -> Value:
        """Return the registers that slots other than ``without`` use: bit i is register i."""
        union: Value = Const(0, self._size)
        for slot, member in self._members:
            if slot != without:
                union |= member
        return union

    def holds(self, used: Value, number: Value, without: Slot | None = None) -> Value:
        """Return a bit: ``used`` is set, and a slot other than ``without`` uses the register.

        ``number`` is the register's number.
        """
        return Cat(used & other & (number[:self._bits] == taken)
                   for slot, other, taken in self._uses if slot != without).any()

    def coincide(self, *, zero: bool) -> Value:
        """Return a bit, set if two slots use one register; register 0 counts only if ``zero``."""
        return Cat(used & other & (number == taken) & (1 if zero else number != 0)
                   for (_, used, number), (_, other, taken) in combinations(self._uses, 2)).any()

    def repeated(self) -> Value:
        """Return the registers that several slots use: bit i is register i."""
        repeated: Value = Const(0, self._size)
        before: Value = Const(0, self._size)
        for number, (_, member) in enumerate(self._members):
            repeated |= before & member
            union = Signal(self._size, name=f"{self._name}_up_to_{number}")
            self._m.d.comb += union.eq(before | member)
            before = union
        return repeated


def unit_ports(config: Config) -> dict[str, wiring.Signature]:
    """Return the signatures of the ports on which the sequencer sends operations to the units."""
    return {"v0": VectorIssue(), "v1": VectorIssue(),
            "load": LoadIssue(config), "store": StoreIssue(config),
            "push_x": RowPush(), "push_w": RowPush(), "pop": RegisterWrite(), "xlu": XluIssue()}


class BundleDecoder(wiring.Component):
    """Finds a bundle's encoding faults, and the registers that it reads and writes; combinational.

    A set of registers is a bit vector: bit i is register i. A field is examined only if the
    operation of its slot uses the field.

    Parameters
    ----------
    links : bool
        Whether the chip has links. Without links, the operations that need them are illegal.

    Attributes
    ----------
    bundle : In(BUNDLE_BITS)
        The bundle, of `BUNDLE_LAYOUT`.
    illegal : Out(1)
        Fault ILLEGAL: an invalid operation code, operand source or register number, or a reserved
        bit that is 1.
    conflict : Out(1)
        Fault CONFLICT: two operations write the same register.
    vector_reads, vector_writes : Out(VECTOR_REGISTERS)
        Vector registers that the bundle reads, and those that it writes.
    vector_loads : Out(VECTOR_REGISTERS)
        The vector register that a vector load writes; a subset of ``vector_writes``.
    mask_reads, mask_writes : Out(MASKS)
        Masks that the bundle reads, and those that it writes.
    scalar_reads, scalar_writes : Out(SCALAR_REGISTERS)
        Scalar registers that the bundle reads, and those that it writes. s0 may be in both sets,
        but never causes a ``conflict``.
    push_overwritten, misc_overwritten : Out(1)
        The vector register that slot `push`, or slot `misc`, reads is written by another slot.
    """

    combinational = True

    def __init__(self, links: bool = False) -> None:
        self._links = links
        super().__init__({
            "bundle": In(BUNDLE_BITS), "illegal": Out(1), "conflict": Out(1),
            "vector_reads": Out(VECTOR_REGISTERS), "vector_writes": Out(VECTOR_REGISTERS),
            "vector_loads": Out(VECTOR_REGISTERS),
            "mask_reads": Out(MASKS), "mask_writes": Out(MASKS),
            "scalar_reads": Out(SCALAR_REGISTERS), "scalar_writes": Out(SCALAR_REGISTERS),
            "push_overwritten": Out(1), "misc_overwritten": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._fields = data.View(BUNDLE_LAYOUT, self.bundle)
        self._illegal: list[Value] = [self._fields.reserved != 0]
        self._vector_reads = _Sets(m, "vector_reads", VECTOR_REGISTERS)
        self._vector_writes = _Sets(m, "vector_writes", VECTOR_REGISTERS)
        self._mask_reads = _Sets(m, "mask_reads", MASKS)
        self._mask_writes = _Sets(m, "mask_writes", MASKS)
        self._scalar_reads = _Sets(m, "scalar_reads", SCALAR_REGISTERS)
        self._scalar_writes = _Sets(m, "scalar_writes", SCALAR_REGISTERS)
        for slot, fields in SLOTS.items():
            op = self._fields[slot].op
            codes = [operation.op.value for operation in _operations(slot, self._links)]
            self._illegal.append(~op.matches(_NOP, *codes))
            for field in fields:
                for kind in Kind:
                    if using := kind_codes(slot, field, kind, links=self._links):
                        used = Signal(name=f"{slot}_{field}_{kind.name.lower()}")
                        m.d.comb += used.eq(op.matches(*using))
                        self._operand(slot, kind, used, self._fields[slot][field])
        m.d.comb += [
            self.illegal.eq(Cat(self._illegal).any()),
            self.vector_reads.eq(self._vector_reads.union()),
            self.vector_writes.eq(self._vector_writes.union()),
            self.mask_reads.eq(self._mask_reads.union()),
            self.mask_writes.eq(self._mask_writes.union()),
            self.scalar_reads.eq(self._scalar_reads.union()),
            self.scalar_writes.eq(self._scalar_writes.union()),
            self.conflict.eq(self._conflict()),
        ]
        self._special_sets(m)
        return m

    def variant(self, target: Target) -> "ComparingDecoder | None":
        """Return an equivalent component that suits the synthesis ``target`` better, or None."""
        return None if target is Target.GENERIC else ComparingDecoder()

    def _conflict(self) -> Value:
        """Return a bit, set if two operations write the same register."""
        return (self._vector_writes.repeated().any() | self._mask_writes.repeated().any() |
                self._scalar_writes.repeated()[1:].any())

    def _operand(self, slot: Slot, kind: Kind, used: Value, field: Value) -> None:
        """Add the register in ``field`` of ``slot`` to the sets, and its errors to the faults.

        The signal ``used`` is set if the slot's operation has an operand of ``kind`` in this field.
        """
        match kind:
            case Kind.SCALAR_IN:
                self._scalar_reads.add(slot, used, field)
            case Kind.SCALAR_OUT:
                self._scalar_writes.add(slot, used, field)
            case Kind.SCALAR_INOUT:
                self._scalar_reads.add(slot, used, field)
                self._scalar_writes.add(slot, used, field)
            case Kind.SOURCE:
                self._source(slot, used, field)
            case Kind.VECTOR_IN:
                self._vector_reads.add(slot, used, field)
            case Kind.VECTOR_OUT:
                self._vector_writes.add(slot, used, field)
            case Kind.VECTOR_SOURCE:
                vector = field[SOURCE_BITS]
                self._vector_reads.add(slot, used & vector, field)
                self._illegal.append(used & vector & field[_REGISTER_BITS:SOURCE_BITS].any())
                self._source(slot, used & ~vector, field[:SOURCE_BITS])
            case Kind.MASK_IN:
                self._mask_reads.add(slot, used, field)
                self._illegal.append(used & _beyond(field, MASKS))
            case Kind.MASK_OUT:
                self._mask_writes.add(slot, used, field)
                self._illegal.append(used & (_beyond(field, MASKS) | (field == 0)))
            case Kind.SEMAPHORE:
                self._illegal.append(used & _beyond(field, SEMAPHORES))
            case Kind.IMMEDIATE:
                self._illegal.append(used & _beyond(field, IMMEDIATES))

    def _source(self, slot: Slot, used: Value, code: Value) -> None:
        self._scalar_reads.add(slot, used & (code < FIRST_IMMEDIATE), code)
        self._illegal.append(used & (code >= FIRST_IMMEDIATE + IMMEDIATES) &
                             (code < INLINE_BASE + INLINE_MIN))

    def _special_sets(self, m: Module) -> None:
        load = self._fields[Slot.LOAD]
        push = self._fields[Slot.PUSH]
        misc = self._fields[Slot.MISC]
        push_reads = Signal(VECTOR_REGISTERS)
        misc_reads = Signal(VECTOR_REGISTERS)
        m.d.comb += [
            self.vector_loads.eq(
                load.op.matches(*kind_codes(Slot.LOAD, "d", Kind.VECTOR_OUT)) << load.d),
            push_reads.eq(push.op.matches(*kind_codes(Slot.PUSH, "a", Kind.VECTOR_IN)) << push.a),
            misc_reads.eq(misc.op.matches(*kind_codes(Slot.MISC, "a", Kind.VECTOR_IN)) << misc.a),
            self.push_overwritten.eq((push_reads & self._vector_writes.union()).any()),
            # The cross-lane unit reads an operation's source before it writes the result, so the
            # slot's own write is harmless.
            self.misc_overwritten.eq(
                (misc_reads & self._vector_writes.union(without=Slot.MISC)).any()),
        ]


class ComparingDecoder(BundleDecoder):
    """`BundleDecoder` that compares the numbers of registers in pairs, in fewer levels of logic."""

    def _conflict(self) -> Value:
        return (self._vector_writes.coincide(zero=True) | self._mask_writes.coincide(zero=True) |
                self._scalar_writes.coincide(zero=False))

    def _special_sets(self, m: Module) -> None:
        load, push, misc = (self._fields[slot] for slot in (Slot.LOAD, Slot.PUSH, Slot.MISC))
        pushes = push.op.matches(*kind_codes(Slot.PUSH, "a", Kind.VECTOR_IN))
        crosses = misc.op.matches(*kind_codes(Slot.MISC, "a", Kind.VECTOR_IN))
        m.d.comb += [
            self.vector_loads.eq(
                load.op.matches(*kind_codes(Slot.LOAD, "d", Kind.VECTOR_OUT)) << load.d),
            self.push_overwritten.eq(self._vector_writes.holds(pushes, push.a)),
            self.misc_overwritten.eq(
                self._vector_writes.holds(crosses, misc.a, without=Slot.MISC)),
        ]


class BundleFaults(wiring.Component):
    """Finds the fault of a bundle; of several, the one with the lowest number. Combinational.

    Attributes
    ----------
    bundle : In(BUNDLE_BITS)
        The bundle, of `BUNDLE_LAYOUT`.
    s0_address, ld_address, st_address : In(32)
        Addresses that these slots compute, before truncation to the memory's address width.
    misc_scalar : In(32)
        Value of the scalar operand b of slot `misc`.
    illegal, conflict, weight_load, fifo_overflow, fifo_underflow, semaphore : In(1)
        Faults that other components have found.
    fault : Out(4)
        The lowest `Fault` of the bundle, or `NONE`.
    """

    combinational = True

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "bundle": In(BUNDLE_BITS), "s0_address": In(32), "ld_address": In(32),
            "st_address": In(32), "misc_scalar": In(32),
            "illegal": In(1), "conflict": In(1), "weight_load": In(1), "fifo_overflow": In(1),
            "fifo_underflow": In(1), "semaphore": In(1), "fault": Out(FAULT_BITS),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        fields = data.View(BUNDLE_LAYOUT, self.bundle)
        op, operand = fields[Slot.MISC].op, self.misc_scalar
        index_range = Signal()
        for code, limit in index_limits(config).items():
            with m.If(op == code):
                m.d.comb += index_range.eq(operand >= limit)

        def beyond(slot: Slot, fault: Fault, size: int) -> Value:
            used = fields[slot].op.matches(*fault_codes(slot, fault))
            return used & (getattr(self, f"{slot}_address") >= size)

        other_core = [operation.op.value for operation in _operations(Slot.MISC)
                      if operation.cores > config.cores]
        starts = op.matches(*unit_codes(Slot.MISC, Unit.DMA))
        # All words of a descriptor must lie in scalar memory.
        room = max(0, config.smem_words - DESCRIPTOR_WORDS + 1)
        causes = {
            Fault.ILLEGAL: self.illegal | (op.matches(*other_core) if other_core else 0),
            Fault.CONFLICT: self.conflict,
            Fault.SMEM_RANGE: beyond(Slot.S0, Fault.SMEM_RANGE, config.smem_words) |
                              (starts & (operand >= room)),
            Fault.VMEM_RANGE: beyond(Slot.LOAD, Fault.VMEM_RANGE, config.vmem_vectors) |
                              beyond(Slot.STORE, Fault.VMEM_RANGE, config.vmem_vectors),
            Fault.INDEX_RANGE: index_range,
            Fault.WEIGHT_LOAD: self.weight_load,
            Fault.FIFO_OVERFLOW: self.fifo_overflow,
            Fault.FIFO_UNDERFLOW: self.fifo_underflow,
            Fault.SEMAPHORE: self.semaphore,
        }
        for number in sorted(causes, reverse=True):
            with m.If(causes[number]):
                m.d.comb += self.fault.eq(number.value)
        return m


class UnitDecoder(wiring.Component):
    """Decodes a bundle into operations for the units, with their operands; combinational.

    Attributes
    ----------
    bundle : In(BUNDLE_BITS)
        The bundle, of `BUNDLE_LAYOUT`.
    issue : In(1)
        The bundle issues in this cycle.
    v0_scalar, v1_scalar, misc_scalar : In(32)
        Values of the scalar operands b of these slots.
    ld_address, st_address : In(32)
        Addresses of load and store before truncation; they are in range if the bundle issues.
    v0, v1, load, store, push_x, push_w, pop, xlu : Out
        Operations for the units, see `unit_ports`; same as in `hdl.core.sequencer.Sequencer`.
    """

    combinational = True

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        super().__init__({
            "bundle": In(BUNDLE_BITS), "issue": In(1),
            "v0_scalar": In(32), "v1_scalar": In(32), "misc_scalar": In(32),
            "ld_address": In(32), "st_address": In(32),
            **{name: Out(port) for name, port in unit_ports(config).items()},
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fields = data.View(BUNDLE_LAYOUT, self.bundle)
        load, store, push, pop, misc = (
            fields[slot] for slot in (Slot.LOAD, Slot.STORE, Slot.PUSH, Slot.POP, Slot.MISC))
        for slot, port, scalar in ((Slot.V0, self.v0, self.v0_scalar),
                                   (Slot.V1, self.v1, self.v1_scalar)):
            self._issue_vector(m, slot, fields[slot], port, scalar)
        m.d.comb += [
            self.load.valid.eq(self.issue & (load.op == LoadOp.LOAD.value)),
            self.load.d.eq(load.d),
            self.load.address.eq(self.ld_address),
            self.store.valid.eq(self.issue & (store.op == StoreOp.STORE.value)),
            self.store.d.eq(store.d),
            self.store.address.eq(self.st_address),
            self.store.m.eq(store.m),
            self.push_x.valid.eq(self.issue & push.op.matches(*ROWS)),
            self.push_x.source.eq(push.a),
            self.push_x.flag.eq(push.op == PushOp.ROWS_SWAP.value),
            self.push_w.valid.eq(self.issue & push.op.matches(*WEIGHTS)),
            self.push_w.source.eq(push.a),
            self.push_w.flag.eq(push.op == PushOp.WEIGHTS_T.value),
            self.pop.valid.eq(self.issue & (pop.op == PopOp.POP.value)),
            self.pop.d.eq(pop.d),
            self.xlu.valid.eq(self.issue & misc.op.matches(*unit_codes(Slot.MISC, Unit.XLU))),
            self.xlu.op.eq(misc.op),
            self.xlu.d.eq(misc.d),
            self.xlu.a.eq(misc.a),
            self.xlu.amount.eq(self.misc_scalar),
        ]
        return m

    def _issue_vector(self, m: Module, slot: Slot, fields: Any, port: Any, scalar: Value) -> None:
        sourced = fields.op.matches(*kind_codes(slot, "b", Kind.VECTOR_SOURCE))
        m.d.comb += [
            port.valid.eq(self.issue & (fields.op != VectorOp.NOP.value)),
            port.op.eq(fields.op),
            port.d.eq(fields.d),
            port.a.eq(fields.a),
            port.b.eq(fields.b),
            port.use_scalar.eq(sourced & ~fields.b[SOURCE_BITS]),
            port.scalar.eq(scalar),
            port.m.eq(fields.m),
        ]
