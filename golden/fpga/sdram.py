"""Golden model of an SDRAM that checks the commands it gets: 32 MiB, 16 data bits.

The limits are the strictest of the data sheets of 256-Mbit parts at 143 MHz: AS4C16M16SA,
IS42S16160G, MT48LC16M16A2 and W9825G6KH.
"""

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Edge", "GoldenSdram", "Rule"]

_BANKS = 4
_COLUMNS = 1 << 9
_ROWS = 1 << 13
_A10 = 1 << 10

# Nanoseconds, by the names of the data sheets.
_RCD, _RP, _RAS, _RC, _RFC, _WR, _RRD = 21, 21, 45, 67, 70, 20, 15
_RAS_LONGEST = 100_000
_REFRESH_TIME, _REFRESHES = 64_000_000, 8192
# Clock cycles.
_WR_CYCLES, _MRD_CYCLES = 2, 2
_START_REFRESHES = 8
_OPEN = 0xDEAD
"""Word on data pins that neither side drives; the value is arbitrary."""
_SLACK = 2
"""Number of refreshes that may be late before a rule is violated."""


class Rule(IntEnum):
    """What a command, or the lack of one, violates."""

    NONE = 0
    ENABLE = 1
    """CKE is low with a command, or at any time after the first command."""
    START = 2
    """A command earlier than ``start_us``, or out of order: the first command must precharge all
    banks; after it, only precharge and refresh are permitted until the first mode command."""
    MODE = 3
    """A mode command that does not set sequential bursts of one word with CAS latency 2, or that
    fewer than eight refreshes precede. From the second mode command on, only the refreshes since
    the first mode command count."""
    COMMAND = 4
    """A command that this memory does not know: burst stop or automatic precharge."""
    IDLE = 5
    """Activate of an active bank; refresh or mode while any bank is active."""
    ACTIVE = 6
    """A read or write of a bank that is not active."""
    RCD = 7
    """A read or write too soon after activate of its bank."""
    RP = 8
    """A command other than precharge too soon after a precharge of its bank; a refresh or mode too
    soon after a precharge of any bank."""
    RAS = 9
    """Precharge too soon, or too late, after activate of the same bank."""
    RC = 10
    """Activate or refresh too soon after activate of any bank."""
    RFC = 11
    """A command too soon after refresh."""
    MRD = 12
    """A command too soon after the mode."""
    WR = 13
    """Precharge too soon after a write to the same bank."""
    REFRESH = 14
    """More than two refreshes are late."""
    DATA = 15
    """A write without data; or the controller drives data at an edge, and the memory drives the
    same pins just before or just after it."""


@dataclass(frozen=True)
class Edge:
    """Levels of the pins at a rising edge of the SDRAM's clock.

    Parameters
    ----------
    command : int
        CS#, RAS#, CAS# and WE#, from bit 3 to bit 0.
    bank, address, mask : int
        BA, A and DQM.
    data : int or None
        The word that the controller drives; None: it drives none.
    enable : int
        CKE.
    """

    command: int = 7
    bank: int = 0
    address: int = 0
    mask: int = 3
    data: int | None = None
    enable: int = 1


