"""Top modules around units of an FPGA's host; their AXI signals have the names that AXI defines."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hdl.axi.interface import (
    CONTROL_ADDRESS_BITS,
    Axi4,
    Axi4Lite,
    channel_bits,
    connect_flat,
    flat_members,
)
from hdl.axi.lite import RegisterAccess
from hdl.config import Config
from hdl.fpga.host import SerialHost
from hdl.fpga.memory import SdramMemory
from hdl.fpga.sdram import SdramController, SdramPins, SdramTiming
from hdl.tiles import instantiate

__all__ = ["DIVISOR", "MEMORY_BITS", "SDRAM_BITS", "START_US", "TIMING", "SdramTop", "SerialTop"]

DIVISOR = 4
"""Number of cycles that a bit takes on the line."""
MEMORY_BITS = 12
"""Number of bits of an address in the memory."""
SDRAM_BITS = 15
"""Number of bits of an address in the SDRAM: enough for several banks with several rows each."""
START_US = 4
TIMING = SdramTiming(25_000_000, start_us=START_US)


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


class SdramTop(wiring.Component):
    """The controller of an SDRAM, with a slave as wide as that of the configuration's chip.

    ``reset_chip`` resets the slave. ``reset_master``, the same signal one cycle later, resets the
    bench's master, so that its outputs change in the same cycles as those of a master in the chip.
    """

    def __init__(self, config: Config) -> None:
        self._data_bits = channel_bits(config)
        super().__init__({
            "reset_chip": In(1), "reset_master": Out(1, init=1),
            "access": In(RegisterAccess(SDRAM_BITS)), "pins": Out(SdramPins()),
            **flat_members({"s_axi": Axi4(SDRAM_BITS, self._data_bits).flip()})})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        size = SDRAM_BITS, self._data_bits
        memory = instantiate(m, platform, "ram", "sdram_memory", lambda: SdramMemory(*size),
                             reset=self.reset_chip)
        controller = instantiate(m, platform, "controller", "sdram_controller",
                                 lambda: SdramController(TIMING, *size))
        m.d.sync += self.reset_master.eq(self.reset_chip)
        connect(m, memory.beats, controller.access)
        connect(m, controller.pins, flipped(self.pins))
        connect(m, flipped(self.access), memory.access)
        connect_flat(m, self, "s_axi", memory.axi)
        return m
