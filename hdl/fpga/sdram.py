"""A controller of an SDRAM with single data rate and 16 data bits."""

from dataclasses import dataclass
from enum import IntEnum

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..checks import instance, integer

__all__ = ["ADDRESS_BITS", "CAS_LATENCY", "BeatAccess", "Command", "SdramController", "SdramPins",
           "SdramTiming"]

_WORD_BITS = 16
_COLUMN_BITS, _BANK_BITS, _ROW_BITS = 9, 2, 13
ADDRESS_BITS = 1 + _COLUMN_BITS + _BANK_BITS + _ROW_BITS
"""Width of a byte address of the SDRAM, which has 32 MiB."""
CAS_LATENCY = 2
"""Cycles of the SDRAM's clock from a read to the edge at which its data are valid."""
_PADS = 2
"""Cycles from a decision of the controller to the SDRAM: two registers."""
_MAX_HZ = 100_000_000
_ALL_BANKS = 1 << 10
_START_REFRESHES = 8


class Command(IntEnum):
    """Levels of the pins CS#, RAS#, CAS# and WE#, from bit 3 to bit 0."""

    MODE = 0
    REFRESH = 1
    PRECHARGE = 2
    ACTIVATE = 3
    WRITE = 4
    READ = 5
    NOP = 7
    INHIBIT = 15


