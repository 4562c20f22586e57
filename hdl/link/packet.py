"""Packets: vectors and signals on their way to the core of another chip, cut into flits.

A packet carries a vector, perhaps with a signal, or a signal alone. A vector is sent row after row,
the lowest bytes of a row first. A signal alone takes one flit. Each flit repeats the packet's
header.
"""

from amaranth import Array, Module, Signal, unsigned
from amaranth.hdl import signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import instance
from ..config import Config
from ..core.interface import SEMAPHORE_BITS
from ..vpu.interface import HOST_ADDRESS_BITS, row_bits
from .format import COORDINATE_BITS, HOP_BITS, LinkConfig, flit_layout

__all__ = ["PacketSource", "buffer_rows", "departure",
           "flits_per_row", "link_config", "packet_header", "payload_layout"]

_LEAST_ROWS = 16
"""Minimum number of rows of a buffer: as many as can arrive between the request of a vector and the
arrival of its first row."""


def packet_header() -> data.StructLayout:
    """Layout of the header, which each flit repeats.

    Attributes
    ----------
    x, y, core : COORDINATE_BITS, COORDINATE_BITS, 1
        Coordinates of the chip, and number of the core, that the packet is for.
    vector, address : 1, 16
        ``vector``: the packet carries a vector, for this address of vector memory.
    signal, semaphore : 1, 4
        ``signal``: after the vector is written, 1 is added to this semaphore. In a packet without a
        vector, the word in the lowest bits of its data is added instead.
    """
    return data.StructLayout({
        "x": COORDINATE_BITS, "y": COORDINATE_BITS, "core": 1, "vector": 1,
        "address": HOST_ADDRESS_BITS, "signal": 1, "semaphore": SEMAPHORE_BITS})


_HEADER_BYTES = -(-packet_header().size // 8)


def payload_layout(config: Config) -> data.StructLayout:
    """Layout of a flit's payload: ``link_bytes`` of data, the packet's header, and zeros."""
    header = packet_header()
    return data.StructLayout({"data": 8 * config.link_bytes, "header": header,
                              "zeros": 8 * _HEADER_BYTES - header.size})


def link_config(config: Config) -> LinkConfig:
    """Return the parameters of the links of a chip with the parameters ``config``.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or has no links.
    """
    instance("config", config, Config)
    if not config.link_bytes:
        raise ValueError("link_bytes must be at least 4, not 0")
    return LinkConfig(payload_bytes=config.link_bytes + _HEADER_BYTES)


def flits_per_row(config: Config) -> int:
    """Return the number of flits that carry a row."""
    return config.row_bytes // config.link_bytes


def buffer_rows(config: Config) -> int:
    """Return the number of rows of the buffer of one direction (egress) or one port (ejection).

    A power of two, enough for two vectors.
    """
    return max(_LEAST_ROWS, 1 << ceil_log2(2 * config.sublanes))


def departure(config: Config) -> data.StructLayout:
    """Layout of a packet that leaves: hops, header, and the amount to add to a semaphore.

    ``amount`` is used only if the packet has no vector; otherwise the amount is 1.
    """
    return data.StructLayout({"dx": signed(HOP_BITS), "dy": signed(HOP_BITS),
                              "header": packet_header(), "amount": unsigned(32)})


class PacketSource(wiring.Component):
    """Cuts packets into flits, one a cycle.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    packet : In(stream of departure)
        Packets, each of which is accepted in the cycle of its last flit.
    row : In(stream of row_bits)
        The rows of the vectors, in the order of the packets.
    flit : Out(stream of flit_layout)
        The flits. Between the flits of a vector, ``valid`` falls while a row is missing.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__({
            "packet": In(stream.Signature(departure(config))),
            "row": In(stream.Signature(row_bits(config))),
            "flit": Out(stream.Signature(flit_layout(link_config(config))))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config, packet = self._config, self.packet.payload
        parts = flits_per_row(config)
        total = parts * config.sublanes
        number = Signal(range(max(total, 2)))  # of the flit in its vector
        vector, moves, row_ends = Signal(), Signal(), Signal()
        flit = self.flit.payload
        payload = data.View(payload_layout(config), flit.payload)
        chosen = Array(self.row.payload.word_select(part, 8 * config.link_bytes)
                       for part in range(parts))
        m.d.comb += [
            vector.eq(packet.header.vector),
            self.flit.valid.eq(self.packet.valid & (~vector | self.row.valid)),
            moves.eq(self.flit.valid & self.flit.ready),
            row_ends.eq((number & (parts - 1)) == parts - 1),
            flit.tail.eq(~vector | (number == total - 1)),
            flit.dx.eq(packet.dx), flit.dy.eq(packet.dy),
            payload.header.eq(packet.header),
            self.packet.ready.eq(moves & flit.tail),
            self.row.ready.eq(moves & vector & row_ends),
        ]
        with m.If(vector):
            m.d.comb += payload.data.eq(chosen[number & (parts - 1)] if parts > 1 else chosen[0])
        with m.Else():
            m.d.comb += payload.data.eq(packet.amount)
        with m.If(moves):
            m.d.sync += number.eq(0)
            with m.If(~flit.tail):
                m.d.sync += number.eq(number + 1)
        return m
