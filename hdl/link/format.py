"""Flits and frames: what routers pass on, and what travels over a wire between two chips."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

from amaranth.hdl import signed
from amaranth.lib import data
from amaranth.utils import ceil_log2, exact_log2

from ..checks import integer

__all__ = ["CHANNELS", "CHECK_BITS", "COORDINATE_BITS", "HOP_BITS", "MAX_SIDE", "SIDE_BITS",
           "Direction", "LinkConfig", "flit_layout", "frame_body", "frame_check", "frame_layout",
           "torus_sides"]

CHANNELS = 2
"""Virtual channels of a link."""
MAX_SIDE = 32
"""Largest number of chips along a dimension of a torus."""
COORDINATE_BITS = ceil_log2(MAX_SIDE)
"""Width of a coordinate of a chip."""
SIDE_BITS = ceil_log2(MAX_SIDE + 1)
"""Width of the number of chips along a side of the torus."""
HOP_BITS = COORDINATE_BITS + 1
"""Width of a signed number of hops."""
CHECK_BITS = 32
"""Width of a frame's checksum."""


def torus_sides(shape: object) -> tuple[int, int]:
    """Return the number of chips along X and along Y from a parameter ``shape``.

    Raises
    ------
    TypeError
        If it is not a pair of integers.
    ValueError
        If a side is not in 1 to `MAX_SIDE`.
    """
    if not isinstance(shape, Sequence) or len(shape) != 2:
        raise TypeError(f"shape must be a pair of integers, not {shape!r}")
    columns, rows = (integer("side of the torus", side, 1, MAX_SIDE) for side in shape)
    return columns, rows


class Direction(IntEnum):
    """A direction of travel on the torus; also the number of the port on that side of a chip.

    A flit that leaves a chip by port ``d`` arrives at its neighbour's port ``d.opposite``.
    """

    X_PLUS = 0
    X_MINUS = 1
    Y_PLUS = 2
    Y_MINUS = 3

    # That of an enumeration is computed from the member's name, which takes much longer.
    __hash__ = int.__hash__

    @property
    def opposite(self) -> "Direction":
        """The opposite direction, for example X- for X+."""
        return Direction(self ^ 1)

    @property
    def is_x(self) -> bool:
        """Whether it is a direction along X; packets travel along X before they travel along Y."""
        return not self & 2

    @property
    def step(self) -> int:
        """Change of the coordinate by a hop: 1 or -1."""
        return -1 if self & 1 else 1


@dataclass(frozen=True)
class LinkConfig:
    """Parameters of a link.

    Parameters
    ----------
    payload_bytes : int
        Bytes of a flit's payload, 1 to 1024.
    depth : int
        Number of flits that the receiver can store for each virtual channel; also the number that
        the sender can store until they are acknowledged. A power of two from 4 to 1024. A link is
        busy all the time only if ``depth`` covers the flits that are sent during a round trip.
    rate_flits, rate_cycles : int
        At most ``rate_flits`` frames are sent in ``rate_cycles`` cycles, 1 to 64 each. The default
        is the rate of a link of TPU v2: 11 flits of 128 bytes in 16 cycles, or 88 bytes a cycle.
    retry_cycles : int
        Cycles without an acknowledgement after which the sender repeats, 16 to 65536. They must be
        more than a round trip takes, and more than ``rate_cycles / rate_flits``, the cycles between
        two frames at the maximum rate.
    retries : int
        Repetitions without an acknowledgement after which the link is given up, 1 to 255.

    Raises
    ------
    TypeError, ValueError
        If a parameter is of the wrong type or out of range.
    """

    payload_bytes: int = 128
    depth: int = 128
    rate_flits: int = 11
    rate_cycles: int = 16
    retry_cycles: int = 1024
    retries: int = 8

    def __post_init__(self) -> None:
        bounds = {"payload_bytes": (1, 1024), "depth": (4, 1024), "rate_flits": (1, 64),
                  "rate_cycles": (1, 64), "retry_cycles": (16, 1 << 16), "retries": (1, 255)}
        for field in fields(self):
            value = integer(field.name, getattr(self, field.name), *bounds[field.name])
            object.__setattr__(self, field.name, value)
        if self.depth & (self.depth - 1):
            raise ValueError(f"depth must be a power of two, not {self.depth!r}")
        if self.rate_flits > self.rate_cycles:
            raise ValueError(f"rate_flits must be at most rate_cycles ({self.rate_cycles}), "
                             f"not {self.rate_flits!r}")
        gap = -(-self.rate_cycles // self.rate_flits)
        if self.retry_cycles <= gap:
            raise ValueError(f"retry_cycles must be more than the {gap} cycles from one frame to "
                             f"the next, not {self.retry_cycles!r}")

    @property
    def name(self) -> str:
        """The parameters in a form that fits in the name of a Verilog module."""
        return "_".join(str(getattr(self, field.name)) for field in fields(self))

    @property
    def count_bits(self) -> int:
        """Width of sequence numbers and of counts of flits, which are modulo ``2 * depth``."""
        return exact_log2(self.depth) + 1


def flit_layout(config: LinkConfig) -> data.StructLayout:
    """Layout of a flit, the unit that a router passes on.

    Attributes
    ----------
    payload : 8 * payload_bytes
        Data that the fabric does not interpret. This field comes first, where words begin, so a
        simulation can copy whole words.
    tail : 1
        The last flit of its packet.
    dx, dy : signed(HOP_BITS)
        Hops that remain along each dimension. They count from the chip that the flit is in or, on a
        link, from the chip at which it will arrive. Packets travel along X first, then along Y.
    """
    return data.StructLayout({"payload": 8 * config.payload_bytes, "tail": 1,
                              "dx": signed(HOP_BITS), "dy": signed(HOP_BITS)})


def frame_body(config: LinkConfig) -> data.StructLayout:
    """Layout of a frame without its checksum.

    Attributes
    ----------
    flit : flit_layout
        The flit, if ``carries`` is set.
    channel : 1
        Virtual channel of the flit.
    carries : 1
        The frame has a flit.
    poll : 1
        The sender asks for a frame in return.
    resend : 1
        A frame was lost or damaged: send again from number ``acknowledge``.
    known, fresh : 1
        ``known``: since its reset, the sender of this frame has received a frame from the other
        end. ``fresh``: the sender does not know yet whether the other end has received a frame from
        it since that reset.
    sequence, acknowledge : count_bits
        Number of the flit; number of the next flit that the sender of this frame expects.
    freed : CHANNELS counts of count_bits
        For each channel, the number of flits that have left the buffer at this frame's sender since
        the reset. Because these are totals, a lost frame loses no credit.
    """
    count = config.count_bits
    return data.StructLayout({
        "flit": flit_layout(config), "channel": 1, "carries": 1, "poll": 1, "resend": 1,
        "known": 1, "fresh": 1,
        "sequence": count, "acknowledge": count, "freed": data.ArrayLayout(count, CHANNELS)})


def frame_layout(config: LinkConfig) -> data.StructLayout:
    """What a wire carries in a cycle: ``body``, zeros up to a whole byte, and ``check``.

    ``check`` is the CRC-32 of IEEE 802.3 (`zlib.crc32`) of the bytes before it, lowest first.
    """
    body = frame_body(config)
    return data.StructLayout({"body": body, "zeros": -body.size % 8, "check": CHECK_BITS})


def frame_check(config: LinkConfig, body: int) -> int:
    """Return the checksum of a frame whose body has the bits of the integer ``body``."""
    return zlib.crc32(body.to_bytes(-(-frame_body(config).size // 8), "little"))
