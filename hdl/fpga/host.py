"""The host's side of a chip on an FPGA: its serial line, and the chip's memory."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..axi.interface import CONTROL_ADDRESS_BITS, Axi4, Axi4Lite
from ..axi.lite import AxiLiteMaster
from ..checks import integer
from ..tiles import instantiate
from .bridge import SerialBridge, spi_members
from .memory import BlockMemory, SdramMemory
from .protocol import MEMORY_BASE
from .sdram import ADDRESS_BITS, SdramController, SdramPins, SdramTiming

__all__ = ["SerialHost"]


class SerialHost(wiring.Component):
    """A serial line that accesses registers over AXI4-Lite, and memory that it shares with a chip.

    The registers begin at address 0, the memory at `MEMORY_BASE`; accesses to other addresses are
    refused.

    Parameters
    ----------
    divisor : int or None
        As in `SerialBridge`: cycles of a bit on the line, or None for SPI.
    address_bits, data_bits : int
        Parameters of the memory, a `BlockMemory` or an `SdramMemory`.
    sdram : SdramTiming, optional
        The memory is an SDRAM with this clock and these times. None: block RAM.

    Attributes
    ----------
    line_in, line_out : In(1), Out(1)
        The serial line; ``line_in`` is asynchronous.
    spi_clock, spi_select : In(1), In(1)
        As in `SerialBridge`.
    control : Out(Axi4Lite)
        To the chip's registers.
    memory : In(Axi4)
        From the chip.
    sdram : Out(SdramPins)
        To the SDRAM; present only if there is one.
    reset_chip : Out(1)
        Resets the chip.

    Raises
    ------
    TypeError, ValueError
        If an argument is not an integer, or out of range.
    """

    def __init__(self, divisor: int | None, address_bits: int, data_bits: int,
                 sdram: SdramTiming | None = None) -> None:
        self._divisor = divisor if divisor is None else integer("divisor", divisor, 4)
        most = 31 if sdram is None else ADDRESS_BITS
        self._memory = integer("address_bits", address_bits, 2, most), data_bits
        self._timing = sdram
        super().__init__({
            "line_in": In(1, init=1), "line_out": Out(1, init=1), "reset_chip": Out(1),
            "control": Out(Axi4Lite(CONTROL_ADDRESS_BITS)), "memory": In(Axi4(*self._memory)),
            **({} if sdram is None else {"sdram": Out(SdramPins())}),
            **(spi_members() if divisor is None else {})})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bridge = instantiate(m, platform, "bridge", "serial_bridge",
                             lambda: SerialBridge(self._divisor))
        if self._divisor is None:
            m.d.comb += [bridge.spi_clock.eq(self.spi_clock),
                         bridge.spi_select.eq(self.spi_select)]
        control = instantiate(m, platform, "axil", "axi_lite_master",
                              lambda: AxiLiteMaster(CONTROL_ADDRESS_BITS), reset=self.reset_chip)
        memory = self._add_memory(m, platform)
        m.d.comb += [bridge.line_in.eq(self.line_in), self.line_out.eq(bridge.line_out),
                     self.reset_chip.eq(bridge.reset)]
        connect(m, control.axi, flipped(self.control))
        connect(m, flipped(self.memory), memory.axi)
        access = bridge.access
        m.d.comb += [access.done.eq(1), access.error.eq(1)]
        for base, side, bits in ((0, control.access, CONTROL_ADDRESS_BITS),
                                 (MEMORY_BASE, memory.access, self._memory[0])):
            m.d.comb += [side.write.eq(access.write), side.address.eq(access.address[:bits]),
                         side.data.eq(access.data)]
            with m.If(access.address[bits:] == base >> bits):
                m.d.comb += [side.valid.eq(access.valid), access.done.eq(side.done),
                             access.error.eq(side.error), access.value.eq(side.value)]
        return m

    def _add_memory(self, m: Module, platform: object) -> BlockMemory | SdramMemory:
        """Add the memory; a reset of the chip resets the memory's ports."""
        timing = self._timing
        if timing is None:
            return instantiate(m, platform, "ram", "block_memory",
                               lambda: BlockMemory(*self._memory), reset=self.reset_chip)
        memory = instantiate(m, platform, "ram", "sdram_memory",
                             lambda: SdramMemory(*self._memory), reset=self.reset_chip)
        # Not reset with the chip, because it has to refresh.
        controller = instantiate(m, platform, "sdram_controller", "sdram_controller",
                                 lambda: SdramController(timing, *self._memory))
        connect(m, memory.beats, controller.access)
        connect(m, controller.pins, flipped(self.sdram))
        return memory
