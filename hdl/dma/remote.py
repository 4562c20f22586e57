"""Cores of other chips: how a program names them, and the hops that lead to them."""

from typing import Any

from amaranth import Module, Mux, Signal
from amaranth.hdl import signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..config import Config
from ..link.format import COORDINATE_BITS, SIDE_BITS
from .format import REMOTE_LAYOUT
from .interface import remote_chip

__all__ = ["PLACE_PORTS", "RemoteCheck", "directions"]

PLACE_PORTS = {"width": SIDE_BITS, "height": SIDE_BITS, "x": COORDINATE_BITS, "y": COORDINATE_BITS}
"""Names and widths in bits of the ports for the size of the torus and this chip's coordinates."""


def directions(to: Any) -> list[Any]:
    """Return a bit for each `Direction`: only that of the first hop to chip ``to`` is set."""
    return [to.dx > 0, to.dx < 0, (to.dx == 0) & (to.dy > 0), (to.dx == 0) & (to.dy < 0)]


class RemoteCheck(wiring.Component):
    """Checks the name of a core of another chip, and finds its coordinates; combinational.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    width, height, x, y : In
        Chips along each side of the torus, and coordinates of this chip.
    word : In(32)
        The name, of `REMOTE_LAYOUT`.
    malformed : Out(1)
        A reserved bit is set, or no chip has a core of this number.
    outside : Out(1)
        The hops along X or Y are too many: ``width`` or more along X, ``height`` or more along Y,
        in either direction. Or both numbers of hops are 0.
    to : Out(remote_chip)
        The core; valid if neither ``malformed`` nor ``outside`` is set.
    """

    combinational = True

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__({**{name: In(width) for name, width in PLACE_PORTS.items()},
                          "word": In(32), "malformed": Out(1), "outside": Out(1),
                          "to": Out(remote_chip())})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        name = data.View(REMOTE_LAYOUT, self.word)
        m.d.comb += [
            self.malformed.eq((name.reserved != 0) | (name.core >= self._config.cores)),
            self.to.core.eq(name.core)]
        far = []
        for hops, at, side, reached in (("dx", self.x, self.width, self.to.x),
                                        ("dy", self.y, self.height, self.to.y)):
            number = getattr(name, hops)
            place = Signal(signed(9), name=f"place_{hops}")
            m.d.comb += [
                getattr(self.to, hops).eq(number),
                place.eq(at + number),
                reached.eq(Mux(place < 0, place + side, Mux(place >= side, place - side, place)))]
            far.append((number >= side) | (-number >= side))
        m.d.comb += self.outside.eq(far[0] | far[1] | ((name.dx == 0) & (name.dy == 0)))
        return m
