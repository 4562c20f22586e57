"""A `SerialHost` with an AXI port of conventional names on both sides."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hdl.axi.interface import (
    CONTROL_ADDRESS_BITS,
    Axi4,
    Axi4Lite,
    channel_bits,
    connect_flat,
    flat_members,
)
from hdl.config import Config
from hdl.fpga.host import SerialHost
from hdl.tiles import instantiate

__all__ = ["DIVISOR", "MEMORY_BITS", "SerialTop"]

DIVISOR = 4
"""Number of cycles that a bit takes on the line."""
MEMORY_BITS = 12
"""Width of an address of the memory."""


class SerialTop(wiring.Component):
    """A serial host with a memory as wide as that of the configuration's chip."""

    def __init__(self, config: Config) -> None:
        self._data_bits = channel_bits(config)
        super().__init__({
            "line_in": In(1, init=1), "line_out": Out(1, init=1), "reset_chip": Out(1),
            **flat_members({"m_axil": Axi4Lite(CONTROL_ADDRESS_BITS),
                            "s_axi": Axi4(MEMORY_BITS, self._data_bits).flip()})})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        host = instantiate(m, platform, "host", "serial_host",
                           lambda: SerialHost(DIVISOR, MEMORY_BITS, self._data_bits))
        m.d.comb += [host.line_in.eq(self.line_in), self.line_out.eq(host.line_out),
                     self.reset_chip.eq(host.reset_chip)]
        connect_flat(m, self, "m_axil", host.control)
        connect_flat(m, self, "s_axi", host.memory)
        return m
