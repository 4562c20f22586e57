"""The sequencer: issues bundles in order, at most one a cycle, once their operands are ready."""

from functools import partial

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..checks import instance
from ..config import Config
from ..isa import (
    BUNDLE_LAYOUT,
    Fault,
    Kind,
    LoadOp,
    MiscOp,
    PopOp,
    ScalarOp,
    Slot,
    StoreOp,
    Unit,
)
from ..tiles import instantiate
from ..vpu.interface import (
    MasksWritten,
    RegistersWritten,
    RegisterWrite,
)
from .decode import (
    BundleDecoder,
    BundleFaults,
    UnitDecoder,
    kind_codes,
    unit_codes,
    unit_ports,
)
from .fetch import Examination, InstructionMemory, ProgramControl
from .host import HostPort, WriteArbiter
from .interface import (
    FAULT_BITS,
    WAITS,
    DmaIssue,
    Response,
    SemaphoreSignal,
    core_request,
    fault_bits,
    link_ports,
    semaphore_addition,
    word_write,
)
from .ledger import ROWS, WEIGHTS, ArrayLedger
from .scalar import BranchUnit, ScalarAlu, ScalarMemory, ScalarOperands
from .scoreboard import READERS, Scoreboard, taken_write_ports
from .semaphores import Semaphores

__all__ = ["Sequencer"]


def _sum_addresses(m: Module, operands: wiring.Component) -> dict[Slot, Signal]:
    """Return the 32-bit addresses of the bundle's loads and stores, by slot, not truncated yet."""
    addresses = {}
    for slot in (Slot.S0, Slot.LOAD, Slot.STORE):
        addresses[slot] = address = Signal(32, name=f"{slot}_address")
        m.d.comb += address.eq(getattr(operands, f"{slot}_a") + getattr(operands, f"{slot}_b"))
    return addresses


def _stage(m: Module, stages: bool, name: str, value: Value) -> Value:
    """Return ``value`` or, if ``stages`` is true, a register that holds it one cycle later.

    The name of the register ends in ``name``.
    """
    if not stages:
        return value
    register = Signal(value.shape(), name=f"staged_{name}", reset_less=True)
    m.d.sync += register.eq(value)
    return register


def _connect_branch(m: Module, branch: BranchUnit, imem: InstructionMemory,
                    control: ProgramControl, operands: ScalarOperands) -> None:
    """Connect the branch unit to its operands, and to the `ProgramControl`."""
    m.d.comb += [branch.bundle.eq(imem.bundle), branch.pc.eq(control.pc)]
    for field in ("a", "b", "d"):
        m.d.comb += getattr(branch, field).eq(getattr(operands, f"{Slot.S1}_{field}"))
    m.d.comb += [control.next_pc.eq(branch.next_pc), control.halt.eq(branch.halt)]


def _connect_memories(m: Module, arbiter: WriteArbiter, host: HostPort, imem: InstructionMemory,
                      smem: ScalarMemory) -> None:
    """Connect the host's writes to the arbiter, and the arbiter to the memories."""
    for name in ("imem_write", "smem_write", "address", "bundle_address", "bundle_word", "data"):
        m.d.comb += getattr(arbiter, f"host_{name}").eq(getattr(host, name))
    for memory, port in ((imem, arbiter.imem), (smem, arbiter.smem)):
        for name in port.signature.members:
            m.d.comb += getattr(memory, name).eq(getattr(port, name))


def _signal_far(m: Module, remote: wiring.FlippedInterface, signals: Signal, misc: data.View,
                operands: ScalarOperands) -> None:
    """Drive the payload of a signal to another chip from the bundle's slot ``misc``.

    ``signals`` is 1 if the bundle sends this signal. The fields pass through multiplexers for the
    reason given in `Sequencer._reach_outside`.
    """
    m.d.comb += [
        remote.payload.word.eq(Mux(signals, getattr(operands, f"{Slot.MISC}_a"), 0)),
        remote.payload.semaphore.eq(Mux(signals, misc.d, 0)),
        remote.payload.amount.eq(Mux(signals, getattr(operands, f"{Slot.MISC}_b"), 0))]


