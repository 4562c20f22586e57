"""Golden model of the serial bridge: the accesses that a request makes, and its response."""

import struct
from typing import Protocol

from hdl.fpga.protocol import (
    CHECK_BYTES,
    MAX_REQUEST,
    MAX_WORDS,
    REQUEST_BYTES,
    VERSION,
    Deframer,
    Operation,
    Response,
    Status,
    frame,
)

__all__ = ["GoldenBridge", "Target"]

_MAX_DROPPED = (1 << 16) - 1


class Target(Protocol):
    """The registers and the memory that a bridge accesses."""

    def read(self, address: int) -> int | None:
        """Read the word at a byte address; return None if the read is refused."""

    def write(self, address: int, word: int) -> bool:
        """Write a word at a byte address; return whether the write is accepted."""

    def reset(self) -> None:
        """Reset the chip."""


class GoldenBridge:
    """The bridge without timing: executes a request and responds when the last byte arrives.

    A frame that equals the last executed one is not executed again; the bridge repeats the
    response. So a host that gets no response can repeat its request, whether the request or the
    response was lost.

    Parameters
    ----------
    target : Target
        The registers and the memory that the bridge accesses.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._deframer = Deframer(REQUEST_BYTES + CHECK_BYTES, MAX_REQUEST)
        self._last: tuple[bytes, bytes] | None = None

    @property
    def dropped(self) -> int:
        """Number of damaged frames received so far."""
        return self._deframer.dropped

    def receive(self, byte: int | None) -> bytes:
        """Take one byte from the line; return the response if it completes a frame, else b"".

        ``byte`` is None if its stop bit was missing.
        """
        payload = self._deframer.receive(byte)
        if payload is None:
            return b""
        if self._last is None or self._last[0] != payload:
            self._last = payload, frame(self._execute(payload).payload())
        return self._last[1]

    def _execute(self, payload: bytes) -> Response:
        sequence, operation, count, address = struct.unpack_from("<BBHI", payload)
        words = payload[REQUEST_BYTES:]
        fixed = operation in (Operation.READ_FIXED, Operation.WRITE_FIXED)
        accesses = fixed or operation in (Operation.READ, Operation.WRITE)
        writes = operation in (Operation.WRITE, Operation.WRITE_FIXED)
        if (operation > Operation.RESET or len(words) != (4 * count if writes else 0)
                or (not 1 <= count <= MAX_WORDS or address % 4 if accesses else count)):
            return Response(sequence, Status.MALFORMED, 0)
        if operation == Operation.IDENTIFY:
            word = min(self.dropped, _MAX_DROPPED) << 16 | VERSION
            return Response(sequence, Status.OKAY, 1, (word,))
        if operation == Operation.RESET:
            self._target.reset()
            return Response(sequence, Status.OKAY, 0)
        addresses = [(address + 4 * (0 if fixed else number)) % (1 << 32)
                     for number in range(count)]
        return (self._write(sequence, addresses, struct.unpack(f"<{count}I", words)) if writes
                else self._read(sequence, addresses))

    def _read(self, sequence: int, addresses: list[int]) -> Response:
        found: list[int] = []
        for address in addresses:
            word = self._target.read(address)
            if word is None:
                return Response(sequence, Status.REFUSED, len(found), tuple(found))
            found.append(word)
        return Response(sequence, Status.OKAY, len(found), tuple(found))

    def _write(self, sequence: int, addresses: list[int], words: tuple[int, ...]) -> Response:
        for number, (address, word) in enumerate(zip(addresses, words, strict=True)):
            if not self._target.write(address, word):
                return Response(sequence, Status.REFUSED, number)
        return Response(sequence, Status.OKAY, len(words))
