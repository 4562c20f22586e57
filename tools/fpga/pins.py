"""Constraints of place and route: the pins and the clock of a board."""

from amaranth.build import Pins, Resource, Subsignal
from amaranth_boards.ulx3s import ULX3S_85F_Platform

__all__ = ["DEVICE", "constraints"]

DEVICE = ("--85k", "--package", ULX3S_85F_Platform.package.replace("BG", "CABGA", 1),
          "--speed", ULX3S_85F_Platform.speed)
"""Options of nextpnr for the board's FPGA."""

_PORTS = {"clk25": ("clk25", 0, None), "line_in": ("uart", 0, "rx"), "line_out": ("uart", 0, "tx"),
          **{f"leds[{number}]": ("led", number, None) for number in range(3)}}
"""For each port of `hdl.fpga.board.Board`: a resource of `amaranth_boards`, by name and number, and
the subsignal, if any."""

_SPI = {"spi_clock": "0+", "spi_select": "1+", "line_in": "2+", "line_out": "3+"}
"""Pins of the board's connector for the ports of SPI."""
_SDRAM = ("clk", "clk_en", "cs", "we", "ras", "cas", "ba", "a", "dq", "dqm")
"""Subsignals of the resource ``sdram``; the names of the ports begin with ``sdram_``."""

_ATTRIBUTES = {"line_in": {"PULLMODE": "UP"}, "spi_select": {"PULLMODE": "UP"}}
"""Attributes of ports, in addition to those in `amaranth_boards`. The pull-up makes a line without
a sender idle."""


def _resource(name: str, number: int) -> Resource:
    [found] = [resource for resource in ULX3S_85F_Platform.resources
               if (resource.name, resource.number) == (name, number)]
    return found


def _pins(part: Subsignal) -> list[str]:
    [pins] = [io for io in part.ios if isinstance(io, Pins)]
    return list(map(str, pins.names))


def _spi_constraints() -> list[str]:
    [connector] = [one for one in ULX3S_85F_Platform.connectors
                   if (one.name, one.number) == ("gpio", 0)]
    lines = []
    for port, place in _SPI.items():
        pulled = _ATTRIBUTES.get(port, {}).get("PULLMODE", "NONE")
        lines += [f'LOCATE COMP "{port}" SITE "{connector.mapping[place]}";',
                  f'IOBUF PORT "{port}" IO_TYPE=LVCMOS33 PULLMODE={pulled};']
    return lines


def constraints(*, sdram: bool = False, spi: bool = False) -> str:
    """Constraints in Lattice's format (LPF).

    Parameters
    ----------
    sdram : bool
        Include the pins of the SDRAM.
    spi : bool
        Connect the serial line as SPI, at pins 0+ to 3+ of the board's connector ``gpio``.
    """
    lines = _spi_constraints() if spi else []
    ports = {port: place for port, place in _PORTS.items() if not (spi and port in _SPI)}
    if sdram:
        ports |= {f"sdram_{name}": ("sdram", 0, name) for name in _SDRAM}
    for port, (name, number, signal) in ports.items():
        resource = _resource(name, number)
        part = resource
        if signal is not None:
            [part] = [io for io in resource.ios
                      if isinstance(io, Subsignal) and io.name == signal]
        pins = _pins(part)
        attributes = " ".join(f"{key}={value}"
                              for key, value in {**resource.attrs, **part.attrs,
                                                   **_ATTRIBUTES.get(port, {})}.items())
        for place, pin in enumerate(pins):
            one = port if len(pins) == 1 else f"{port}[{place}]"
            lines += [f'LOCATE COMP "{one}" SITE "{pin}";', f'IOBUF PORT "{one}" {attributes};']
        if resource.clock is not None:
            lines.append(f'FREQUENCY PORT "{port}" {resource.clock.frequency / 1e6:g} MHZ;')
    return "\n".join([*lines, ""])