def _use_semaphores(m: Module, misc: data.View, semaphores: Semaphores, operands: ScalarOperands,
                    issue: Value, lands: Signal | None) -> None:
    """Execute the bundle's semaphore operation, in slot ``misc``; ``issue``: the bundle issues.

    With ``lands``, a read of a semaphore writes its scalar register one cycle after the issue. In
    that cycle, ``lands`` is set; this function drives it.
    """
    reads = issue & (misc.op == MiscOp.READ_SEMAPHORE.value)
    stages = lands is not None
    if lands is not None:
        m.d.sync += lands.eq(reads)
        reads = lands
    m.d.comb += [
        semaphores.index.eq(misc.d),
        semaphores.amount.eq(getattr(operands, f"{Slot.MISC}_b")),
        semaphores.is_wait.eq(misc.op == MiscOp.WAIT.value),
        semaphores.is_signal.eq(misc.op == MiscOp.SIGNAL.value),
        semaphores.issue.eq(issue),
        semaphores.read_index.eq(misc.a),
        operands.write_misc.eq(reads),
        operands.d_misc.eq(_stage(m, stages, "semaphore_d", misc.d)),
        operands.value_misc.eq(_stage(m, stages, "semaphore", semaphores.read_value)),
    ]


def _share_scalar_memory(m: Module, smem: ScalarMemory, host: HostPort, dma: DmaIssue,
                         loads: Value, address: Value, stores: Value | None) -> None:
    """Give the read port of scalar memory to bundles first, then descriptors, then requests.

    ``loads`` is set while a bundle loads from ``address``. ``stores`` is set while the store of an
    earlier bundle writes, so that no request may read; None if stores write at their issue.
    """
    m.d.comb += [smem.descriptor_read.eq(dma.read), smem.descriptor_address.eq(dma.read_address)]
    free = ~dma.read if stores is None else ~dma.read & ~stores
    with m.If(loads):
        m.d.comb += [smem.read.eq(1), smem.read_address.eq(address)]
    with m.Elif(free):
        m.d.comb += [host.smem_read_free.eq(1), smem.read.eq(host.smem_read),
                     smem.read_address.eq(host.address)]


