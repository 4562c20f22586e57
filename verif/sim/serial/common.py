"""A fake serial port and board: the golden bridge accesses a few words instead of a chip."""

import random

from golden.fpga.bridge import GoldenBridge
from hdl.chip.registers import IDENTITY, address, parameters
from hdl.config import Config
from hdl.fpga.protocol import MEMORY_BASE
from sim.errors import BoardError

__all__ = ["FPGA", "Clock", "FakePort", "Registers"]

FPGA = Config.preset("fpga", hbm_bytes=1 << 13)
_WAIT = 0.02


class Clock:
    """A clock that a port advances while it waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Registers:
    """Registers of the chip that a host reads to identify it, and memory."""

    def __init__(self, config: Config = FPGA) -> None:
        self.fixed = {address("ID"): IDENTITY, address("VERSION"): 0x100,
                      **{address(name): value for name, value in parameters(config).items()}}
        self._bytes = config.hbm_bytes
        self.writes: list[tuple[int, int]] = []
        self.power_cycle()

    def power_cycle(self) -> None:
        self.words: dict[int, int] = {}

    def _exists(self, place: int) -> bool:
        return place < 0x2000 or MEMORY_BASE <= place < MEMORY_BASE + self._bytes

    def read(self, place: int) -> int | None:
        if not self._exists(place):
            return None
        return self.fixed.get(place, self.words.get(place, 0))

    def write(self, place: int, word: int) -> bool:
        if self._exists(place):
            self.words[place] = word
            self.writes.append((place, word))
        return self._exists(place)

    def reset(self) -> None:
        self.words.pop(address("INTERRUPT_ENABLE"), None)


class FakePort:
    """A port with the golden bridge at its other end; the line between them can damage bytes."""

    def __init__(self, target: Registers | None = None, baud: int = 1_000_000, *,
                 noise: float = 0.0, seconds: float = 0.0) -> None:
        self.target = target or Registers()
        self.clock = Clock()
        self._bridge = GoldenBridge(self.target)
        self._rng = random.Random(20261122)
        self._baud = self.board_baud = baud
        self._noise, self._seconds = noise, seconds
        self._waiting = bytearray()
        self.connected = True
        self.gone = self.closed = False
        self.breaks = self.flags_after_break = 0
        self.hold = 0
        """Number of responses that reach the host only after its next request."""
        self._held = bytearray()
        self._broken = False
        self.written_bytes = self.read_bytes = 0

    def write(self, data: bytes) -> None:
        self._check()
        self.flags_after_break += self._broken and data[:2] == b"\x7e\x7e"
        self._broken = False
        self.written_bytes += len(data)
        sent = b"".join(map(self._bridge.receive, self._line(data)))
        self._waiting += self._held
        self._held.clear()
        if sent and self.hold:
            self.hold -= 1
            self._held += self._line(sent)
        else:
            self._waiting += self._line(sent)

    def read(self) -> bytes:
        self._check()
        count = len(self._waiting)
        if self._seconds and count:
            count = 1
        found = bytes(self._waiting[:count])
        del self._waiting[:count]
        self.read_bytes += count
        self.clock.now += self._seconds if found else _WAIT
        return found

    def resynchronise(self) -> None:
        self._check()
        self.breaks += 1
        self._broken = True
        self._waiting.clear()

    def set_baud(self, baud: int) -> None:
        self._check()
        self._baud = baud

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.gone:
            raise BoardError("serial port fake is gone")

    def _line(self, data: bytes) -> bytes:
        if not self.connected:
            return b""
        if self._baud != self.board_baud:
            return bytes(byte >> 1 | 0x80 for byte in data)
        return bytes(byte ^ (1 << self._rng.randrange(8)) if self._rng.random() < self._noise
                     else byte for byte in data)
