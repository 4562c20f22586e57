"""The vector unit's control pipelines, which control all elements from issue to write.

Every signal to the elements is a register, or a register followed by very little logic. Registers
that have a valid bit hold while that bit is not set.
"""

from collections.abc import Sequence

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..config import Config
from ..isa import OPERATIONS, Kind, Unit, VectorOp
from .alu import AluUnit, alu_units, enable_ports
from .element import slot_ports
from .interface import (
    HOST_ADDRESS_BITS,
    MASK_BITS,
    REGISTER_BITS,
    HostSpace,
    LoadIssue,
    MaskWrite,
    RegisterWrite,
    StoreIssue,
    VectorIssue,
    host_read_request,
)
from .transcendental import FUNCTION_BITS, Function

__all__ = ["HOST_PATIENCE", "HostControl", "MemoryControl", "SlotControl"]

HOST_PATIENCE = 8
"""Cycles that an access of the host waits for a port of vector memory before it becomes urgent."""

_FUNCTIONS = {VectorOp[function.name]: function for function in Function}
_UNITS = {
    AluUnit.ADD: (VectorOp.FADD, VectorOp.FSUB),
    AluUnit.MULTIPLY: (VectorOp.FMUL,),
    AluUnit.CONVERT: (VectorOp.I2F,),
    AluUnit.TRANSCENDENTAL: tuple(_FUNCTIONS),
    AluUnit.RANDOM: (VectorOp.RANDOM,),
    AluUnit.SIMPLE: tuple(operation.op for operation in OPERATIONS
                          if isinstance(operation.op, VectorOp) and operation.unit is Unit.SIMPLE),
}
"""For each unit of the ALU: the operations that it executes."""
_TO_MASK = tuple(operation.op for operation in OPERATIONS if isinstance(operation.op, VectorOp)
                 and any(operand.kind is Kind.MASK_OUT for operand in operation.operands))
"""Operations of the vector slots that write a mask."""


def _is_one_of(op: Signal, operations: Sequence[VectorOp]) -> Value:
    return Cat(op == operation for operation in operations).any()


