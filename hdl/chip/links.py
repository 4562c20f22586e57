"""The links of a chip: its fabric, and the paths of packets between the fabric and the cores."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..config import Config
from ..dma.remote import PLACE_PORTS
from ..link.eject import ArrivalPort, Ejection
from ..link.fabric import Fabric
from ..link.format import Direction, flit_layout, frame_layout
from ..link.packet import link_config
from ..link.router import PacketMux
from ..tiles import instantiate

__all__ = ["LINKS", "ChipLinks"]

LINKS = {Direction.X_PLUS: "xp", Direction.X_MINUS: "xn", Direction.Y_PLUS: "yp",
         Direction.Y_MINUS: "yn"}
"""Name of the link in each direction, as in the names of the chip's ports."""


class ChipLinks(wiring.Component):
    """Joins the cores of a chip to its four links.

    At each link, the cores take turns: each sends one packet a turn.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    rx_valid, rx_frame, tx_valid, tx_frame
        As in `Fabric`.
    width, height, x, y : In
        Chips along each side of the torus, and coordinates of this chip. They may change only while
        the links are idle.
    flit_{core} : In(stream of flit_layout).array(4)
        Packets of each core, by the direction of their first hop.
    core : Out(ArrivalPort).array(cores)
        Packets for each core.
    error : Out(1)
        A link is down, or a packet that arrived was wrong.
    stalled : Out(4)
        As in `Fabric`.
    busy : Out(1)
        A packet may still be in this chip, or in the buffer of the next one; or a packet has
        arrived in part, or has not been delivered to its core. A link that is down drops the
        packets that wait for it, so they do not keep the chip busy.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._link = link = link_config(config)
        ports = len(Direction)
        flit, frame = stream.Signature(flit_layout(link)), frame_layout(link)
        super().__init__({
            "rx_valid": In(1).array(ports), "rx_frame": In(frame).array(ports),
            "tx_valid": Out(1).array(ports), "tx_frame": Out(frame).array(ports),
            **{name: In(width) for name, width in PLACE_PORTS.items()},
            **{f"flit_{core}": In(flit).array(ports) for core in range(config.cores)},
            "core": Out(ArrivalPort(config)).array(config.cores), "error": Out(1), "busy": Out(1),
            "stalled": Out(ports)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        fabric = instantiate(m, platform, "fabric", "fabric", lambda: Fabric(self._link))
        ejection = instantiate(m, platform, "ejection", "ejection", lambda: Ejection(config))
        at_end = {Direction.X_PLUS: self.x + 1 == self.width, Direction.X_MINUS: self.x == 0,
                  Direction.Y_PLUS: self.y + 1 == self.height, Direction.Y_MINUS: self.y == 0}
        wrong = Signal()
        m.d.comb += [
            ejection.x.eq(self.x), ejection.y.eq(self.y),
            self.error.eq(fabric.down.any() | wrong), self.stalled.eq(fabric.stalled),
            self.busy.eq(fabric.busy.any() | ejection.full)]
        m.d.sync += wrong.eq(ejection.wrong)
        for port in Direction:
            m.d.comb += [
                fabric.rx_valid[port].eq(self.rx_valid[port]),
                fabric.rx_frame[port].eq(self.rx_frame[port]),
                self.tx_valid[port].eq(fabric.tx_valid[port]),
                self.tx_frame[port].eq(fabric.tx_frame[port]),
                fabric.wraps[port].eq(at_end[port])]
            self._inject(m, platform, port, fabric)
            connect(m, fabric.eject[port], ejection.flit[port])
        for inside, outside in zip(ejection.core, self.core, strict=True):
            connect(m, inside, flipped(outside))
        return m

    def _inject(self, m: Module, platform: object, port: Direction, fabric: Fabric) -> None:
        """Merge the packets of all cores for the link in direction ``port`` into one stream."""
        count = self._config.cores
        sources = [getattr(self, f"flit_{core}")[port] for core in range(count)]
        if count == 1:
            connect(m, flipped(sources[0]), fabric.inject[port])
            return
        mux = instantiate(m, platform, f"inject_{port}", PacketMux.module(self._link, count, 1),
                          lambda: PacketMux(self._link, count, 1))
        for source, sink in zip(sources, mux.source, strict=True):
            connect(m, flipped(source), sink)
        inject = fabric.inject[port]
        m.d.comb += [inject.valid.eq(mux.offer), mux.room.eq(inject.ready),
                     inject.payload.eq(mux.flit)]