class Sequencer(wiring.Component):
    """Fetches bundles, executes their scalar operations, and issues other operations to the units.

    A bundle issues as a whole, in one cycle, when three conditions hold:

    1. No register or mask that it reads or writes has an outstanding write. No register that it
       writes has an outstanding read. The write ports of its vector operations are free, and the
       units that it needs are ready. Until then the bundle waits.
    2. It has no fault. Otherwise the core stops, and the bundle has no effect. If ``issue_cycles``
       is 3, these two conditions are examined before the cycle of the issue (docs/fpga.md).
    3. The semaphore it waits for, if any, is high enough; the other core accepts its signal; the
       descriptor of its transfer has been checked and the queue has room. Until then it waits.

    A taken branch costs no extra cycle. A start costs one cycle, to fetch the first bundle.

    Attributes
    ----------
    start, start_pc : In(1), In(32)
        Starts the program at bundle ``start_pc``, and clears ``fault``; ignored while running.
    stop : In(1)
        Stops the program after this cycle, before bundle ``pc``; ignored while not running.
    watchdog : In(32)
        Number of cycles without an issue after which the core stops with a fault; 0: never.
    running : Out(1)
        A program is running.
    fault : Out(fault_bits)
        The fault that stopped the core, a `hdl.isa.Fault`; `NONE` if there was none.
    pc : Out(32)
        Address of the bundle that issues next, or that halted, or that has the fault.
    request, response : In(stream of core_request), Out(Response)
        Accesses by the host, and by transfers that read scalar memory: see `HostPort`.
    word_write : In(stream of word_write)
        Writes by transfers to instruction memory and scalar memory. A write waits only in cycles in
        which a request, or a bundle's store, writes the same memory.
    signal : In(SemaphoreSignal)
        Adds to a semaphore at any time. On overflow, the next bundle has a fault.
    other_signal : Out(stream of semaphore_addition)
        Additions by bundles to semaphores of the other core.
    dma : Out(DmaIssue)
        Starts of transfers.
    bus_error : In(1)
        The HBM answered a transfer with an error: the core stops with a fault at the next bundle.
    link_error, remote, remote_fault
        Present if the chip has links, see `hdl.core.interface.link_ports`.
    v0, v1, load, store, push_x, push_w, pop, xlu : Out
        Operations that issue in this cycle.
    x_ready, w_ready, pop_ready, xlu_ready : In(1)
        The unit can accept an operation in this cycle.
    x_free, w_free, xlu_free : In(1)
        An operation that issues in this cycle would read its source register in the next one. A
        bundle that also overwrites this register issues only in such a cycle. If ``issue_cycles``
        is 3, these inputs and those named ``*_ready``, once set, stay set until a bundle issues.
    x_pending, w_pending, xlu_pending : In(RegisterWrite)
        Registers that these units will read in a later cycle.
    urgent_read, urgent_write : In(1)
        The host needs a port of vector memory: no bundle with a vector load, or with a store, may
        issue in this cycle. Such a bundle counts as waiting for memory.
    written, mask_written : In(RegistersWritten), In(MasksWritten)
        Registers and masks that the vector unit writes at the end of this cycle. A bundle that
        reads one of them may issue in this cycle.
    waiting_{wait} : Out(1)
        The bundle waits for this reason, one port for each of `WAITS`; at most one is set.
    issue, busy : Out(1)
        The bundle at ``pc`` issues (``issue``); a register or mask awaits a write (``busy``).
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        self._stages = config.issue_cycles > 1
        self._links = config.link_bytes != 0
        super().__init__({
            "start": In(1), "start_pc": In(32), "stop": In(1), "watchdog": In(32),
            "running": Out(1), "fault": Out(fault_bits(config)), "pc": Out(32),
            "request": In(stream.Signature(core_request())), "response": Out(Response()),
            "word_write": In(stream.Signature(word_write(config))),
            "signal": In(SemaphoreSignal()),
            "other_signal": Out(stream.Signature(semaphore_addition())),
            "dma": Out(DmaIssue(config)), "bus_error": In(1),
            **(link_ports() if self._links else {}),
            **{name: Out(port) for name, port in unit_ports(config).items()},
            "x_ready": In(1), "w_ready": In(1), "pop_ready": In(1), "xlu_ready": In(1),
            "x_free": In(1), "w_free": In(1), "xlu_free": In(1),
            "x_pending": In(RegisterWrite()), "w_pending": In(RegisterWrite()),
            "xlu_pending": In(RegisterWrite()),
            "urgent_read": In(1), "urgent_write": In(1),
            "written": In(RegistersWritten()), "mask_written": In(MasksWritten()),
            **{f"waiting_{wait}": Out(1) for wait in WAITS}, "issue": Out(1), "busy": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._instantiate(m, platform)
        control = self._control
        self._addresses = _sum_addresses(m, self._operands)
        held_up, memory = self._look_for_hazards(m, platform)
        fault = self._look_for_faults(m, platform)

        # The three conditions, in order. Faults count only when nothing is outstanding, because
        # only then are the operands that they depend on final.
        clear = Signal()
        sound = Signal()
        waiting = Signal()
        ready, present, semaphores = clear, control.valid, self._semaphores
        if self._stages:
            ready, fault, present = self._examine(m, platform, clear, fault)
        waits = present & held_up & ~memory
        waits_for_semaphore = sound & waiting
        if self._stages:
            waits &= ~ready  # ``held_up`` is about the next cycle
            signalled = Signal()  # ``waiting`` does not know it yet
            m.d.sync += signalled.eq(self.signal.valid)
            waits_for_semaphore &= ~signalled
        outside, outside_fault = self._reach_outside(m, sound, fault)
        m.d.comb += [
            clear.eq(present & ~held_up),
            sound.eq(ready & (fault == Fault.NONE.value)),
            # While the program waits, nothing but signals changes the semaphore: it can only grow.
            waiting.eq(self._staged("wait", semaphores.is_wait & ~semaphores.satisfied)),
            self.issue.eq(sound & ~waiting & ~outside & (outside_fault == Fault.NONE.value)),
            control.issue.eq(self.issue),
            control.faulty.eq(Mux(ready, Mux(sound, outside_fault, fault), Fault.NONE.value)),
            self.waiting_instruction.eq(control.fetching),
            self.waiting_memory.eq((present & memory) | (sound & outside)),
            self.waiting_vector.eq(waits),
            self.waiting_semaphore.eq(waits_for_semaphore),
        ]
        for name in ("start", "start_pc", "stop", "watchdog", "bus_error",
                     *(["link_error"] if self._links else [])):
            m.d.comb += getattr(control, name).eq(getattr(self, name))
        for name in ("running", "fault", "pc"):
            m.d.comb += getattr(self, name).eq(getattr(control, name))
        stores = self._execute_scalar(m, platform)
        busy = self._scoreboard.busy
        if self._semaphore_lands is not None:
            busy = busy | stores | self._semaphore_lands
        m.d.comb += self.busy.eq(busy)
        _use_semaphores(m, self._bundle.misc, semaphores, self._operands, self.issue,
                        self._semaphore_lands)
        wiring.connect(m, wiring.flipped(self.signal), semaphores.external)
        self._issue_operations(m, platform)
        self._connect_host(m)
        self._write_words(m, platform, stores)
        return m

    def _instantiate(self, m: Module, platform: object) -> None:
        """Instantiate the components that several methods connect; give them the fetched bundle."""
        config = self._config
        self._staged = partial(_stage, m, self._stages)
        self._control = control = instantiate(m, platform, "control", "program_control",
                                              lambda: ProgramControl(config))
        self._imem = imem = instantiate(m, platform, "imem", "instruction_memory",
                                        lambda: InstructionMemory(config))
        self._smem = instantiate(m, platform, "smem", "scalar_memory", lambda: ScalarMemory(config))
        self._decoder = instantiate(m, platform, "decoder", "bundle_decoder",
                                    lambda: BundleDecoder(self._links))
        self._operands = instantiate(m, platform, "operands", "scalar_operands",
                                      lambda: ScalarOperands(self._stages, self._links))
        self._scoreboard = instantiate(m, platform, "scoreboard", "scoreboard", Scoreboard)
        self._ledger = instantiate(m, platform, "ledger", "array_ledger",
                                   lambda: ArrayLedger(config))
        self._semaphores = instantiate(m, platform, "semaphores", "semaphores", Semaphores)
        self._host = instantiate(m, platform, "host", "host_port", lambda: HostPort(config))
        self._bundle = data.View(BUNDLE_LAYOUT, imem.bundle)
        # Scalar registers are written one cycle after the issue by loads and, if ``issue_cycles``
        # is 3, by reads of semaphores.
        self._lands: Value = self._scoreboard.load_lands
        self._semaphore_lands = Signal(name="semaphore_lands") if self._stages else None
        if self._semaphore_lands is not None:
            self._lands |= self._semaphore_lands
        m.d.comb += [
            self._decoder.bundle.eq(imem.bundle),
            self._operands.bundle.eq(imem.bundle),
            imem.read.eq(control.read),
            imem.read_address.eq(control.read_address),
        ]

    def _operand(self, slot: Slot, field: str) -> Value:
        """Return the value of the scalar operand in ``field`` of ``slot``."""
        return getattr(self._operands, f"{slot}_{field}")

    def _uses(self, slot: Slot, unit: Unit) -> Value:
        """Return a bit, set if ``unit`` executes the operation in ``slot``."""
        return self._bundle[slot].op.matches(*unit_codes(slot, unit))

    def _look_for_hazards(self, m: Module, platform: object) -> tuple[Signal, Signal]:
        """Return two bits: the bundle must wait for a register or unit; it must wait for memory."""
        decoder, scoreboard = self._decoder, self._scoreboard
        scalars = () if self._stages else ("scalar_reads", "scalar_writes")  # see `Examination`
        for name in ("vector_reads", "vector_writes", "vector_loads", "mask_reads", "mask_writes",
                     *scalars):
            m.d.comb += getattr(scoreboard, name).eq(self._staged(name, getattr(decoder, name)))
        for reader in READERS:
            port, pending = getattr(scoreboard, f"{reader}_pending"), f"{reader}_pending"
            m.d.comb += [port.valid.eq(getattr(self, pending).valid),
                         port.d.eq(getattr(self, pending).d)]
        wiring.connect(m, wiring.flipped(self.written), scoreboard.written)
        wiring.connect(m, wiring.flipped(self.mask_written), scoreboard.mask_written)
        m.d.comb += scoreboard.issue.eq(self.issue)

        taken = taken_write_ports(m, platform, self._bundle, self.issue, self._stages)
        # All reads of a bundle come before its writes. If it overwrites the register it pushes, the
        # unit must therefore read the register in the next cycle.
        push = self._bundle.push
        overwritten = self._staged("push_overwritten", decoder.push_overwritten)
        misc_overwritten = self._staged("misc_overwritten", decoder.misc_overwritten)
        loads = self._staged("loads", self._bundle[Slot.LOAD].op == LoadOp.LOAD.value)
        stores = self._staged("stores", self._bundle[Slot.STORE].op == StoreOp.STORE.value)
        x_missing, w_missing, pop_missing, xlu_missing = (
            Signal(name=f"{unit}_missing") for unit in ("x", "w", "pop", "xlu"))
        memory = Signal(name="memory_missing")
        held_up = Signal()
        # `Examination` adds the host's claims.
        lasting = scoreboard.memory_hazard if self._stages else memory
        m.d.comb += [
            x_missing.eq(self._staged("pushes_x", push.op.matches(*ROWS)) &
                         ~Mux(overwritten, self.x_free, self.x_ready)),
            w_missing.eq(self._staged("pushes_w", push.op.matches(*WEIGHTS)) &
                         ~Mux(overwritten, self.w_free, self.w_ready)),
            pop_missing.eq(self._staged("pops", self._bundle.pop.op == PopOp.POP.value) &
                           ~self.pop_ready),
            xlu_missing.eq(self._staged("crosses", self._uses(Slot.MISC, Unit.XLU)) &
                           ~Mux(misc_overwritten, self.xlu_free, self.xlu_ready)),
            memory.eq(scoreboard.memory_hazard |
                      (self.urgent_read & loads) | (self.urgent_write & stores)),
            held_up.eq(scoreboard.vector_hazard | lasting | taken.any() |
                       x_missing | w_missing | pop_missing | xlu_missing),
        ]
        return held_up, memory

    def _look_for_faults(self, m: Module, platform: object) -> Signal:
        """Return the bundle's fault with the lowest number, or `Fault.NONE`."""
        ledger, decoder, semaphores = self._ledger, self._decoder, self._semaphores
        faults = instantiate(m, platform, "faults", "bundle_faults",
                             lambda: BundleFaults(self._config))
        m.d.comb += [
            ledger.push.eq(self._bundle.push.op),
            ledger.pop.eq(self._bundle.pop.op),
            ledger.issue.eq(self.issue),
            faults.bundle.eq(self._imem.bundle),
            faults.misc_scalar.eq(self._operand(Slot.MISC, "b")),
            faults.illegal.eq(self._staged("illegal", decoder.illegal)),
            faults.conflict.eq(self._staged("conflict", decoder.conflict)),
            faults.weight_load.eq(ledger.weight_load),
            faults.fifo_overflow.eq(ledger.overflow),
            faults.fifo_underflow.eq(ledger.underflow),
            faults.semaphore.eq(semaphores.is_signal & semaphores.overflow),
        ]
        for slot, address in self._addresses.items():
            m.d.comb += getattr(faults, f"{slot}_address").eq(address)
        return faults.fault

    def _examine(self, m: Module, platform: object, clear: Signal,
                 fault: Signal) -> tuple[Signal, Signal, Signal]:
        """Examine the bundle before its issue, if ``issue_cycles`` is 3.

        ``clear``: the bundle will not wait for a register or unit in the next cycle. ``fault``: its
        fault, if ``clear``. Return ``ready``, ``known`` and ``decoded`` of the `Examination`.
        """
        kept = instantiate(m, platform, "examination", "examination", Examination)
        m.d.comb += [
            kept.valid.eq(self._control.valid), kept.lands.eq(self._lands),
            kept.clear.eq(clear), kept.issue.eq(self.issue),
            kept.loads.eq(self._bundle[Slot.LOAD].op == LoadOp.LOAD.value),
            kept.stores.eq(self._bundle[Slot.STORE].op == StoreOp.STORE.value),
            kept.urgent_read.eq(self.urgent_read), kept.urgent_write.eq(self.urgent_write),
            kept.changed.eq(self._semaphores.is_signal & self.signal.valid),
            kept.fault.eq(fault),
            self._operands.keep.eq(kept.keep), self._operands.late.eq(kept.late),
        ]
        return kept.ready, kept.known, kept.decoded

    def _reach_outside(self, m: Module, sound: Signal, fault: Signal) -> tuple[Value, Value]:
        """Connect the starts of transfers, and the signals to the other core and to other chips.

        ``sound``: the bundle has neither a hazard nor a ``fault``. Return a bit that is set while
        the bundle must wait until its transfer or signal is accepted. Also return the fault of its
        descriptor or of its remote signal.
        """
        control, dma, misc = self._control, self.dma, self._bundle.misc
        starts, signals, outside = (
            Signal(name=name) for name in ("starts", "signals", "outside"))
        outside_fault = Signal(FAULT_BITS)
        m.d.comb += [
            starts.eq(self._staged("starts", self._uses(Slot.MISC, Unit.DMA))),
            signals.eq(self._staged("signals", self._uses(Slot.MISC, Unit.OTHER_CORE))),
            # The descriptor may be read while the bundle waits for other conditions, but not before
            # an outstanding load has delivered its address.
            dma.valid.eq(control.valid & starts & ~self._scoreboard.load_lands &
                         (fault == Fault.NONE.value)),
            dma.address.eq(self._operand(Slot.MISC, "b")),
            dma.data.eq(self._smem.read_data),
            dma.taken.eq(self.issue & starts),
            self.other_signal.valid.eq(sound & signals),
            # A multiplexer, not the plain field: otherwise the netlist would alias the payload with
            # the bundle's bits, and a simulator would see a combinational loop.
            self.other_signal.payload.index.eq(Mux(signals, misc.d, 0)),
            self.other_signal.payload.amount.eq(self._operand(Slot.MISC, "b")),
            outside.eq((starts & ~(dma.valid & dma.ready)) | (signals & ~self.other_signal.ready)),
            outside_fault.eq(Mux(starts & dma.valid & dma.ready, dma.fault, Fault.NONE.value)),
            control.interrupt.eq(self._semaphores.external_overflow),
        ]
        if not self._links:
            return outside, outside_fault
        remote, fault, far = self.remote, self.remote_fault, Signal(name="signals_far")
        m.d.comb += [far.eq(self._uses(Slot.MISC, Unit.LINKS)),
                     remote.valid.eq(sound & far & (fault == Fault.NONE.value))]
        _signal_far(m, remote, far, misc, self._operands)
        return outside | (far & ~remote.ready), Mux(far, fault, outside_fault)

    def _execute_scalar(self, m: Module, platform: object) -> Signal:
        """Execute scalar operations; return a bit that is set while a store writes its word."""
        operands, scoreboard, smem = self._operands, self._scoreboard, self._smem
        s0, s1 = self._bundle.s0, self._bundle.s1
        alus = []
        for slot in (Slot.S0, Slot.S1):
            alu = instantiate(m, platform, f"{slot}_alu", "scalar_alu", ScalarAlu)
            m.d.comb += [alu.op.eq(self._bundle[slot].op), alu.a.eq(self._operand(slot, "a")),
                         alu.b.eq(self._operand(slot, "b"))]
            alus.append(alu)
        branch = instantiate(m, platform, "branch", "branch_unit", BranchUnit)
        _connect_branch(m, branch, self._imem, self._control, operands)
        m.d.comb += [
            operands.write_s0.eq(self.issue & self._uses(Slot.S0, Unit.SCALAR)),
            operands.d_s0.eq(s0.d),
            operands.value_s0.eq(alus[0].result),
            operands.write_s1.eq(self.issue & s1.op.matches(
                *kind_codes(Slot.S1, "d", Kind.SCALAR_OUT, Kind.SCALAR_INOUT))),
            operands.d_s1.eq(s1.d),
            operands.value_s1.eq(Mux(self._uses(Slot.S1, Unit.SCALAR), alus[1].result,
                                     branch.result)),
            scoreboard.scalar_load.eq(s0.op == ScalarOp.LOAD.value),
            scoreboard.scalar_d.eq(s0.d),
        ]
        loads, stores = (Signal(name=name) for name in ("loads", "stores"))
        m.d.comb += [loads.eq(self.issue & (s0.op == ScalarOp.LOAD.value)),
                     stores.eq(self.issue & (s0.op == ScalarOp.STORE.value))]
        written = stores
        if self._stages:  # The store writes one cycle later, before the next bundle can load.
            written = Signal(name="store_writes")
            m.d.sync += written.eq(stores)
        _share_scalar_memory(m, smem, self._host, self.dma, loads, self._addresses[Slot.S0],
                             written if self._stages else None)
        return written

    def _issue_operations(self, m: Module, platform: object) -> None:
        """Send operations to the units when their bundle issues."""
        units = instantiate(m, platform, "units", "unit_decoder", lambda: UnitDecoder(self._config))
        m.d.comb += [
            units.bundle.eq(self._imem.bundle),
            units.issue.eq(self.issue),
            units.ld_address.eq(self._addresses[Slot.LOAD]),
            units.st_address.eq(self._addresses[Slot.STORE]),
        ]
        for slot in (Slot.V0, Slot.V1, Slot.MISC):
            m.d.comb += getattr(units, f"{slot}_scalar").eq(self._operand(slot, "b"))
        for name in unit_ports(self._config):
            wiring.connect(m, getattr(units, name), wiring.flipped(getattr(self, name)))

    def _connect_host(self, m: Module) -> None:
        """Connect the `HostPort` to the memories, registers and semaphores."""
        control, imem, smem, host = self._control, self._imem, self._smem, self._host
        operands, semaphores, scoreboard = self._operands, self._semaphores, self._scoreboard
        wiring.connect(m, wiring.flipped(self.request), host.request)
        wiring.connect(m, host.response, wiring.flipped(self.response))
        m.d.comb += [
            # A load of the previous bundle may still be outstanding.
            host.quiet.eq(~control.running & ~self._lands),
            host.bundle.eq(imem.bundle),
            host.smem_data.eq(smem.read_data[:32]),
            host.scalar_value.eq(operands.host_value),
            host.semaphore_value.eq(semaphores.host_value),
            operands.host_register.eq(host.address),
            semaphores.host_index.eq(host.address),
            semaphores.write.eq(host.semaphore_write),
            semaphores.write_index.eq(host.address),
            semaphores.write_value.eq(host.data),
        ]
        with m.If(host.imem_read):
            m.d.comb += [imem.read.eq(1), imem.read_address.eq(host.bundle_address)]
        with m.If(scoreboard.load_lands):
            m.d.comb += [operands.write_late.eq(1), operands.d_late.eq(scoreboard.load_d),
                         operands.value_late.eq(smem.read_data[:32])]
        with m.Else():
            m.d.comb += [operands.write_late.eq(host.scalar_write),
                         operands.d_late.eq(host.address), operands.value_late.eq(host.data)]

    def _write_words(self, m: Module, platform: object, stores: Signal) -> None:
        """Connect all writes to instruction and scalar memory. ``stores``: a bundle writes smem."""
        host = self._host
        arbiter = instantiate(m, platform, "writes", "write_arbiter",
                              lambda: WriteArbiter(self._config))
        m.d.comb += [
            host.smem_write_free.eq(~stores),
            arbiter.store.eq(stores),
            arbiter.store_address.eq(self._staged("store_address", self._addresses[Slot.S0])),
            arbiter.store_data.eq(self._staged("store_data", self._operand(Slot.S0, "d"))),
        ]
        wiring.connect(m, wiring.flipped(self.word_write), arbiter.word_write)
        _connect_memories(m, arbiter, host, self._imem, self._smem)
