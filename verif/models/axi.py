"""Checks the rules of an AXI port, cycle by cycle.

The checker is independent of simulators: an adapter gives it the port's signals in each cycle. It
checks AXI's rules for the master and also for the slave, because a test with a wrong model of
memory would prove nothing. It also checks narrower rules that this project's masters keep.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import NoReturn

from hdl.axi.interface import BOUNDARY_BYTES, Burst, Resp

__all__ = ["SIGNALS", "SIGNALS_LITE", "AxiChecker"]

_ADDRESS = ("id", "addr", "len", "size", "burst", "cache", "prot", "qos")
SIGNALS = {
    "aw": tuple(f"aw{name}" for name in _ADDRESS),
    "w": ("wdata", "wstrb", "wlast"),
    "b": ("bid", "bresp"),
    "ar": tuple(f"ar{name}" for name in _ADDRESS),
    "r": ("rid", "rdata", "rresp", "rlast"),
}
"""Signals of the channels of AXI4, without ``valid`` and ``ready``."""
SIGNALS_LITE = {
    "aw": ("awaddr", "awprot"), "w": ("wdata", "wstrb"), "b": ("bresp",),
    "ar": ("araddr", "arprot"), "r": ("rdata", "rresp"),
}
"""The same for AXI4-Lite."""


_INCR = int(Burst.INCR)
_EXOKAY = int(Resp.EXOKAY)
_Pins = Mapping[str, int | None]


def _values(names: Sequence[str]) -> Callable[[_Pins], tuple[int | None, ...]]:
    """A function that returns the values of signals; it calls no Python code for each of them."""
    if len(names) == 1:
        name, = names
        return lambda pins: (pins[name],)
    return itemgetter(*names)


class AxiChecker:
    """The rules of one port, AXI4 or AXI4-Lite.

    Parameters
    ----------
    name : str
        Name of the port, for messages.
    data_bytes : int
        Width of the port's data, in bytes.
    max_beats : int
        Number of beats of the longest burst that the port may request. 0: the port is AXI4-Lite.

    Attributes
    ----------
    transfers : dict of str to int
        Number of transfers on each channel: "aw", "w", "b", "ar" and "r".
    reads, writes : int
        Bursts under way.
    most_reads, most_writes : int
        Largest number of bursts that were under way at once.
    cycles : int
        Number of cycles that were checked.
    """

    def __init__(self, name: str, data_bytes: int, max_beats: int) -> None:
        self._name = name
        self._bytes = data_bytes
        self._max_beats = max_beats
        self.signals = SIGNALS if max_beats else SIGNALS_LITE
        self._handshakes = [(channel, f"{channel}valid", f"{channel}ready")
                            for channel in self.signals]
        self._payloads = {channel: _values(names) for channel, names in self.signals.items()}
        self._bursts = {channel: _values([channel + name for name in (
            "addr", "len", "size", "burst", "id")]) for channel in ("aw", "ar")}
        self._responses = {channel: (f"{channel}resp", f"{channel}id") for channel in ("b", "r")}
        self.transfers = dict.fromkeys(self.signals, 0)
        self.most_reads = self.most_writes = self.cycles = 0
        self._was_reset = False
        self._clear()

    def _clear(self) -> None:
        self._waiting: dict[str, tuple[int | None, ...]] = {}
        self._reads: deque[int] = deque()  # beats of bursts that are to come
        self._read_beats = 0  # of the first of them, that came
        # Beats of bursts of which only the address, or only all data, were taken.
        self._addresses: deque[int] = deque()
        self._data: deque[int] = deque()
        self._write_beats = 0  # of the burst whose data are being sent
        self._offered = 0  # addresses offered, less bursts whose data were all taken
        self._answers = 0  # bursts that are to be answered

    @property
    def reads(self) -> int:
        """Number of read bursts under way."""
        return len(self._reads)

    @property
    def writes(self) -> int:
        """Number of write bursts with an accepted address or data, and no response yet."""
        return len(self._addresses) + len(self._data) + self._answers

    def cycle(self, pins: _Pins, *, resetting: bool = False) -> None:
        """Checks the signals at a rising edge of the clock; None is the value of an unknown signal.

        Raises
        ------
        AssertionError
            If a rule is broken.
        """
        self.cycles += 1
        if resetting:
            self._clear()
            # In the first cycle of a reset they do not know of it yet.
            if self._was_reset:
                for channel in ("aw", "w", "ar"):
                    self._check(pins[f"{channel}valid"] == 0, f"{channel}valid is set in reset")
            self._was_reset = True
            return
        self._was_reset = False
        offers = self._offers(pins)
        if not offers:
            return
        # Answers first: they may only come after the cycle of what they answer.
        if "r" in offers:
            self._see_read_beat(pins)
        if "b" in offers:
            self._see_response(pins)
        if "ar" in offers:
            beats = self._see_address("ar", pins)
            if pins["arready"]:
                self._reads.append(beats)
        if "aw" in offers:
            self._see_write_address(pins)
        if "w" in offers:
            self._see_write_beat(pins)
        while self._addresses and self._data:
            wanted, given = self._addresses.popleft(), self._data.popleft()
            if wanted != given:
                self._fail(f"a burst of {wanted} beats was given {given}")
            self._answers += 1
        for channel, payload in offers.items():
            if pins[f"{channel}ready"]:
                self.transfers[channel] += 1
                self._waiting.pop(channel, None)
            else:
                self._waiting[channel] = payload
        self.most_reads = max(self.most_reads, self.reads)
        self.most_writes = max(self.most_writes, self.writes)

    def idle_cycle(self) -> bool:
        """Counts a cycle without reset in which no ``valid`` is set.

        Returns False, and counts nothing, if an offer waits: then `cycle` has to check the signals.
        """
        if self._waiting:
            return False
        self.cycles += 1
        self._was_reset = False
        return True

    def finish(self) -> None:
        """Checks that no burst is under way, and that something was transferred.

        Raises
        ------
        AssertionError
            If a burst is still under way, or nothing was ever transferred.
        """
        self._check(not self._waiting, f"{', '.join(self._waiting)}: an offer was not taken")
        self._check(not self.reads, f"{self.reads} bursts of reads did not end")
        self._check(not self.writes and not self._write_beats,
                    f"{self.writes} bursts of writes did not end")
        self._check(any(self.transfers.values()), "nothing was transferred")

    def _check(self, holds: bool, message: str) -> None:
        if not holds:
            self._fail(message)

    def _fail(self, message: str) -> NoReturn:
        # Where checks are frequent, only a broken rule leads to here: even to make the message of
        # one that holds would take longer than the check.
        raise AssertionError(f"{self._name}, cycle {self.cycles}: {message}")

    def _offers(self, pins: _Pins) -> dict[str, tuple[int | None, ...]]:
        """Returns the payloads on offer, by channel.

        Checks that ``valid`` and the payload stay until ``ready``, and that no signal is unknown.
        """
        offers = {}
        # Most channels are idle in most cycles: for those nothing else is looked at.
        for channel, valid, ready in self._handshakes:
            offered = pins[valid]
            if offered:
                if pins[ready] is None:
                    self._fail(f"{ready} is unknown")
                offers[channel] = self._payload(channel, pins)
            elif offered is None:
                self._fail(f"{valid} is unknown")
            elif channel in self._waiting:
                self._fail(f"{valid} fell before {ready} rose")
        return offers

    def _payload(self, channel: str, pins: _Pins) -> tuple[int | None, ...]:
        payload = self._payloads[channel](pins)
        before = self._waiting.get(channel, payload)
        if payload != before or None in payload:
            names = self.signals[channel]
            for name, now, earlier in zip(names, payload, before, strict=True):
                self._check(now == earlier, f"{name} on offer became {now}, it was {earlier}")
                self._check(now is not None, f"{name} on offer is unknown")
        return payload

    def _see_address(self, channel: str, pins: _Pins) -> int:
        """Checks a burst; returns its number of beats."""
        if not self._max_beats:
            return 1
        address, length, size, burst, number = (
            value or 0 for value in self._bursts[channel](pins))
        beats = length + 1
        total = beats * self._bytes
        if number != 0:
            self._fail(f"{channel}id is {number}, not 0")
        if burst != _INCR:
            self._fail(f"{channel}burst is {burst}, not INCR")
        if 1 << size != self._bytes:
            self._fail(f"{channel}size is {size}: not the width of {self._bytes} bytes")
        if address % self._bytes != 0:
            self._fail(f"{channel}addr {address:#x} is no multiple of {self._bytes} bytes")
        if beats > self._max_beats:
            self._fail(f"{channel}len is {length}: more than {self._max_beats} beats")
        if address // BOUNDARY_BYTES != (address + total - 1) // BOUNDARY_BYTES:
            self._fail(f"{channel}: {total} bytes at {address:#x} cross a boundary of 4 KiB")
        return beats

    def _see_write_address(self, pins: _Pins) -> None:
        beats = self._see_address("aw", pins)
        if "aw" not in self._waiting:
            self._offered += 1
        if not pins["awready"]:
            return
        if not self._data and not self._addresses:
            self._check(self._write_beats < beats,
                        f"{self._write_beats} beats without wlast for a burst of {beats}")
        self._addresses.append(beats)

    def _see_write_beat(self, pins: _Pins) -> None:
        if self._max_beats:
            self._check(self._offered > 0, "data are on offer before their address")
        if not pins["wready"]:
            return
        self._write_beats += 1
        last = bool(pins["wlast"]) if self._max_beats else True
        if last:
            self._data.append(self._write_beats)
            self._write_beats = 0
            self._offered -= 1
        elif self._addresses and self._write_beats >= self._addresses[0]:
            self._fail(f"beat {self._write_beats} of {self._addresses[0]} has no wlast")

    def _see_response(self, pins: _Pins) -> None:
        self._check(self._answers > 0, "bvalid is set, but no burst awaits a response")
        self._check_response("b", pins)
        if pins["bready"]:
            self._answers -= 1

    def _see_read_beat(self, pins: _Pins) -> None:
        self._check(bool(self._reads), "rvalid is set, but no burst was asked for")
        self._check_response("r", pins)
        is_last = self._read_beats + 1 == self._reads[0]
        if self._max_beats and bool(pins["rlast"]) != is_last:
            self._fail(f"rlast is {pins['rlast']} at beat {self._read_beats + 1} of "
                       f"{self._reads[0]}")
        if pins["rready"]:
            self._read_beats += 1
            if is_last:
                self._reads.popleft()
                self._read_beats = 0

    def _check_response(self, channel: str, pins: _Pins) -> None:
        response, number = self._responses[channel]
        if pins[response] == _EXOKAY:
            self._fail(f"{response} is EXOKAY: no access was exclusive")
        if self._max_beats and pins[number] != 0:
            self._fail(f"{number} is not 0")
