"""The top module for a board with an ECP5: clock, reset and pins of the system."""

from amaranth import ClockDomain, ClockSignal, Const, Instance, Module, ResetSignal, Signal, Value
from amaranth.hdl import IOPort
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..checks import integer
from ..config import Config
from ..tiles import instantiate
from .bridge import spi_members
from .sdram import SdramTiming
from .system import SerialSystem

__all__ = ["CRYSTAL_HZ", "Board", "pll_divisors"]

CRYSTAL_HZ = 25_000_000
"""Frequency of the crystal, the board's clock."""
_VCO_HZ = 600_000_000
"""Preferred frequency of the PLL's oscillator, which can run at 400 to 800 MHz."""
_MAX_REFERENCE = 8
"""Largest divisor of the crystal's frequency: the PLL's phase detector needs 3.125 MHz or more."""
_MAX_OUTPUT = 128
_MAX_ERROR = 0.02
"""Largest relative error of the line's rate; a receiver tolerates 5 % over a byte's ten bits."""
_RESET_BITS = 8
_MAX_SDRAM_HZ = 40_000_000
"""Maximum frequency of the SDRAM's clock. Its rising edge comes half a cycle before the edge of the
chip's clock that samples the data. The SDRAM takes 6 ns of this half cycle to output valid data;
the rest is for the pads and the wires."""
_SDRAM_OUTPUTS = {"clk": 1, "clk_en": 1, "cs": 1, "we": 1, "ras": 1, "cas": 1, "ba": 2, "a": 13,
                  "dqm": 2}
"""Widths of the SDRAM's pins that `Board` drives, by their names in `amaranth_boards`."""


def pll_divisors(clock_hz: int) -> tuple[int, int, int]:
    """Return the divisors of an ECP5's PLL (EHXPLLL) whose output is also its feedback.

    The output's frequency is `CRYSTAL_HZ` x feedback / reference. The oscillator inside the
    PLL runs at the output's frequency times the output's divisor.

    Parameters
    ----------
    clock_hz : int
        Frequency of the output in Hz.

    Returns
    -------
    tuple of int
        Divisors of the reference, the feedback and the output.

    Raises
    ------
    ValueError
        If no divisors give exactly this frequency.
    """
    output = min(round(_VCO_HZ / clock_hz), _MAX_OUTPUT)
    for reference in range(1, _MAX_REFERENCE + 1):
        feedback, rest = divmod(clock_hz * reference, CRYSTAL_HZ)
        if feedback and not rest and output:
            return reference, feedback, output
    raise ValueError(f"clock_hz must be a multiple of {CRYSTAL_HZ} / n, n from 1 to "
                     f"{_MAX_REFERENCE}, not {clock_hz!r}")


def _divisor(clock_hz: int, baud: int) -> int:
    """Return the number of clock cycles for each bit of a UART at ``baud`` bits a second.

    Raises
    ------
    ValueError
        If the number would be less than 4, or no integer gives a rate within 2 % of ``baud``.
    """
    divisor = round(clock_hz / integer("baud", baud, 1))
    if divisor < 4 or abs(clock_hz / divisor / baud - 1) > _MAX_ERROR:
        raise ValueError(f"baud must be within {_MAX_ERROR:.0%} of {clock_hz} / n, n an integer of "
                         f"at least 4, not {baud!r}")
    return divisor


