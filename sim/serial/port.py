"""Serial ports of the host: how to open one, and the methods that a `SerialLink` calls."""

import contextlib
import time
from typing import Any, Protocol, runtime_checkable

from sim.errors import BoardError
from sim.serial.spi import SPI_DEVICE, open_spi

__all__ = ["Port", "UartPort", "open_port"]

_BREAK_SECONDS = 0.002
_READ_SECONDS = 0.02
"""Longest time that `Port.read` waits."""
_WRITE_SECONDS = 10.0


class Port(Protocol):
    """A serial port. All methods except `close` raise a `BoardError` if the port is gone."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def read(self) -> bytes:
        """Return the bytes that have arrived; wait a short time for the first."""

    def resynchronise(self) -> None:
        """Send a break condition, and discard the bytes that have arrived."""

    def close(self) -> None:
        """Close the port; closing twice does nothing."""


@runtime_checkable
class UartPort(Port, Protocol):
    """A port whose rate must be that of the board: a UART."""

    def set_baud(self, baud: int) -> None:
        """Set the rate, in bits per second."""


class _Port:
    """A port of pyserial."""

    def __init__(self, name: str, baud: int) -> None:
        serial = _pyserial()
        self._name = name
        self._errors = (OSError, serial.SerialException)
        try:
            self._serial = serial.Serial(name, baud, timeout=_READ_SECONDS,
                                         write_timeout=_WRITE_SECONDS, exclusive=True)
        except (*self._errors, ValueError) as error:
            raise BoardError(f"serial port {name} cannot be opened at {baud} baud: {error}"
                            ) from None
        with contextlib.suppress(*self._errors, ValueError):
            # Some USB adapters hold back a few bytes for up to 16 ms without this.
            self._serial.set_low_latency_mode(True)

    def write(self, data: bytes) -> None:
        try:
            self._serial.write(data)
        except self._errors as error:
            raise self._gone(error) from None

    def read(self) -> bytes:
        try:
            return bytes(self._serial.read(max(1, self._serial.in_waiting)))
        except self._errors as error:
            raise self._gone(error) from None

    def resynchronise(self) -> None:
        try:
            # Not `send_break`, whose shortest break takes a quarter of a second.
            self._serial.break_condition = True
            time.sleep(_BREAK_SECONDS)
            self._serial.break_condition = False
            self._serial.reset_input_buffer()
        except self._errors as error:
            raise self._gone(error) from None

    def set_baud(self, baud: int) -> None:
        try:
            self._serial.baudrate = baud
        except self._errors as error:
            raise self._gone(error) from None

    def close(self) -> None:
        self._serial.close()

    def _gone(self, error: Exception) -> BoardError:
        return BoardError(f"serial port {self._name} is gone ({error}): connect the cable, and "
                          "open the device again")


def _pyserial() -> Any:
    try:
        import serial
    except ModuleNotFoundError as error:
        raise ImportError("the backend serial needs pyserial: pip install 'systolith[serial]'"
                          ) from error
    return serial


def open_port(name: str, baud: int) -> Port:
    """Open a serial port, with 8 data bits, no parity and one stop bit, or an SPI bus in mode 0.

    Parameters
    ----------
    name : str
        Name of the port, such as ``/dev/ttyUSB0``, or of the bus, such as ``/dev/spidev0.0``.
    baud : int
        Bits per second.

    Raises
    ------
    BoardError
        If the port cannot be opened, or another process uses it.
    ImportError
        If pyserial is not installed, or, for SPI, spidev.
    """
    return open_spi(name, baud) if SPI_DEVICE.fullmatch(name) else _Port(name, baud)
