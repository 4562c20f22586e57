"""An SPI bus of the host as the port of a board."""

import importlib
import re
from collections.abc import Callable
from typing import Any

from hdl.fpga.protocol import FLAG
from sim.errors import BoardError

__all__ = ["SPI_DEVICE", "SpiPort", "open_spi"]

SPI_DEVICE = re.compile(r"/dev/spidev(\d+)\.(\d+)")
"""Pattern of the names of SPI buses; its groups are the numbers of the bus and its select line."""
_READ_BYTES = 64
_FLAG = bytes([FLAG])


class SpiPort:
    """A `sim.serial.port.Port` on SPI: each byte sent brings a byte from the board.

    A flag is the byte that separates frames. To read, the port sends flags. The board sends flags
    while it has nothing else to send. If no frame is under way, `read` leaves these flags out.

    Parameters
    ----------
    transfer : callable
        Sends bytes in mode 0, and returns as many bytes from the board. It raises an OSError if the
        bus is gone.
    """

    def __init__(self, transfer: Callable[[bytes], bytes]) -> None:
        self._transfer = transfer
        self._received = b""
        self._idle = True

    def write(self, data: bytes) -> None:
        """Send bytes, and keep those that the board sends meanwhile."""
        try:
            self._received += self._transfer(data)
        except OSError as error:
            raise BoardError(f"SPI bus is gone ({error}): open the device again") from None

    def read(self) -> bytes:
        """Return the bytes that have arrived; if there are none, first send flags to fetch some."""
        if not self._received:
            self.write(_FLAG * _READ_BYTES)
        found, self._received = self._received, b""
        if self._idle and not found.strip(_FLAG):
            return b""
        self._idle = found.endswith(_FLAG)
        return found

    def resynchronise(self) -> None:
        """End a frame that the board has received in part, and discard what has arrived."""
        self.write(_FLAG)
        self._received, self._idle = b"", True

    def close(self) -> None:
        """Do nothing: the code that made ``transfer`` closes the bus."""


class _Bus(SpiPort):
    """A bus of the package ``spidev``."""

    def __init__(self, bus: Any) -> None:
        super().__init__(lambda data: bytes(bus.xfer3(list(data))))
        self._bus = bus

    def close(self) -> None:
        """Close the bus; closing twice does nothing."""
        self._bus.close()


def open_spi(name: str, rate: int) -> SpiPort:
    """Open an SPI bus by its name, which `SPI_DEVICE` matches; ``rate`` is in bits per second.

    Raises
    ------
    BoardError
        If the bus cannot be opened.
    ImportError
        If spidev is not installed.
    """
    try:
        spidev = importlib.import_module("spidev")
    except ModuleNotFoundError as error:
        raise ImportError(f"the port {name} needs spidev: pip install spidev") from error
    found = SPI_DEVICE.fullmatch(name)
    assert found is not None
    bus = spidev.SpiDev()
    try:
        bus.open(int(found[1]), int(found[2]))
        bus.mode = 0
        bus.max_speed_hz = rate
    except OSError as error:
        raise BoardError(f"SPI bus {name} cannot be opened at {rate} bits a second: {error}"
                         ) from None
    return _Bus(bus)