class Board(wiring.Component):
    """`SerialSystem` at the pins of a ULX3S. It is in reset until its clock is stable.

    Parameters
    ----------
    config : Config
        Parameters of the chip; see `SerialSystem`.
    clock_hz : int
        Frequency of the chip's clock in Hz; a PLL makes it from the crystal's.
    baud : int or None
        Bits a second on the serial line, a UART. None: the line is SPI.
    sdram : bool
        The memory is the board's SDRAM. Otherwise it is block RAM.

    Attributes
    ----------
    clk25 : In(1)
        The crystal's clock.
    line_in, line_out : In(1), Out(1)
        The serial line; for SPI, MOSI and MISO.
    spi_clock, spi_select : In(1), In(1)
        The other pins of SPI; present only if the line is SPI.
    leds : Out(3)
        From bit 0: blinks with the clock; the host sends (SPI: ``line_in`` is 0); the chip's
        interrupt.
    sdram_clk, sdram_clk_en, sdram_cs, sdram_we, sdram_ras, sdram_cas : Out(1)
        Pins of the SDRAM, present only with ``sdram``, and with them the bidirectional port
        ``sdram_dq``. Each pin but the clock has a register in its pad. The SDRAM's clock is the
        inverted clock of the chip. So commands and data are stable for half a cycle before, and
        half a cycle after, the rising edge at which the SDRAM reads them.
    sdram_ba, sdram_a, sdram_dqm : Out(2), Out(13), Out(2)
        Further pins of the SDRAM; the same applies to them.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or no divisors give the clock or the rate.
    """

    combinational = True  # no port ``clk`` or ``rst``: it makes both

    def __init__(self, config: Config, clock_hz: int, baud: int | None, *,
                 sdram: bool = False) -> None:
        self._clock_hz = integer("clock_hz", clock_hz, 1)
        self._divisors = pll_divisors(clock_hz)
        divisor = None if baud is None else _divisor(clock_hz, baud)
        if sdram and clock_hz > _MAX_SDRAM_HZ:
            raise ValueError(f"clock_hz must be at most {_MAX_SDRAM_HZ} with an SDRAM, not "
                             f"{clock_hz!r}")
        timing = SdramTiming(clock_hz) if sdram else None
        self._sdram = sdram
        self._make = lambda: SerialSystem(config, divisor, timing)
        self._spi = spi_members() if divisor is None else {}
        super().__init__({"clk25": In(1), "line_in": In(1), "line_out": Out(1), "leds": Out(3),
                          **self._spi,
                          **{f"sdram_{name}": Out(width) for name, width in _SDRAM_OUTPUTS.items()
                             if sdram}})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains.sync = ClockDomain()
        m.domains.start = ClockDomain(reset_less=True)
        clock, locked = self._clock(m)
        waited = Signal(_RESET_BITS)
        with m.If(~locked):
            m.d.start += waited.eq(0)
        with m.Elif(~waited.all()):
            m.d.start += waited.eq(waited + 1)
        m.d.comb += [ClockSignal().eq(clock), ClockSignal("start").eq(clock),
                     ResetSignal().eq(~waited.all())]
        system = instantiate(m, platform, "system", "serial_system", self._make)
        blink = Signal(25)
        m.d.sync += blink.eq(blink + 1)
        m.d.comb += [system.line_in.eq(self.line_in), self.line_out.eq(system.line_out),
                     self.leds[0].eq(blink[-1]), self.leds[1].eq(~self.line_in),
                     self.leds[2].eq(system.interrupt),
                     *(getattr(system, name).eq(getattr(self, name)) for name in self._spi)]
        if self._sdram:
            self._add_pads(m, system.sdram)
        return m

    def _add_pads(self, m: Module, pins: wiring.PureInterface) -> None:
        """Connect the pins of the SDRAM, each through a register in its pad."""
        clock = ClockSignal()

        def registered(name: str, value: Value, out: Value) -> None:
            for place, (bit, pin) in enumerate(zip(value, out, strict=True)):
                m.submodules[f"sdram_{name}_{place}"] = Instance(
                    "OFS1P3DX", i_SCLK=clock, i_SP=Const(1), i_CD=Const(0), i_D=bit, o_Q=pin)

        m.submodules.sdram_clk = Instance(
            "ODDRX1F", i_SCLK=clock, i_RST=Const(0), i_D0=Const(0), i_D1=Const(1),
            o_Q=self.sdram_clk)
        we, cas, ras, cs = pins.command
        for name, value in (("clk_en", pins.enable), ("cs", cs), ("ras", ras), ("cas", cas),
                            ("we", we), ("ba", pins.bank), ("a", pins.address),
                            ("dqm", pins.mask)):
            registered(name, value, getattr(self, f"sdram_{name}"))
        data = IOPort(len(pins.data), name="sdram_dq")
        out, released = Signal.like(pins.data), Signal.like(pins.data)
        registered("data", pins.data, out)
        registered("released", (~pins.drive).replicate(len(released)), released)
        for place, pin in enumerate(data):
            read = Signal(name=f"sdram_read_{place}")
            m.submodules[f"sdram_dq_{place}"] = Instance(
                "BB", i_I=out[place], i_T=released[place], o_O=read, io_B=pin)
            m.submodules[f"sdram_in_{place}"] = Instance(
                "IFS1P3DX", i_SCLK=clock, i_SP=Const(1), i_CD=Const(0), i_D=read,
                o_Q=pins.data_in[place])

    def _clock(self, m: Module) -> tuple[Signal, Signal]:
        """Return the chip's clock, and a signal that is set while that clock is stable."""
        clock, locked = Signal(), Signal()
        if self._clock_hz == CRYSTAL_HZ:
            m.d.comb += [clock.eq(self.clk25), locked.eq(1)]
            return clock, locked
        reference, feedback, output = self._divisors
        m.submodules.pll = Instance(
            "EHXPLLL", p_PLLRST_ENA="DISABLED", p_INTFB_WAKE="DISABLED",
            p_STDBY_ENABLE="DISABLED", p_DPHASE_SOURCE="DISABLED", p_OUTDIVIDER_MUXA="DIVA",
            p_OUTDIVIDER_MUXB="DIVB", p_OUTDIVIDER_MUXC="DIVC", p_OUTDIVIDER_MUXD="DIVD",
            p_CLKI_DIV=reference, p_CLKOP_ENABLE="ENABLED", p_CLKOP_DIV=output,
            p_CLKOP_CPHASE=output // 2, p_CLKOP_FPHASE=0, p_FEEDBK_PATH="CLKOP",
            p_CLKFB_DIV=feedback, a_ICP_CURRENT="12", a_LPF_RESISTOR="8",
            a_MFG_ENABLE_FILTEROPAMP="1", a_MFG_GMCREF_SEL="2",
            i_RST=0, i_STDBY=0, i_CLKI=self.clk25, i_CLKFB=clock, i_PHASESEL0=0, i_PHASESEL1=0,
            i_PHASEDIR=1, i_PHASESTEP=1, i_PHASELOADREG=1, i_PLLWAKESYNC=0, i_ENCLKOP=0,
            o_CLKOP=clock, o_LOCK=locked)
        return clock, locked
