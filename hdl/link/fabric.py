"""The part of a chip that belongs to the torus: its router and the ends of its four links."""

from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..checks import instance
from ..tiles import instantiate
from .format import Direction, LinkConfig, flit_layout, frame_layout
from .receiver import LinkReceiver
from .router import Router
from .sender import LinkSender

__all__ = ["Fabric"]


class Fabric(wiring.Component):
    """Router and links of a chip.

    A packet that need not wait leaves three cycles after it arrived.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    rx_valid, rx_frame : In(1).array(4), In(frame_layout).array(4)
        From the wire of each `Direction`.
    tx_valid, tx_frame : Out(1).array(4), Out(frame_layout).array(4)
        To the wire of each direction.
    down, busy : Out(4), Out(4)
        One bit for each direction. ``down``: the link was given up. ``busy``: a flit that was sent
        may still be on its way or in the other end's buffer, or this end has received only a part
        of a packet. See `LinkSender`.
    stalled : Out(4)
        A flit waits for the link in this direction: the other end has no room for it, and no other
        flit leaves by this link.
    wraps, inject, eject
        As in `Router`.

    Raises
    ------
    TypeError
        If ``config`` is not a `LinkConfig`.
    """

    def __init__(self, config: LinkConfig) -> None:
        instance("config", config, LinkConfig)
        self._config = config
        flit, frame, ports = flit_layout(config), frame_layout(config), len(Direction)
        super().__init__({
            "rx_valid": In(1).array(ports), "rx_frame": In(frame).array(ports),
            "tx_valid": Out(1).array(ports), "tx_frame": Out(frame).array(ports),
            "down": Out(ports), "busy": Out(ports), "stalled": Out(ports), "wraps": In(ports),
            "inject": In(stream.Signature(flit)).array(ports),
            "eject": Out(stream.Signature(flit)).array(ports)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        router = instantiate(m, platform, "router", Router.module(config), lambda: Router(config))
        m.d.comb += router.wraps.eq(self.wraps)
        for port in Direction:
            receiver = instantiate(m, platform, f"receiver_{port}", LinkReceiver.module(config),
                                   lambda: LinkReceiver(config))
            sender = instantiate(m, platform, f"sender_{port}", LinkSender.module(config),
                                 lambda: LinkSender(config))
            m.d.comb += [
                receiver.down.eq(sender.down), router.down[port].eq(sender.down),
                receiver.valid.eq(self.rx_valid[port]), receiver.frame.eq(self.rx_frame[port]),
                router.received[port].eq(receiver.received),
                router.from_channel[port].eq(receiver.channel),
                router.from_flit[port].eq(receiver.flit),
                sender.report.eq(receiver.report), sender.freed.eq(router.freed[port]),
                router.room[port].eq(sender.room), sender.send.eq(router.send[port]),
                sender.channel.eq(router.to_channel[port]), sender.flit.eq(router.to_flit[port]),
                self.tx_valid[port].eq(sender.valid), self.tx_frame[port].eq(sender.frame),
                self.down[port].eq(sender.down), self.busy[port].eq(sender.busy),
                self.stalled[port].eq((router.offer[port] & sender.starved).any()
                                      & ~router.send[port])]
            wiring.connect(m, wiring.flipped(self.inject[port]), router.inject[port])
            wiring.connect(m, router.eject[port], wiring.flipped(self.eject[port]))
        return m
