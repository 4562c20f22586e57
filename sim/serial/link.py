"""Requests over a serial line: sequence numbers, time-outs, repetition and resynchronisation."""

import random
import time
from collections.abc import Callable

from hdl.fpga.protocol import (
    CHECK_BYTES,
    FLAG,
    MAX_WORDS,
    RESPONSE_BYTES,
    Deframer,
    Operation,
    Request,
    Response,
    Status,
    frame,
)
from sim.closing import Closeable
from sim.errors import BoardError
from sim.serial.port import Port, UartPort

__all__ = ["COMMON_BAUDS", "SerialLink"]

COMMON_BAUDS = (1_000_000, 115_200, 921_600, 460_800, 230_400, 2_000_000, 3_000_000, 500_000)
"""Rates that `SerialLink.find_baud` tries, the most probable first."""

_TRIES = 8
"""Maximum number of times that a request is sent."""
_PATIENCE_SECONDS = 1.0
"""Time to wait for a response, in addition to the time of its bytes on the line."""
_PROBE_SECONDS = 0.5
_MARGIN = 4
"""The time limit allows each byte this many times the measured time per byte."""
_BITS = 10
"""Number of bits that a byte takes on the line: a start bit, 8 data bits and a stop bit."""
_SEQUENCES = 256


class SerialLink(Closeable):
    """Sends requests to the bridge of a board (`hdl.fpga.bridge`), and receives its responses.

    The host waits for a response before it sends the next request. A request without a valid
    response is repeated with the same sequence number, so that the bridge executes it only once.
    Adapters and simulated boards are slower than the line. So the time limit for a response is
    derived from the measured time per byte of an earlier request and its response.

    Parameters
    ----------
    port : Port
        The port; `close` closes it.
    name : str
        Name of the port, for messages.
    baud : int
        Bits per second, as set at the port.
    clock : callable, optional
        Returns the time in seconds.

    Attributes
    ----------
    requests, repeats : int
        Number of answered requests, and number of times that a request was sent again.
    sent_bytes, received_bytes : int
        Number of bytes on the line in each direction.
    """

    def __init__(self, port: Port, name: str, baud: int,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._port: Port | None = port
        self._name, self._baud, self._clock = name, baud, clock
        # Random, as it must differ from the number of the previous session's final request, which
        # is unknown.
        self._sequence = random.randrange(_SEQUENCES)
        self._pace = _BITS / baud  # seconds per byte
        self._failed = ""
        self.requests = self.repeats = self.sent_bytes = self.received_bytes = 0

    def ask(self, operation: Operation, address: int = 0, words: tuple[int, ...] = (),
            count: int = 0) -> Response:
        """Send a request, repeatedly if necessary, and return its response.

        Parameters
        ----------
        operation, address, words, count
            As in `Request`.

        Raises
        ------
        BoardError
            If there is no valid response, or the port is gone.
        """
        self._sequence = (self._sequence + 1) % _SEQUENCES
        line = frame(Request(self._sequence, operation, address, words, count).payload())
        size = len(line) + RESPONSE_BYTES + CHECK_BYTES + 2 + 4 * count
        port = self._opened()
        heard = 0
        for attempt in range(_TRIES):
            if attempt:
                self.repeats += 1
                port.resynchronise()
            begin, before = self._clock(), self.received_bytes
            # Before a repetition, an additional flag ends a frame that the board received in part.
            response = self._exchange(port, bytes([FLAG] * bool(attempt)) + line,
                                      _PATIENCE_SECONDS + _MARGIN * size * self._pace)
            heard += self.received_bytes - before
            if response is not None:
                if not attempt:
                    self._pace = max(_BITS / self._baud, (self._clock() - begin) / size)
                self.requests += 1
                if response.status is Status.MALFORMED:
                    raise self.fail(f"wrong bitstream: the board at {self._name} does not know the "
                                    f"request {operation.name}")
                return response
        raise self.fail(self._silent(heard))

    def fail(self, message: str) -> BoardError:
        """Make all later requests fail with ``message``; return the error to raise now."""
        self._failed = message
        return BoardError(message)

    def find_baud(self) -> int | None:
        """Find the rate at which a board answers, among `COMMON_BAUDS`; None if there is none.

        Only a UART has a rate to find. This changes the port's rate, so the caller must close the
        link afterwards.
        """
        port = self._port
        if not isinstance(port, UartPort):
            return None
        for baud in COMMON_BAUDS:
            if baud != self._baud:
                port.set_baud(baud)
                port.resynchronise()
                self._sequence = (self._sequence + 1) % _SEQUENCES
                line = frame(Request(self._sequence, Operation.IDENTIFY).payload())
                if self._exchange(port, bytes([FLAG]) + line, _PROBE_SECONDS) is not None:
                    return baud
        return None

    def close(self) -> None:
        """Close the port; closing twice does nothing."""
        if self._port is not None:
            self._port.close()
            self._port = None

    def _opened(self) -> Port:
        if self._port is None:
            raise BoardError(f"the link to {self._name} is closed")
        if self._failed:
            raise BoardError(self._failed)
        return self._port

    def _exchange(self, port: Port, line: bytes, seconds: float) -> Response | None:
        """Send a request, the bytes ``line``, and return its response.

        Return None if the response is damaged, or does not arrive within ``seconds``.
        """
        deframer = Deframer(RESPONSE_BYTES + CHECK_BYTES,
                            RESPONSE_BYTES + 4 * MAX_WORDS + CHECK_BYTES)
        end = self._clock() + seconds
        port.write(line)
        self.sent_bytes += len(line)
        while self._clock() < end:
            received = port.read()
            if deframer.dropped and not received:
                return None  # The response was damaged: there is nothing to wait for.
            self.received_bytes += len(received)
            for byte in received:
                payload = deframer.receive(byte)
                response = None if payload is None else _parsed(payload)
                # A response with another number answers a repetition of an earlier request.
                if response is not None and response.sequence == self._sequence:
                    return response
        return None

    def _silent(self, heard: int) -> str:
        """Return the error message for a request without a valid response.

        ``heard`` is the number of bytes that arrived instead of a response.
        """
        if not isinstance(self._port, UartPort):
            answer = f"answers with {heard} bytes, but with no valid frame" if heard else (
                "does not answer")
            return (f"the board at {self._name} {answer} ({_TRIES} requests at {self._baud} bits "
                    "a second): check the wires, the power, that the FPGA holds the bitstream of "
                    "`make fpga LINE=spi`, and that the rate is at most an eighth of its clock")
        if heard:
            return (f"the board at {self._name} answers {_TRIES} requests with {heard} bytes, but "
                    f"with no valid frame: the line is noisy, or its rate is not {self._baud} baud")
        return (f"the board at {self._name} does not answer ({_TRIES} requests at {self._baud} "
                "baud): check the cable, the power, and that the FPGA holds the bitstream of "
                f"`make fpga` with BAUD={self._baud}")


def _parsed(payload: bytes) -> Response | None:
    """Decode the payload of a frame; None if it is not a response."""
    try:
        return Response.parse(payload)
    except ValueError:
        return None
