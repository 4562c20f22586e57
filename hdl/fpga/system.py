"""The system on an FPGA: the chip, its memory, and the host's serial line."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..axi.interface import CONTROL_PREFIX, channel_bits, hbm_prefix
from ..checks import instance, integer
from ..chip.chip import Chip, check_chip
from ..config import Config
from ..tiles import instantiate
from .bridge import spi_members
from .host import SerialHost
from .sdram import ADDRESS_BITS, SdramPins, SdramTiming

__all__ = ["SerialSystem"]


class SerialSystem(wiring.Component):
    """The chip with memory in block RAM or SDRAM, which a host accesses over a serial line.

    Parameters
    ----------
    config : Config
        Parameters of a chip with one core and one memory channel, and with at most 2 GiB of memory,
        or 32 MiB if it is an SDRAM.
    divisor : int or None
        As in `hdl.fpga.bridge.SerialBridge`: cycles of a bit on the line, or None for SPI.
    sdram : SdramTiming, optional
        The memory is an SDRAM with this clock and these times. None: block RAM.

    Attributes
    ----------
    line_in, line_out : In(1), Out(1)
        The serial line of `SerialHost`; ``line_in`` is asynchronous.
    spi_clock, spi_select : In(1), In(1)
        As in `hdl.fpga.bridge.SerialBridge`.
    interrupt : Out(1)
        The chip's interrupt output.
    sdram : Out(SdramPins)
        To the SDRAM; present only if there is one.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the chip has several cores or channels.
    """

    def __init__(self, config: Config, divisor: int | None,
                 sdram: SdramTiming | None = None) -> None:
        instance("config", config, Config)
        check_chip(config)
        for name in ("cores", "hbm_channels"):
            if getattr(config, name) != 1:
                raise ValueError(f"{name} must be 1, not {getattr(config, name)!r}")
        if sdram is not None and config.hbm_address_bits > ADDRESS_BITS:
            raise ValueError(f"hbm_bytes must be at most {1 << ADDRESS_BITS} with an SDRAM, not "
                             f"{config.hbm_bytes!r}")
        self._config = config
        self._divisor = divisor if divisor is None else integer("divisor", divisor, 4)
        self._timing = sdram
        super().__init__({"line_in": In(1, init=1), "line_out": Out(1, init=1),
                          "interrupt": Out(1),
                          **({} if sdram is None else {"sdram": Out(SdramPins())}),
            **(spi_members() if divisor is None else {})})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        memory = config.hbm_address_bits, channel_bits(config)
        host = instantiate(m, platform, "host", "serial_host",
                           lambda: SerialHost(self._divisor, *memory, self._timing))
        chip = instantiate(m, platform, "chip", "chip", lambda: Chip(config), reset=host.reset_chip)
        m.d.comb += [host.line_in.eq(self.line_in), self.line_out.eq(host.line_out),
                     self.interrupt.eq(chip.interrupt)]
        if self._divisor is None:
            m.d.comb += [host.spi_clock.eq(self.spi_clock), host.spi_select.eq(self.spi_select)]
        if self._timing is not None:
            connect(m, host.sdram, flipped(self.sdram))
        for prefix, port in ((CONTROL_PREFIX, host.control), (hbm_prefix(0, 0), host.memory)):
            for name, member in port.signature.members.items():
                ours, theirs = getattr(port, name), getattr(chip, f"{prefix}_{name}")
                m.d.comb += theirs.eq(ours) if member.flow == Out else ours.eq(theirs)
        return m
