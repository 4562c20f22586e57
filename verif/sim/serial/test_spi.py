"""The port on an SPI bus, with the golden bridge at its other end."""

import random
import sys
from itertools import count
from types import SimpleNamespace

import pytest

from golden.fpga.bridge import GoldenBridge
from hdl.fpga.protocol import FLAG, MEMORY_BASE
from sim.errors import BoardError
from sim.serial.chip import SerialChip
from sim.serial.port import open_port
from sim.serial.spi import SpiPort
from verif.sim.serial.common import FPGA, Registers


class FakeBus:
    """A bus as that of spidev: each byte that goes out brings one of the board's."""

    def __init__(self) -> None:
        self.bridge = GoldenBridge(Registers())
        self.waiting = bytearray()
        self.opened: tuple[int, int] | None = None
        self.mode = self.max_speed_hz = -1
        self.gone = self.closed = False
        self.damage = 0
        self._rng = random.Random(7)

    def open(self, bus: int, select: int) -> None:
        if bus > 1:
            raise FileNotFoundError("no such bus")
        self.opened = bus, select

    def xfer3(self, data: list[int]) -> tuple[int, ...]:
        if self.gone:
            raise OSError("gone")
        found = []
        for byte in data:
            found.append(self.waiting.pop(0) if self.waiting else FLAG)
            damaged = self.damage and byte != FLAG and self._rng.random() < 0.1
            self.damage -= bool(damaged)
            self.waiting += self.bridge.receive(byte ^ 4 if damaged else byte)
        return tuple(found)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> FakeBus:
    found = FakeBus()
    monkeypatch.setitem(sys.modules, "spidev", SimpleNamespace(SpiDev=lambda: found))
    return found


def test_chip_behind_an_spi_bus(bus: FakeBus) -> None:
    ticks = count()
    chip = SerialChip(FPGA, "/dev/spidev1.2", 2_000_000, clock=lambda: next(ticks) / 100)
    assert (bus.opened, bus.mode, bus.max_speed_hz) == ((1, 2), 0, 2_000_000)
    words = [7, 0x7E7E7E7E, 0x7D7E7D00] * 100
    chip.write(MEMORY_BASE + 8, words)
    assert chip.read(MEMORY_BASE + 8, 300).tolist() == words
    assert chip.link.repeats == 0
    bus.damage = 5
    while bus.damage:
        assert chip.read(MEMORY_BASE + 8, 300).tolist() == words
    assert chip.link.repeats > 0
    bus.gone = True
    with pytest.raises(BoardError, match=r"SPI bus is gone \(gone\)"):
        chip.read(0)
    chip.close()
    assert bus.closed


def test_bus_that_is_missing_is_named(bus: FakeBus) -> None:
    with pytest.raises(BoardError, match=r"SPI bus /dev/spidev3\.0 cannot be opened .*no such bus"):
        open_port("/dev/spidev3.0", 1_000_000)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spidev", None)
    with pytest.raises(ImportError, match="pip install spidev"):
        open_port("/dev/spidev0.0", 1_000_000)


@pytest.mark.parametrize(("idle", "message"), [
    (FLAG, "the board at spi does not answer"),
    (0, "the board at spi answers with [1-9][0-9]* bytes, but with no valid frame")])
def test_silent_board_is_named(idle: int, message: str) -> None:
    ticks = count()
    with pytest.raises(BoardError, match=rf"{message} \(8 requests at 1000000 bits a second\): "
                                         "check the wires.*LINE=spi") as failed:
        SerialChip(FPGA, "spi", 1_000_000, SpiPort(lambda data: bytes([idle] * len(data))),
                   lambda: float(next(ticks)))
    assert "BAUD" not in str(failed.value)
    assert failed.value.__cause__ is None
    assert next(ticks) < 100  # No other rates were tried.

