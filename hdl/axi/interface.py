"""Signatures of AXI4 and AXI4-Lite, names of their ports, and payloads of a memory port."""

from collections.abc import Mapping
from enum import IntEnum

from amaranth import Module
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import integer
from ..config import Config
from ..vpu.interface import row_bits

__all__ = ["BOUNDARY_BYTES", "CONTROL_ADDRESS_BITS", "CONTROL_PREFIX", "LENGTH_BITS", "Axi4",
           "Axi4Lite", "Burst", "Resp", "channel_bits", "connect_flat", "flat_members", "hbm_burst",
           "hbm_done", "hbm_prefix", "hbm_row", "max_beats"]

BOUNDARY_BYTES = 4096
"""An AXI burst must not cross an address that is a multiple of this number."""
LENGTH_BITS = 8
"""Width of the length field of an AXI burst, which is the number of beats minus one."""
CONTROL_ADDRESS_BITS = 16
"""Width of a byte address of the control slave."""
CONTROL_PREFIX = "s_axil"
"""Prefix of the names of the control slave's ports."""


class Resp(IntEnum):
    """Response codes of a bus access (BRESP, RRESP)."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class Burst(IntEnum):
    """Burst types, which define the addresses of successive beats."""

    FIXED = 0
    INCR = 1
    WRAP = 2


class _AxiSignature(wiring.Signature):
    """Base of the bus signatures: two signatures with the same class and members are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.members == other.members

    def __hash__(self) -> int:
        return hash(type(self))


class Axi4(_AxiSignature):
    """The port of an AXI4 master: `Out` at the master, `In` at the slave.

    Members have the names of the AXI specification, in lower case.

    Identifiers are one bit wide, the minimum of most interconnects. The masters here use only
    identifier 0, so responses arrive in order. The optional signals ``lock``, ``region`` and
    ``user`` are absent: accesses are never exclusive.

    Parameters
    ----------
    address_bits : int
        Width of byte addresses, 1 to 64.
    data_bits : int
        Width of data: 8, 16, ... 1024.

    Raises
    ------
    TypeError, ValueError
        If a width is not an integer, or not one of the allowed widths.
    """

    def __init__(self, address_bits: int, data_bits: int) -> None:
        address_bits = integer("address_bits", address_bits, 1, 64)
        if integer("data_bits", data_bits) not in [8 << power for power in range(8)]:
            raise ValueError(f"data_bits must be a power of two from 8 to 1024, not {data_bits!r}")
        self.address_bits = address_bits
        self.data_bits = data_bits

        def address(channel: str) -> dict[str, wiring.Member]:
            return {
                f"{channel}id": Out(1), f"{channel}addr": Out(address_bits),
                f"{channel}len": Out(LENGTH_BITS), f"{channel}size": Out(3),
                f"{channel}burst": Out(2), f"{channel}cache": Out(4), f"{channel}prot": Out(3),
                f"{channel}qos": Out(4), f"{channel}valid": Out(1), f"{channel}ready": In(1),
            }

        super().__init__({
            **address("aw"),
            "wdata": Out(data_bits), "wstrb": Out(data_bits // 8), "wlast": Out(1),
            "wvalid": Out(1), "wready": In(1),
            "bid": In(1), "bresp": In(2), "bvalid": In(1), "bready": Out(1),
            **address("ar"),
            "rid": In(1), "rdata": In(data_bits), "rresp": In(2), "rlast": In(1),
            "rvalid": In(1), "rready": Out(1),
        })


class Axi4Lite(_AxiSignature):
    """The port of an AXI4-Lite master with 32 data bits: `Out` at the master, `In` at the slave.

    Parameters
    ----------
    address_bits : int
        Width of byte addresses, 1 to 64.

    Raises
    ------
    TypeError, ValueError
        If the width is not an integer, or out of range.
    """

    def __init__(self, address_bits: int) -> None:
        address_bits = integer("address_bits", address_bits, 1, 64)
        self.address_bits = address_bits
        super().__init__({
            "awaddr": Out(address_bits), "awprot": Out(3), "awvalid": Out(1), "awready": In(1),
            "wdata": Out(32), "wstrb": Out(4), "wvalid": Out(1), "wready": In(1),
            "bresp": In(2), "bvalid": In(1), "bready": Out(1),
            "araddr": Out(address_bits), "arprot": Out(3), "arvalid": Out(1), "arready": In(1),
            "rdata": In(32), "rresp": In(2), "rvalid": In(1), "rready": Out(1),
        })


def hbm_prefix(core: int, channel: int) -> str:
    """Return the prefix of the port names of a core's memory channel, such as ``m_axi_hbm00``."""
    return f"m_axi_hbm{core}{channel}"


def flat_members(ports: Mapping[str, wiring.Signature]) -> dict[str, wiring.Member]:
    """Return the flat members of a top module: ``{prefix}_{signal}`` for each signal of each port.

    ``ports`` maps the prefix of each port to its signature, which the caller flips for `In` ports.
    """
    return {f"{prefix}_{name}": member for prefix, signature in ports.items()
            for name, member in signature.members.items()}


def connect_flat(m: Module, top: wiring.Component, prefix: str, port: object) -> None:
    """Connect the members ``{prefix}_*`` of ``top`` to ``port``, an interface of a child.

    Outputs of ``port`` become outputs of ``top``.
    """
    for name, member in port.signature.members.items():  # type: ignore[attr-defined]
        outer, inner = getattr(top, f"{prefix}_{name}"), getattr(port, name)
        m.d.comb += outer.eq(inner) if member.flow == Out else inner.eq(outer)


def hbm_burst(config: Config) -> data.StructLayout:
    """Payload of a request for a burst of 1 to 256 rows: row ``row`` and the next ``more``.

    ``row`` is the number of an HBM row: its byte address divided by ``row_bytes``.
    """
    return data.StructLayout({"row": ceil_log2(config.hbm_rows), "more": LENGTH_BITS})


def hbm_row(config: Config) -> data.StructLayout:
    """Payload of a row read from the HBM. If ``error`` is set, ``data`` is undefined."""
    return data.StructLayout({"data": row_bits(config), "error": 1})


def hbm_done() -> data.StructLayout:
    """Payload of a write burst's completion.

    If ``error`` is set, the HBM may have written any part of the burst, or none.
    """
    return data.StructLayout({"error": 1})


def channel_bits(config: Config) -> int:
    """Return the width in bits of the data of one memory channel.

    Raises
    ------
    ValueError
        If each channel's part of a row is not 4, 8, 16, 32, 64 or 128 bytes.
    """
    size = config.channel_bytes
    if size * config.hbm_channels != config.row_bytes or size not in (4, 8, 16, 32, 64, 128):
        raise ValueError(
            f"hbm_channels must not be {config.hbm_channels!r}: it must divide a row of "
            f"{config.row_bytes} bytes into equal parts of 4, 8, 16, 32, 64 or 128 bytes")
    return 8 * size


def max_beats(config: Config) -> int:
    """Return the number of beats of the longest AXI burst, a power of two.

    The burst has at most 4 KiB of data.
    """
    return 32 if config.channel_bytes >= 64 else 16
