"""Instruction fetch: instruction memory, program counter, start, stop and faults."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2, exact_log2

from ..checks import instance
from ..config import Config
from ..isa import BUNDLE_BITS, BUNDLE_WORDS, Fault
from ..sram import Sram
from ..tiles import instantiate
from .interface import FAULT_BITS, REQUEST_WORD_BITS, fault_bits, write_words

__all__ = ["Examination", "InstructionMemory", "ProgramControl"]


class InstructionMemory(wiring.Component):
    """Instruction memory: in each cycle, one bundle can be read, and up to one bundle written.

    Attributes
    ----------
    read, read_address : In(1), In(log2 imem_bundles)
        Fetches the bundle at this address.
    bundle : Out(BUNDLE_BITS)
        The bundle fetched last, from the cycle after ``read`` on.
    write, write_address, write_word, write_data
        In(1), In(log2 imem_bundles), In(4), In(32 * write_words): writes `write_words` words of the
        bundle at ``write_address``, from word ``write_word`` on, which is a multiple of
        `write_words`. Word 0 of a bundle is its lowest 32 bits; words beyond `BUNDLE_WORDS` are
        ignored. A fetch in the same cycle returns the old words.
    write_one : In(1)
        Writes only word ``write_word``, which may be any word of the bundle, with the lowest word
        of ``write_data``.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        address_bits = ceil_log2(config.imem_bundles)
        super().__init__({
            "read": In(1), "read_address": In(address_bits), "bundle": Out(BUNDLE_BITS),
            "write": In(1), "write_one": In(1), "write_address": In(address_bits),
            "write_word": In(REQUEST_WORD_BITS), "write_data": In(32 * write_words(config)),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        depth, together = self._config.imem_bundles, write_words(self._config)
        group = self.write_word[exact_log2(together):]
        words = []
        for number in range(BUNDLE_WORDS):
            word = instantiate(m, platform, f"word_{number}", Sram.module(32, depth),
                               lambda: Sram(32, depth))
            m.d.comb += [
                word.read.eq(self.read),
                word.read_address.eq(self.read_address),
                word.write.eq(self.write & Mux(self.write_one, self.write_word == number,
                                               group == number // together)),
                word.write_address.eq(self.write_address),
                word.write_data.eq(Mux(self.write_one, self.write_data[:32],
                                       self.write_data.word_select(number % together, 32))),
            ]
            words.append(word.read_data)
        m.d.comb += self.bundle.eq(Cat(words))
        return m


class ProgramControl(wiring.Component):
    """Program counter, start, stop and faults.

    Attributes
    ----------
    start, start_pc, stop, watchdog : In(1), In(32), In(1), In(32)
        Same as in `hdl.core.sequencer.Sequencer`.
    issue : In(1)
        The bundle at ``pc`` issues in this cycle; allowed only while ``valid``.
    next_pc, halt : In(32), In(1)
        ``next_pc``: address of the bundle to execute after the one at ``pc``. ``halt``: the program
        halts after the bundle at ``pc``.
    faulty : In(4)
        The `Fault` of the bundle at ``pc``. Must be `NONE` in a cycle without ``valid``, and in a
        cycle with ``issue``.
    interrupt : In(1)
        An addition from outside the program would overflow a semaphore.
    bus_error : In(1)
        The HBM answered a transfer with an error.
    running, fault, pc : Out(1), Out(fault_bits), Out(32)
        Same as in `hdl.core.sequencer.Sequencer`.
    valid : Out(1)
        The bundle at ``pc`` has been fetched and can issue.
    fetching : Out(1)
        A program is running, but the bundle at ``pc`` has not been fetched yet.
    read, read_address : Out(1), Out(log2 imem_bundles)
        Read port of instruction memory. While a bundle issues, the bundle at ``next_pc`` is
        fetched, so a taken branch costs no extra cycle.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "start": In(1), "start_pc": In(32), "stop": In(1), "watchdog": In(32),
            "issue": In(1), "next_pc": In(32), "halt": In(1), "faulty": In(FAULT_BITS),
            "interrupt": In(1), "bus_error": In(1),
            **({"link_error": In(1)} if config.link_bytes else {}),
            "running": Out(1), "fault": Out(fault_bits(config)), "pc": Out(32),
            "valid": Out(1), "fetching": Out(1),
            "read": Out(1), "read_address": Out(ceil_log2(config.imem_bundles)),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        fetched = Signal()
        in_range = Signal()
        expired = Signal()
        failure = Signal(fault_bits(self._config))
        m.d.comb += [
            in_range.eq(self.pc < self._config.imem_bundles),
            self.valid.eq(self.running & fetched & in_range),
            self.fetching.eq(self.running & ~fetched & in_range),
            self.read.eq(self.issue | self.fetching),
            self.read_address.eq(Mux(self.issue, self.next_pc, self.pc)),
        ]
        self._watch(m, expired)

        # Of several causes, the one with the lowest number. An issuing bundle has no fault itself.
        with m.If(self.running & ~in_range):
            m.d.comb += failure.eq(Fault.PC_RANGE.value)
        with m.Elif(self.faulty != Fault.NONE.value):
            m.d.comb += failure.eq(self.faulty)
        with m.Elif(self.interrupt):
            m.d.comb += failure.eq(Fault.SEMAPHORE.value)
        with m.Elif(expired & ~self.issue):
            m.d.comb += failure.eq(Fault.WATCHDOG.value)
        with m.Elif(self.bus_error):
            m.d.comb += failure.eq(Fault.BUS_ERROR.value)
        if self._config.link_bytes:
            with m.Elif(self.link_error):
                m.d.comb += failure.eq(Fault.LINK.value)

        with m.If(self.running):
            # The first bundle arrives one cycle after a start; from then on there is always one.
            m.d.sync += fetched.eq(1)
            with m.If(self.issue):
                m.d.sync += self.pc.eq(self.next_pc)
            with m.If(self.stop | (self.issue & self.halt)):
                m.d.sync += self.running.eq(0)
        with m.Elif(self.start):
            m.d.sync += [self.running.eq(1), self.pc.eq(self.start_pc), fetched.eq(0),
                         self.fault.eq(Fault.NONE.value)]
        with m.If(failure != Fault.NONE.value):
            m.d.sync += self.running.eq(0)
            # The first fault is kept until the next start.
            with m.If(self.running | self.start | (self.fault == Fault.NONE.value)):
                m.d.sync += self.fault.eq(failure)
        return m

    def _watch(self, m: Module, expired: Signal) -> None:
        """Set ``expired`` when ``watchdog`` cycles have passed without an issue."""
        idle = Signal(32)
        m.d.comb += expired.eq(self.running & (self.watchdog != 0) & (idle >= self.watchdog))
        with m.If(~self.running | self.issue):
            m.d.sync += idle.eq(0)
        with m.Elif(~idle.all()):
            m.d.sync += idle.eq(idle + 1)


class Examination(wiring.Component):
    """Controls the stages of a bundle: decode, examination and issue, at least a cycle each.

    A core has this component only if ``issue_cycles`` is 3.

    1. The bundle is decoded, and the operands that faults depend on are read. This waits until an
       outstanding scalar load or read of a semaphore has written its register.
    2. The bundle is examined: can it issue in the next cycle, and which fault does it have? The
       fault is stored. The other operands are read.
    3. The bundle issues or faults. Until then, the result of the examination stays valid, because
       the bundle's operands do not change. Only a semaphore can change, by an addition from outside
       the program. After such a change, a bundle that itself adds to a semaphore is examined again.

    In the cycle of the issue itself, this component checks only whether the core is stopped and
    whether the host needs vector memory.

    Attributes
    ----------
    valid : In(1)
        A bundle has been fetched and can be decoded.
    lands : In(1)
        A scalar load or a read of a semaphore writes its register at the end of this cycle.
    clear : In(1)
        In the next cycle, the bundle waits for no register or unit; its operands are final.
    loads, stores : In(1)
        ``loads``: the bundle has a vector load. ``stores``: it has a vector store.
    urgent_read, urgent_write : In(1)
        The host needs the read port, or the write port, of vector memory in this cycle.
    issue : In(1)
        The bundle issues in this cycle.
    changed : In(1)
        A semaphore changes in this cycle, and the bundle adds to a semaphore.
    fault : In(FAULT_BITS)
        The bundle's fault, or `NONE`; defined only if ``clear`` is set.
    decoded : Out(1)
        The bundle is decoded: stage 2 or 3.
    ready : Out(1)
        The bundle waits for no register, unit or port, and ``known`` is its fault.
    known : Out(FAULT_BITS)
        The fault that the examination found, or `NONE`; `Fault.ILLEGAL` until the examination is
        complete.
    keep, late : Out(1)
        What `hdl.core.scalar.ScalarOperands` reads. ``keep``, set in stage 1: the operands that
        faults depend on. ``late``, set at any other time: the others, or the host's register.
    """

    def __init__(self) -> None:
        super().__init__({
            "valid": In(1), "lands": In(1), "clear": In(1), "issue": In(1), "changed": In(1),
            "loads": In(1), "stores": In(1), "urgent_read": In(1), "urgent_write": In(1),
            "fault": In(FAULT_BITS), "decoded": Out(1), "ready": Out(1),
            "known": Out(FAULT_BITS), "keep": Out(1), "late": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        begun = Signal()  # the last cycle decoded the bundle, unless the program has ended
        examined = Signal()  # ``found`` is the bundle's fault
        cleared = Signal()
        found = Signal(FAULT_BITS, reset_less=True)
        loading = Signal(reset_less=True)
        storing = Signal(reset_less=True)
        m.d.sync += [
            begun.eq(self.valid & ~self.issue & (begun | ~self.lands)),
            examined.eq((examined | self.clear) & self.valid & ~self.issue & ~self.changed),
            cleared.eq(self.clear & ~self.issue),
            found.eq(self.fault), loading.eq(self.loads), storing.eq(self.stores),
        ]
        m.d.comb += [
            self.decoded.eq(self.valid & begun),
            self.keep.eq(~self.late),
            self.late.eq(begun | ~self.valid),
            # `valid` again, because the core may have been stopped since the examination.
            self.ready.eq(self.valid & examined & cleared & ~(loading & self.urgent_read)
                          & ~(storing & self.urgent_write)),
            self.known.eq(Mux(examined, found, Fault.ILLEGAL.value)),
        ]
        return m