class SlotControl(wiring.Component):
    """The control pipeline of a vector slot.

    The sequencer ensures that no two operations write in the same cycle.

    Parameters
    ----------
    transcendental, iterative : bool
        As for `hdl.vpu.alu.VectorAlu`.

    Attributes
    ----------
    issue : In(VectorIssue)
        The operation at issue.
    written, mask_written : Out(RegisterWrite), Out(MaskWrite)
        The vector register or mask that the slot writes at the end of this cycle.
    busy : Out(1)
        An issued operation has not written its result yet.
    Others : Out
        Control of the elements, see `hdl.vpu.element.slot_ports`.
    """

    def __init__(self, transcendental: bool, iterative: bool = False) -> None:
        self._units = alu_units(transcendental)
        self._enables = enable_ports(transcendental, iterative)
        self._transcendental = transcendental
        super().__init__({
            "issue": In(VectorIssue()), "written": Out(RegisterWrite()),
            "mask_written": Out(MaskWrite()), "busy": Out(1),
            **{name: Out(width) for name, width in slot_ports(transcendental, iterative).items()}})

    @staticmethod
    def module(transcendental: bool) -> str:
        """Name of the Verilog module of this control pipeline."""
        return "vpu_slot_control_full" if transcendental else "vpu_slot_control"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        op, d = self._operands(m)
        starts = {}
        for unit in self._units:
            starts[unit] = start = Signal(name=f"{unit.port}_start")
            m.d.comb += start.eq(self.read & _is_one_of(op, _UNITS[unit]))
        self._execute(m, op, starts)
        self._write(m, op, d, starts)
        return m

    def _operands(self, m: Module) -> tuple[Signal, Signal]:
        """First cycle after issue: read the operands. Return the operation and its register d."""
        op = Signal(VectorOp, reset_less=True)
        d = Signal(REGISTER_BITS, name="issued_d", reset_less=True)
        is_select = Signal()
        m.d.comb += is_select.eq(self.issue.op == VectorOp.SELECT)
        m.d.sync += self.read.eq(self.issue.valid)
        with m.If(self.issue.valid):
            m.d.sync += [
                op.eq(self.issue.op), d.eq(self.issue.d), self.a.eq(self.issue.a),
                self.b.eq(self.issue.b),
                self.p.eq(Mux(is_select, self.issue.m, self.issue.a[:MASK_BITS])),
                self.q.eq(self.issue.b[:MASK_BITS]),
                self.use_scalar.eq(self.issue.use_scalar), self.scalar.eq(self.issue.scalar),
            ]
        return op, d

    def _execute(self, m: Module, op: Signal, starts: dict[AluUnit, Signal]) -> None:
        """In the cycles after an operation reads its operands, enable the stages of its unit.

        ``starts`` has a bit for each unit: an operation of that unit reads its operands now.
        """
        for unit in self._units:
            before = starts[unit]
            for name in self._enables[unit]:
                enable = getattr(self, name)
                m.d.sync += enable.eq(before)
                before = enable
        with m.If(starts[AluUnit.SIMPLE]):
            m.d.sync += self.op.eq(op)
        with m.If(starts[AluUnit.ADD]):
            m.d.sync += self.subtract.eq(op == VectorOp.FSUB)
        if self._transcendental:
            function = Signal(FUNCTION_BITS)
            with m.Switch(op):
                for operation, number in _FUNCTIONS.items():
                    with m.Case(operation):
                        m.d.comb += function.eq(number)
            stages = [starts[AluUnit.TRANSCENDENTAL],
                      *(getattr(self, name) for name in self._enables[AluUnit.TRANSCENDENTAL])]
            before = function
            for i, valid in enumerate(stages[:-1]):
                field = self.functions.word_select(i, FUNCTION_BITS)
                with m.If(valid):
                    m.d.sync += field.eq(before)
                before = field

    def _write(self, m: Module, op: Signal, d: Signal, starts: dict[AluUnit, Signal]) -> None:
        """Write each operation's result to its register or mask, in the operation's last cycle.

        The operation ``op`` reads its operands in its first cycle, in which ``starts`` has a 1 for
        the unit that executes it. ``d`` is the number of the register or mask that it will write.
        """
        depth = max(len(names) for names in self._enables.values())
        numbers = [d]
        busy = [self.read, self.write, self.mask_write]
        for stage in range(depth):
            valid = Signal(name=f"valid_{stage}")
            number = Signal(REGISTER_BITS, name=f"d_{stage}", reset_less=True)
            before = [starts[unit] if stage == 0 else getattr(self, names[stage - 1])
                      for unit, names in self._enables.items() if stage < len(names)]
            m.d.comb += valid.eq(Cat(*before).any())
            with m.If(valid):
                m.d.sync += number.eq(numbers[-1])
            numbers.append(number)
        to_mask = Signal()
        with m.If(starts[AluUnit.SIMPLE]):
            m.d.sync += to_mask.eq(_is_one_of(op, _TO_MASK))

        last = {unit: getattr(self, names[-1]) for unit, names in self._enables.items()}
        m.d.sync += [self.write.eq(0), self.mask_write.eq(0)]
        for unit, done in last.items():
            with m.If(done):
                m.d.sync += [self.write.eq(1), self.select.eq(unit),
                             self.d.eq(numbers[len(self._enables[unit])])]
        with m.If(last[AluUnit.SIMPLE] & to_mask):
            m.d.sync += [self.write.eq(0), self.mask_write.eq(1), self.mask_d.eq(numbers[1])]
        busy += [getattr(self, name) for names in self._enables.values() for name in names]
        m.d.comb += [
            self.written.valid.eq(self.write), self.written.d.eq(self.d),
            self.mask_written.valid.eq(self.mask_write), self.mask_written.d.eq(self.mask_d),
            self.busy.eq(Cat(*busy).any()),
        ]


