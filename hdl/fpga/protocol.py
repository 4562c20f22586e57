"""The serial protocol by which a host accesses a chip on an FPGA: frames, requests, responses.

A request is a frame from the host; the bridge answers it with one frame. docs/fpga.md describes the
format. The hardware, its golden model and hosts take all numbers from here.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

from ..checks import instance, integer

__all__ = ["CHECK_BYTES", "ESCAPE", "ESCAPE_MASK", "FLAG", "MAX_REQUEST", "MAX_WORDS",
           "MEMORY_BASE", "REQUEST_BYTES", "RESPONSE_BYTES", "VERSION", "Deframer", "Operation",
           "Request", "Response", "Status", "frame"]

FLAG = 0x7E
"""Begins and ends a frame; it never occurs inside one."""
ESCAPE = 0x7D
"""Precedes a byte that is sent as byte ^ `ESCAPE_MASK`, as in RFC 1662."""
ESCAPE_MASK = 0x20
VERSION = 1
"""Version of the protocol, which IDENTIFY returns."""
MAX_WORDS = 256
"""Maximum number of words in a request."""
REQUEST_BYTES = 8
"""Number of bytes of a request that precede its words."""
RESPONSE_BYTES = 4
"""Number of bytes of a response that precede its words."""
CHECK_BYTES = 4
"""Number of bytes of the checksum at the end of a frame: CRC-32 of IEEE 802.3, low byte first."""
MAX_REQUEST = REQUEST_BYTES + 4 * MAX_WORDS + CHECK_BYTES
"""Number of bytes of the longest request, without flags and escapes."""
MEMORY_BASE = 1 << 31
"""Byte address of the memory; the chip's registers begin at address 0."""

_REQUEST = struct.Struct("<BBHI")
_RESPONSE = struct.Struct("<BBH")
_CHECK = struct.Struct("<I")


class Operation(IntEnum):
    """Operations of the bridge; a request names one of them."""

    IDENTIFY = 0
    """Return a word: `VERSION` in bits 7:0, dropped frames since power-on in bits 31:16."""
    READ = 1
    """Read words from ascending addresses."""
    WRITE = 2
    """Write words to ascending addresses."""
    READ_FIXED = 3
    """Read words, all from the same address."""
    WRITE_FIXED = 4
    """Write words, all to the same address."""
    RESET = 5
    """Reset the chip and its memory's port; memories keep their contents."""


class Status(IntEnum):
    """Outcome of a request."""

    OKAY = 0
    """All words were transferred."""
    REFUSED = 1
    """An access was refused; the response counts the words before it."""
    MALFORMED = 2
    """The request does not have the format that this module defines; nothing was done."""


def frame(payload: bytes) -> bytes:
    """Return the bytes of a frame: flag, payload and checksum with escapes, flag."""
    out = bytearray([FLAG])
    for byte in payload + _CHECK.pack(zlib.crc32(payload)):
        out += bytes([ESCAPE, byte ^ ESCAPE_MASK]) if byte in (FLAG, ESCAPE) else bytes([byte])
    return bytes([*out, FLAG])


class Deframer:
    """Finds frames in the bytes from a line, and drops those that are damaged.

    A flag always ends a frame, so a damaged frame does not affect the frame after the next flag.

    Parameters
    ----------
    shortest, longest : int
        Number of bytes of the shortest and of the longest frame, checksum included.

    Attributes
    ----------
    dropped : int
        Number of frames dropped so far: too short or too long, with a wrong checksum, with a byte
        without stop bit, or aborted by an escape before the flag.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        self.dropped = 0
        self._begin()

    def _begin(self) -> None:
        self._bytes = bytearray()
        self._escaped = self._bad = False

    def receive(self, byte: int | None) -> bytes | None:
        """Take a byte from the line, or None if the byte's stop bit is missing.

        Returns
        -------
        bytes or None
            The payload of the frame that this byte ends; None if it ends no frame, or a damaged
            one.
        """
        if byte is None:
            self._bad = True
        elif byte == FLAG:
            return self._end()
        elif byte == ESCAPE and not self._escaped:
            self._escaped = True
        else:
            if len(self._bytes) == self._longest:
                self._bad = True
            else:
                self._bytes.append(byte ^ ESCAPE_MASK if self._escaped else byte)
            self._escaped = False
        return None

    def _end(self) -> bytes | None:
        received, bad = bytes(self._bytes), self._bad or self._escaped
        self._begin()
        if not received and not bad:
            return None
        payload, check = received[:-CHECK_BYTES], received[-CHECK_BYTES:]
        if bad or len(received) < self._shortest or check != _CHECK.pack(zlib.crc32(payload)):
            self.dropped += 1
            return None
        return payload


@dataclass(frozen=True)
class Request:
    """A request of the host to the bridge: one operation.

    Parameters
    ----------
    sequence : int
        A number from 0 to 255 that differs from that of the previous request.
    operation : Operation
    address : int
        Byte address, a multiple of 4.
    words : tuple of int
        Words to write.
    count : int
        Number of words to read.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong or does not suit the operation.
    """

    sequence: int
    operation: Operation
    address: int = 0
    words: tuple[int, ...] = ()
    count: int = 0

    def __post_init__(self) -> None:
        integer("sequence", self.sequence, 0, 255)
        instance("operation", self.operation, Operation)
        if integer("address", self.address, 0, (1 << 32) - 1) % 4:
            raise ValueError(f"address must be a multiple of 4, not {self.address!r}")
        reads = self.operation in (Operation.READ, Operation.READ_FIXED)
        writes = self.operation in (Operation.WRITE, Operation.WRITE_FIXED)
        integer("count", self.count, int(reads), MAX_WORDS if reads else 0)
        if not writes <= len(self.words) <= (MAX_WORDS if writes else 0):
            span = f"from 1 to {MAX_WORDS}" if writes else "0"
            raise ValueError(f"number of words must be {span} for {self.operation.name}, "
                             f"not {len(self.words)}")

    def payload(self) -> bytes:
        """Return the request's bytes, without its checksum."""
        return _REQUEST.pack(self.sequence, self.operation, self.count or len(self.words),
                             self.address) + struct.pack(f"<{len(self.words)}I", *self.words)


@dataclass(frozen=True)
class Response:
    """The bridge's response to a request.

    Parameters
    ----------
    sequence : int
        The request's ``sequence``.
    status : Status
    count : int
        Number of words transferred.
    words : tuple of int
        The words read.
    """

    sequence: int
    status: Status
    count: int
    words: tuple[int, ...] = ()

    def payload(self) -> bytes:
        """Return the response's bytes, without its checksum."""
        return _RESPONSE.pack(self.sequence, self.status, self.count) + struct.pack(
            f"<{len(self.words)}I", *self.words)

    @classmethod
    def parse(cls, payload: bytes) -> "Response":
        """Decode the payload of a response frame.

        Raises
        ------
        ValueError
            If the payload is not a response.
        """
        if len(payload) < RESPONSE_BYTES or len(payload) % 4:
            raise ValueError(f"payload must be a response, not {payload!r}")
        sequence, status, count = _RESPONSE.unpack_from(payload)
        words = struct.unpack_from(f"<{len(payload) // 4 - 1}I", payload, RESPONSE_BYTES)
        if words and len(words) != count:
            raise ValueError(f"payload must have {count} words, not {len(words)}")
        return cls(sequence, Status(status), count, words)