@dataclass(frozen=True)
class SdramTiming:
    """The clock of an SDRAM, and the times that its data sheet requires, by their names there.

    Boards such as the ULX3S have one of several parts of 256 Mbit and 143 MHz or more: AS4C16M16SA,
    IS42S16160G, MT48LC16M16A2, W9825G6KH. The defaults suit all of these: each default is the
    longest time that one of them requires.

    Parameters
    ----------
    clock_hz : int
        Frequency of the clock, at most 100 MHz, because of the CAS latency of 2.
    t_rcd, t_rp, t_ras, t_rc, t_rfc, t_wr : int
        Nanoseconds from activate to read or write; from precharge to the next command; from
        activate to precharge; from activate to activate; from refresh to the next command; from
        the last word written to precharge.
    wr_cycles, mrd_cycles : int
        Least number of cycles from the last word written to precharge; cycles from the write of the
        mode register to the next command.
    refresh_ms, refreshes : int
        In ``refresh_ms`` milliseconds, ``refreshes`` refreshes are needed.
    start_us : int
        Microseconds from the start of the clock to the first command.

    Raises
    ------
    TypeError, ValueError
        If an argument is not an integer, or the clock is too fast or too slow.
    """

    clock_hz: int
    t_rcd: int = 21
    t_rp: int = 21
    t_ras: int = 45
    t_rc: int = 67
    t_rfc: int = 70
    t_wr: int = 20
    wr_cycles: int = 2
    mrd_cycles: int = 2
    refresh_ms: int = 64
    refreshes: int = 8192
    start_us: int = 200

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            integer(name, getattr(self, name), 0)
        integer("clock_hz", self.clock_hz, 1_000_000, _MAX_HZ)

    def cycles(self, nanoseconds: int) -> int:
        """Smallest number of cycles, at least one, that takes ``nanoseconds`` or longer."""
        return max(1, -(-nanoseconds * self.clock_hz // 10**9))

    @property
    def refresh_cycles(self) -> int:
        """Cycles from one refresh to the next."""
        return self.refresh_ms * self.clock_hz // (1000 * self.refreshes)

    @property
    def active_cycles(self) -> int:
        """Cycles from activate to precharge."""
        return max(self.cycles(self.t_ras), self.cycles(self.t_rc) - self.cycles(self.t_rp))

    @property
    def recovery_cycles(self) -> int:
        """Cycles from the last word written to precharge."""
        return max(self.cycles(self.t_wr), self.wr_cycles)


class SdramPins(wiring.Signature):
    """Pins of an SDRAM: `Out` at the controller.

    There is a register after each output, and one before the input. The clock of the SDRAM is
    inverted: it rises in the middle of the controller's cycle.

    Members
    -------
    enable : Out(1)
        CKE.
    command : Out(4)
        A `Command`.
    bank, address, mask : Out(2), Out(13), Out(2)
        BA, A and DQM.
    data, drive, data_in : Out(16), Out(1), In(16)
        DQ: the word to write, whether to drive it, and the word read.
    """

    def __init__(self) -> None:
        super().__init__({
            "enable": Out(1), "command": Out(4, init=Command.INHIBIT), "bank": Out(_BANK_BITS),
            "address": Out(_ROW_BITS), "mask": Out(_WORD_BITS // 8, init=3),
            "data": Out(_WORD_BITS), "drive": Out(1), "data_in": In(_WORD_BITS)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SdramPins)

    def __hash__(self) -> int:
        return hash(type(self))


class BeatAccess(wiring.Signature):
    """Accesses to a memory, a beat at a time and in order: `Out` at the requester.

    Parameters
    ----------
    row_bits : int
        Width of ``row``.
    data_bits : int
        Width of a beat.

    Members
    -------
    valid, ready : Out(1), In(1)
        An access is requested; it is accepted.
    write, row, data, strobe : Out(1), Out(row_bits), Out(data_bits), Out(data_bits / 8)
        The access: whether it writes, the number of the beat in the memory, and for a write the
        data and which bytes of them to write.
    done, value : In(1), In(data_bits)
        ``done``: the oldest accepted read ends in this cycle. ``value``: the beat that it read,
        held until the first data of the next read.
    idle : In(1)
        No access is under way.
    """

    def __init__(self, row_bits: int, data_bits: int) -> None:
        self.row_bits, self.data_bits = row_bits, data_bits
        super().__init__({
            "valid": Out(1), "ready": In(1), "write": Out(1), "row": Out(row_bits),
            "data": Out(data_bits), "strobe": Out(data_bits // 8),
            "done": In(1), "value": In(data_bits), "idle": In(1)})

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, BeatAccess)
                and (self.row_bits, self.data_bits) == (other.row_bits, other.data_bits))

    def __hash__(self) -> int:
        return hash(type(self))


class SdramController(wiring.Component):
    """Controls an SDRAM: starts it, refreshes it, and reads and writes beats.

    The words of a beat follow each other in successive cycles, and so do beats of an open row. One
    row at a time is open. A refresh that is due takes place before the next beat, so it waits for
    one beat at most.

    Parameters
    ----------
    timing : SdramTiming
        Clock and times.
    address_bits : int
        Width of a byte address, at most `ADDRESS_BITS`: the part of the SDRAM that is used.
    data_bits : int
        Width of a beat: 32, 64, ... 1024.

    Attributes
    ----------
    access : In(BeatAccess)
        The first access is accepted when the SDRAM has started. A read of an open row ends 5 cycles
        after its last word is requested.
    pins : Out(SdramPins)

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or a beat can take longer than the time between two refreshes.
    """

    def __init__(self, timing: SdramTiming, address_bits: int, data_bits: int) -> None:
        instance("timing", timing, SdramTiming)
        self._timing = timing
        if integer("data_bits", data_bits) not in [32 << power for power in range(6)]:
            raise ValueError(f"data_bits must be a power of two from 32 to 1024, not {data_bits!r}")
        self._words = data_bits // _WORD_BITS
        # A beat that waits for words read, is activated, precharged and followed by a refresh.
        needed = (CAS_LATENCY + _PADS + timing.cycles(timing.t_rcd)
                  + max(timing.active_cycles, self._words + timing.recovery_cycles)
                  + timing.cycles(timing.t_rp) + timing.cycles(timing.t_rfc))
        if timing.refresh_cycles < needed:
            raise ValueError(f"refresh_cycles of timing must be at least {needed} for beats of "
                             f"{data_bits} bits, not {timing.refresh_cycles!r}")
        low = exact_log2(data_bits // 8)
        self._row_bits = integer("address_bits", address_bits, low + 1, ADDRESS_BITS) - low
        super().__init__({"access": In(BeatAccess(self._row_bits, data_bits)),
                          "pins": Out(SdramPins())})
        # The beat under way: its words move down as they are sent.
        self._busy, self._write = Signal(), Signal()
        self._row = Signal(self._row_bits)
        self._data = Signal(data_bits)
        self._strobe = Signal(data_bits // 8)
        self._word = Signal(range(self._words))
        self._open = Signal()
        self._open_row = Signal(_ROW_BITS + _BANK_BITS)
        start = timing.cycles(1000 * timing.start_us)
        self._wait = Signal(range(start + 1), init=start)  # cycles to the next command
        self._hold = Signal(range(timing.cycles(timing.t_ras) + timing.cycles(timing.t_rc)
                                  + timing.cycles(timing.t_wr) + timing.wr_cycles))
        self._due = Signal()  # a refresh
        self._flight = Signal(CAS_LATENCY + _PADS)  # reads under way, by their age in cycles

    def elaborate(self, platform: object) -> Module:
        m = Module()
        pins, timing = self.pins, self._timing
        m.d.sync += [pins.enable.eq(1), pins.command.eq(Command.NOP), pins.mask.eq(3),
                     pins.drive.eq(0)]
        since = Signal(range(timing.refresh_cycles))
        with m.If(since == 0):
            m.d.sync += [since.eq(timing.refresh_cycles - 1), self._due.eq(1)]
        with m.Else():
            m.d.sync += since.eq(since - 1)
        with m.If(self._hold != 0):
            m.d.sync += self._hold.eq(self._hold - 1)
        sends = Signal()
        count = Signal(range(_START_REFRESHES))
        with m.If(self._wait != 0):
            m.d.sync += self._wait.eq(self._wait - 1)
        with m.Else(), m.FSM():
            with m.State("START"):
                self._command(m, Command.PRECHARGE, timing.cycles(timing.t_rp), _ALL_BANKS)
                m.next = "REFRESH"
            with m.State("REFRESH"):
                self._command(m, Command.REFRESH, timing.cycles(timing.t_rfc))
                m.d.sync += count.eq(count + 1)
                with m.If(count == _START_REFRESHES - 1):
                    m.next = "MODE"
            with m.State("MODE"):
                # Bursts of one word.
                self._command(m, Command.MODE, timing.mrd_cycles, CAS_LATENCY << 4)
                m.next = "RUN"
            with m.State("RUN"):
                self._run(m, sends)
        self._accept(m, sends)
        self._receive(m, sends & ~self._write)
        return m

    def _command(self, m: Module, command: Command, cycles: int,
                 address: Value | int = 0) -> None:
        """Send a command and an ``address``; the next command follows at least ``cycles`` later."""
        m.d.sync += [self.pins.command.eq(command), self.pins.address.eq(address),
                     self._wait.eq(cycles - 1)]

    def _run(self, m: Module, sends: Signal) -> None:
        """Choose a command for the beat under way, or refresh.

        Set ``sends`` in the cycle in which the command reads or writes a word of the beat.
        """
        pins, timing = self.pins, self._timing
        column = Cat(self._word, self._row)[:_COLUMN_BITS]
        target = Signal.like(self._open_row)
        m.d.comb += target.eq(Cat(self._word, self._row)[_COLUMN_BITS:])
        refresh = self._due & (self._word == 0)
        recovery = timing.recovery_cycles
        m.d.sync += pins.bank.eq(target[:_BANK_BITS])
        with m.If(refresh | (self._busy & ~(self._open & (self._open_row == target)))):
            with m.If(self._open), m.If(self._hold == 0):
                self._command(m, Command.PRECHARGE, timing.cycles(timing.t_rp), _ALL_BANKS)
                m.d.sync += self._open.eq(0)
            with m.Elif(refresh):
                self._command(m, Command.REFRESH, timing.cycles(timing.t_rfc))
                m.d.sync += self._due.eq(0)
            with m.Else():
                self._command(m, Command.ACTIVATE, timing.cycles(timing.t_rcd),
                              target[_BANK_BITS:])
                m.d.sync += [self._open.eq(1), self._open_row.eq(target),
                             self._hold.eq(timing.active_cycles - 1)]
        with m.Elif(self._busy & ~self._meets_read()):
            m.d.comb += sends.eq(1)
            self._command(m, Command.READ, 1, column)
            m.d.sync += pins.mask.eq(0)
            with m.If(self._write):
                self._command(m, Command.WRITE, 1, column)
                m.d.sync += [
                    pins.data.eq(self._data), pins.drive.eq(1), pins.mask.eq(~self._strobe[:2]),
                    self._hold.eq(Mux(self._hold > recovery, self._hold - 1, recovery - 1))]

    def _meets_read(self) -> Value:
        """Whether a word to write would collide, on the pins, with a word that the SDRAM drives."""
        return self._write & self._flight.any()

    def _accept(self, m: Module, sends: Signal) -> None:
        """Accept a beat if none is under way, or if a command now serves the last word of one.

        `_run` sets ``sends`` in each cycle in which a command reads or writes a word.
        """
        access = self.access
        with m.If(sends):
            m.d.sync += [self._word.eq(self._word + 1), self._data.eq(self._data >> _WORD_BITS),
                         self._strobe.eq(self._strobe >> _WORD_BITS // 8)]
        last = sends & self._word.all()
        m.d.comb += access.ready.eq(~self._busy | last)
        with m.If(access.ready):
            m.d.sync += self._busy.eq(access.valid)
        with m.If(access.ready & access.valid):
            m.d.sync += [getattr(self, f"_{name}").eq(getattr(access, name))
                         for name in ("write", "row", "data", "strobe")]

    def _receive(self, m: Module, reads: Value) -> None:
        """Collect the words of a beat; ``reads`` is set when a word is requested."""
        access = self.access
        word = Signal(range(self._words))
        m.d.sync += [self._flight.eq(Cat(reads, self._flight)), access.done.eq(0)]
        with m.If(self._flight[-1]):
            m.d.sync += [access.value.eq(Cat(access.value[_WORD_BITS:], self.pins.data_in)),
                         word.eq(word + 1), access.done.eq(word.all())]
        m.d.comb += access.idle.eq(~self._busy & ~self._flight.any() & ~access.done)