class MemoryControl(wiring.Component):
    """The control pipelines of vector loads and stores.

    Attributes
    ----------
    load, store : In(LoadIssue), In(StoreIssue)
        The load and the store that issue in this cycle.
    grant : In(1)
        A load may write a register in this cycle; otherwise, it waits. ``grant`` and ``waits`` are
        present only if ``issue_cycles`` is 3.
    waits : Out(1)
        A load has read vector memory, and has not written its register before this cycle.
    written : Out(RegisterWrite)
        The register that a load writes at the end of this cycle.
    busy : Out(1)
        An issued load or store has not written its register or vector memory yet.
    vmem_read, vmem_read_address, load_write, load_d : Out
    store_read, store_d, store_m, vmem_write, vmem_write_address : Out
        Control of the elements, see `hdl.vpu.element.VectorElement`.
    """

    def __init__(self, config: Config) -> None:
        address = ceil_log2(config.vmem_vectors)
        self._shared = config.issue_cycles > 1
        super().__init__({
            "load": In(LoadIssue(config)), "store": In(StoreIssue(config)),
            **({"grant": In(1), "waits": Out(1)} if self._shared else {}),
            "written": Out(RegisterWrite()), "busy": Out(1),
            "vmem_read": Out(1), "vmem_read_address": Out(address),
            "load_write": Out(1), "load_d": Out(REGISTER_BITS),
            "store_read": Out(1), "store_d": Out(REGISTER_BITS), "store_m": Out(MASK_BITS),
            "vmem_write": Out(1), "vmem_write_address": Out(address),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # An extra cycle, so that loads and stores of a bundle access memory in the same cycle.
        load_valid = Signal()
        load_address = Signal.like(self.load.address, reset_less=True)
        load_d = [Signal(REGISTER_BITS, name=f"load_d_{stage}", reset_less=True)
                  for stage in range(2)]
        store_address = Signal.like(self.store.address, reset_less=True)
        m.d.sync += [
            load_valid.eq(self.load.valid), self.vmem_read.eq(load_valid),
            self.waits.eq(self.vmem_read | (self.waits & ~self.grant)) if self._shared
            else self.load_write.eq(self.vmem_read),
            self.store_read.eq(self.store.valid), self.vmem_write.eq(self.store_read),
        ]
        if self._shared:
            m.d.comb += self.load_write.eq(self.waits & self.grant)
        with m.If(self.load.valid):
            m.d.sync += [load_address.eq(self.load.address), load_d[0].eq(self.load.d)]
        with m.If(load_valid):
            m.d.sync += [self.vmem_read_address.eq(load_address), load_d[1].eq(load_d[0])]
        with m.If(self.vmem_read):
            m.d.sync += self.load_d.eq(load_d[1])
        with m.If(self.store.valid):
            m.d.sync += [store_address.eq(self.store.address), self.store_d.eq(self.store.d),
                         self.store_m.eq(self.store.m)]
        with m.If(self.store_read):
            m.d.sync += self.vmem_write_address.eq(store_address)
        m.d.comb += [
            self.written.valid.eq(self.load_write), self.written.d.eq(self.load_d),
            self.busy.eq(load_valid | self.vmem_read
                         | (self.waits if self._shared else self.load_write)
                         | self.store_read | self.vmem_write),
        ]
        return m


class HostControl(wiring.Component):
    """Executes the host's reads and writes of vectors when the core leaves the port free.

    Vectors are transferred row by row, up to one row a cycle in each direction. A read that is
    accepted after the last row of a written vector returns the written data.

    The core has priority, but an access that has waited for `HOST_PATIENCE` cycles becomes urgent.
    Until the access is done, the core must not issue operations that use the port. A read counts
    only those cycles as waiting in which the chain has room for its vector. So a host that does not
    accept its rows does not block the core.

    Attributes
    ----------
    requests : In(stream of host_read_request)
        Read requests.
    rows_valid, rows_ready : Out(1), In(1)
        Handshake of the rows read, which are in the elements' host_out chain.
    write_valid, write_ready, write_address : In(1), Out(1), In(HOST_ADDRESS_BITS)
        Handshake of the rows to write, which enter the elements' host_in chain.
    core_reads, core_writes : In(1)
        The core uses the read port, or the write port, of vector memory in this cycle.
    store_reads : In(1)
        A store reads a register in this cycle, through the port that it shares with the host;
        present only if ``issue_cycles`` is 3.
    urgent_read, urgent_write : Out(1)
        ``urgent_read``: no load may issue in this cycle. ``urgent_write``: no store may. The host
        has the port two cycles later.
    busy : Out(1)
        An access to a vector is incomplete.
    read, read_address, write, address : Out
        Accesses to the vector memory.
    out_load, space, source, out_shift, in_shift : Out
        Control of the elements' host_out and host_in chains.
    """

    def __init__(self, config: Config) -> None:
        self._sublanes = config.sublanes
        self._shared = config.issue_cycles > 1
        address = ceil_log2(config.vmem_vectors)
        super().__init__({
            "requests": In(stream.Signature(host_read_request())),
            "rows_valid": Out(1), "rows_ready": In(1),
            "write_valid": In(1), "write_ready": Out(1), "write_address": In(HOST_ADDRESS_BITS),
            "core_reads": In(1), "core_writes": In(1),
            **({"store_reads": In(1)} if self._shared else {}),
            "urgent_read": Out(1), "urgent_write": Out(1), "busy": Out(1),
            "read": Out(1), "read_address": Out(address),
            "write": Out(1), "address": Out(address),
            "out_load": Out(1), "space": Out(2), "source": Out(REGISTER_BITS), "out_shift": Out(1),
            "in_shift": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entered = Signal(range(self._sublanes + 1))
        complete = Signal()
        accepted = Signal()
        write_denied = Signal(range(HOST_PATIENCE + 1))
        m.d.comb += [
            complete.eq(entered == self._sublanes),
            self.write.eq(complete & ~self.core_writes),
            self.urgent_write.eq(write_denied == HOST_PATIENCE),
            # A read waits while a complete vector has not been written. With vectors of one row,
            # that could be so in every cycle, so an urgent read keeps the next row out.
            self.write_ready.eq(~complete | (self.write & ~self.urgent_read)),
            accepted.eq(self.write_valid & self.write_ready),
            self.in_shift.eq(accepted),
        ]
        with m.If(self.write):
            m.d.sync += entered.eq(accepted)
        with m.Elif(accepted):
            m.d.sync += entered.eq(entered + 1)
        with m.If(accepted):
            m.d.sync += self.address.eq(self.write_address)
        with m.If(self.write):
            m.d.sync += write_denied.eq(0)
        with m.Elif(complete & ~self.urgent_write):
            m.d.sync += write_denied.eq(write_denied + 1)
        waiting = self._read(m, complete)
        m.d.comb += self.busy.eq((entered != 0) | waiting | self.rows_valid)
        return m

    def _read(self, m: Module, complete: Signal) -> Signal:
        """Read a vector for the host, and load it into the host_out chain when the chain is empty.

        The read may take place while the chain still holds rows of the previous vector.

        Return a signal that is set while a read request waits for the chain. ``complete``: all rows
        of a vector have arrived, and its write to memory has priority over the read.
        """
        left = Signal(range(self._sublanes + 1))
        waiting = Signal()
        fresh = Signal()
        free = Signal()
        read_denied = Signal(range(HOST_PATIENCE + 1))
        arrived = (self.space != HostSpace.VMEM) | fresh
        loadable = arrived
        denied = waiting & free & ~self.out_load
        if self._shared:
            # A store delays the load of a word that has arrived, too, but not at the port of vector
            # memory, so this delay does not count toward an urgent read.
            loadable &= ~self.store_reads
            denied &= ~arrived
        m.d.comb += [
            self.rows_valid.eq(left != 0),
            self.out_shift.eq(self.rows_valid & self.rows_ready),
            free.eq((left == 0) | (self.out_shift & (left == 1))),
            # The vector stays in the read register until the core reads another one.
            self.read.eq(waiting & (self.space == HostSpace.VMEM) & ~fresh & ~complete
                         & ~self.core_reads),
            self.urgent_read.eq(read_denied == HOST_PATIENCE),
            self.out_load.eq(waiting & free & loadable),
            self.requests.ready.eq(~waiting | self.out_load),
        ]
        m.d.sync += fresh.eq((self.read | fresh) & ~self.core_reads & ~self.out_load)
        with m.If(self.read):
            m.d.sync += read_denied.eq(0)
        with m.Elif(denied & ~self.urgent_read):
            m.d.sync += read_denied.eq(read_denied + 1)
        with m.If(self.out_load):
            m.d.sync += [left.eq(self._sublanes), waiting.eq(0)]
        with m.Elif(self.out_shift):
            m.d.sync += left.eq(left - 1)
        with m.If(self.requests.valid & self.requests.ready):
            m.d.sync += [
                waiting.eq(1), self.space.eq(self.requests.payload.space),
                self.read_address.eq(self.requests.payload.address),
                self.source.eq(self.requests.payload.address),
            ]
        return waiting