class GoldenSdram:
    """An SDRAM, edge by edge of its clock.

    Parameters
    ----------
    period_ps : int
        Period of the clock in picoseconds.
    start_us : int
        Microseconds from the first edge during which no command is permitted.

    Attributes
    ----------
    words : dict of int to int
        The words of 16 bits that were written, by address; all others are 0. An address counts
        words: from the highest bits down, it consists of row, bank and column.
    counts : dict of str to int
        Number of commands so far, by name in lower case; refreshes only since the first mode
        command, if there has been one.
    """

    def __init__(self, period_ps: int, start_us: int = 200) -> None:
        self._period, self._start = period_ps, 1_000_000 * start_us
        self.words: dict[int, int] = {}
        self.counts = dict.fromkeys(
            ("mode", "refresh", "precharge", "activate", "write", "read"), 0)
        self._edge = 0
        self._rows: list[int | None] = [None] * _BANKS
        self._activated: list[int | None] = [None] * _BANKS
        self._written: list[int | None] = [None] * _BANKS
        self._precharged: list[int | None] = [None] * _BANKS
        self._refreshed: int | None = None
        self._moded: int | None = None
        self._begun = self._ready = False
        self._refresh_origin = 0
        self._pipe: list[int | None] = [None, None]  # words read at the last edges
        self._masks = 3

    def edge(self, pins: Edge) -> tuple[int | None, Rule]:
        """Simulate one rising edge of the clock.

        Returns
        -------
        tuple of (int or None) and Rule
            The word that the memory drives from this edge to the next, if any; the rule that this
            edge violates, or `Rule.NONE`. A command that violates a rule may have any effect.
        """
        rule = self._check(pins)
        driven = self._pipe.pop(0)
        if pins.data is not None and (driven is not None or self._pipe[0] is not None) and not rule:
            rule = Rule.DATA
        word: int | None = None
        if pins.command <= 5 and pins.enable and not rule:
            word = self._execute(pins)
        self._pipe.append(word)
        self._edge += 1
        out = self._pipe[0]
        if out is not None:
            keep = (0 if self._masks & 1 else 0x00FF) | (0 if self._masks & 2 else 0xFF00)
            out = out & keep | _OPEN & ~keep
        self._masks = pins.mask
        return out, rule

    def _since(self, edge: int | None) -> int:
        """Return the picoseconds since edge number ``edge``; 2**60 if there was no edge (None)."""
        return 1 << 60 if edge is None else (self._edge - edge) * self._period

    def _check(self, pins: Edge) -> Rule:
        """The first violated rule that is found; `Rule.NONE` if none is.

        The method `edge` adds one check: no data on pins that the memory drives.
        """
        command, ready = pins.command, self._ready
        if not pins.enable and (self._begun or command <= 6):
            return Rule.ENABLE
        if ready and self._late() > _SLACK:
            return Rule.REFRESH
        if command >= 7:
            return Rule.NONE
        if self._edge * self._period < self._start or (not self._begun and not (
                command == 2 and pins.address & _A10)) or (
                self._begun and not ready and command >= 3):
            return Rule.START
        if command == 6 or (command in (4, 5) and pins.address & _A10):
            return Rule.COMMAND
        if command == 0 and (pins.address & 0x1FF != 0x20 or pins.bank
                             or self.counts["refresh"] < _START_REFRESHES):
            return Rule.MODE
        return self._check_bank(pins) or self._check_times(pins)

    def _late(self) -> int:
        """Number of refreshes that should have taken place, and have not."""
        due = (self._edge - self._refresh_origin) * self._period * _REFRESHES // (
            1000 * _REFRESH_TIME)
        return due - self.counts["refresh"]

    def _check_bank(self, pins: Edge) -> Rule:
        command = pins.command
        if (command in (0, 1) and any(row is not None for row in self._rows)) or (
                command == 3 and self._rows[pins.bank] is not None):
            return Rule.IDLE
        if command in (4, 5) and self._rows[pins.bank] is None:
            return Rule.ACTIVE
        return Rule.NONE

    def _check_times(self, pins: Edge) -> Rule:
        command, bank = pins.command, pins.bank
        if command in (4, 5) and self._since(self._activated[bank]) < 1000 * _RCD:
            return Rule.RCD
        banks = range(_BANKS) if command in (0, 1) or (command == 2 and pins.address & _A10) else (
            [bank])
        if command != 2 and any(self._since(self._precharged[one]) < 1000 * _RP for one in banks):
            return Rule.RP
        if command == 2:
            for one in banks:
                if self._rows[one] is not None and not (
                        1000 * _RAS <= self._since(self._activated[one]) <= 1000 * _RAS_LONGEST):
                    return Rule.RAS
        if command in (1, 3) and (
                any(self._since(self._activated[one]) < 1000 * _RC for one in banks)
                or any(self._since(edge) < 1000 * _RRD for edge in self._activated)):
            return Rule.RC
        if self._since(self._refreshed) < 1000 * _RFC:
            return Rule.RFC
        if self._since(self._moded) < _MRD_CYCLES * self._period:
            return Rule.MRD
        if command == 2 and any(self._since(self._written[one]) < max(
                1000 * _WR, _WR_CYCLES * self._period) for one in banks):
            return Rule.WR
        return Rule.DATA if command == 4 and pins.data is None else Rule.NONE

    def _execute(self, pins: Edge) -> int | None:
        """Execute the command at the pins; if it is a read, return the word."""
        names = {0: "mode", 1: "refresh", 2: "precharge", 3: "activate", 4: "write", 5: "read"}
        self.counts[names[pins.command]] += 1
        bank = pins.bank
        if pins.command == 0:
            if not self._ready:
                self._refresh_origin = self._edge
                self.counts["refresh"] = 0
            self._moded, self._ready = self._edge, True
        elif pins.command == 1:
            self._refreshed = self._edge
        elif pins.command == 2:
            self._begun = True
            for one in range(_BANKS) if pins.address & _A10 else [bank]:
                self._rows[one], self._precharged[one] = None, self._edge
        elif pins.command == 3:
            self._rows[bank], self._activated[bank] = pins.address % _ROWS, self._edge
        else:
            row = self._rows[bank]
            assert row is not None
            at = (row * _BANKS + bank) * _COLUMNS + pins.address % _COLUMNS
            old = self.words.get(at, 0)
            if pins.command == 5:
                return old
            keep = (0x00FF if pins.mask & 1 else 0) | (0xFF00 if pins.mask & 2 else 0)
            assert pins.data is not None
            self.words[at] = old & keep | pins.data & ~keep
            self._written[bank] = self._edge
        return None
