"""The system on an FPGA: the chip, its memory, and the host's serial line."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..axi.interface import CONTROL_PREFIX, channel_bits, hbm_prefix
from ..checks import instance, integer
from ..chip.chip import Chip, check_chip
from ..config import Config
from ..tiles import instantiate
from .host import SerialHost

__all__ = ["SerialSystem"]


class SerialSystem(wiring.Component):
    """The chip with memory in block RAM, which a host accesses over a serial line.

    Parameters
    ----------
    config : Config
        Parameters of a chip with one core and one memory channel, and at most 2 GiB of memory.
    divisor : int
        Cycles of a bit on the line, at least 4.

    Attributes
    ----------
    line_in, line_out : In(1), Out(1)
        The serial line of `SerialHost`; ``line_in`` is asynchronous.
    interrupt : Out(1)
        The chip's interrupt output.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the chip has several cores or channels.
    """

    def __init__(self, config: Config, divisor: int) -> None:
        instance("config", config, Config)
        check_chip(config)
        for name in ("cores", "hbm_channels"):
            if getattr(config, name) != 1:
                raise ValueError(f"{name} must be 1, not {getattr(config, name)!r}")
        self._config = config
        self._divisor = integer("divisor", divisor, 4)
        super().__init__({"line_in": In(1, init=1), "line_out": Out(1, init=1),
                          "interrupt": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        memory = config.hbm_address_bits, channel_bits(config)
        host = instantiate(m, platform, "host", "serial_host",
                           lambda: SerialHost(self._divisor, *memory))
        chip = instantiate(m, platform, "chip", "chip", lambda: Chip(config), reset=host.reset_chip)
        m.d.comb += [host.line_in.eq(self.line_in), self.line_out.eq(host.line_out),
                     self.interrupt.eq(chip.interrupt)]
        for prefix, port in ((CONTROL_PREFIX, host.control), (hbm_prefix(0, 0), host.memory)):
            for name, member in port.signature.members.items():
                ours, theirs = getattr(port, name), getattr(chip, f"{prefix}_{name}")
                m.d.comb += theirs.eq(ours) if member.flow == Out else ours.eq(theirs)
        return m
