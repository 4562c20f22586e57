"""The receiving end of a link: checks frames, and delivers flits in order."""

from amaranth import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..checks import instance
from ..tiles import instantiate
from .check import FrameCheck
from .format import CHANNELS, LinkConfig, flit_layout, frame_body, frame_layout

__all__ = ["LinkReceiver", "report_layout"]


def report_layout(config: LinkConfig) -> data.StructLayout:
    """Layout of what a receiver tells the sender at the same end of the link, in each cycle.

    Attributes
    ----------
    heard : 1
        An undamaged frame arrived one cycle ago. The next six members are its fields.
    poll, resend : 1
        ``poll``: the other end asks for a frame. ``resend``: it asks for the repetition of flits.
    known, fresh, acknowledge, freed : 1, 1, count_bits, CHANNELS counts of count_bits
        As in `frame_body`.
    lost : 1
        A frame was damaged or is missing. Set for one cycle, and not again before the flit that
        was lost arrives.
    repeated : 1
        A flit arrived for the second time, because its acknowledgement was lost or late.
    inside : 1
        Some flits of a packet have arrived, but not its tail.
    expected : count_bits
        Number of the next flit to arrive.
    """
    count = config.count_bits
    return data.StructLayout({
        "heard": 1, "poll": 1, "resend": 1, "known": 1, "fresh": 1, "acknowledge": count,
        "freed": data.ArrayLayout(count, CHANNELS), "lost": 1, "repeated": 1, "inside": 1,
        "expected": count})


class LinkReceiver(wiring.Component):
    """Checks the frames of a wire, and delivers each of their flits once and in order.

    A flit is delivered one cycle after its frame.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    valid, frame : In(1), In(frame_layout)
        From the wire.
    down : In(1)
        The link was given up: drop all frames.
    received, channel, flit : Out(1), Out(1), Out(flit_layout)
        A flit, for one cycle. The buffer of its channel has room: the other end counts credits.
    report : Out(report_layout)
        To the `hdl.link.sender.LinkSender` of this end.

    Raises
    ------
    TypeError
        If ``config`` is not a `LinkConfig`.
    """

    def __init__(self, config: LinkConfig) -> None:
        instance("config", config, LinkConfig)
        self._config = config
        super().__init__({
            "valid": In(1), "frame": In(frame_layout(config)), "down": In(1),
            "received": Out(1), "channel": Out(1), "flit": Out(flit_layout(config)),
            "report": Out(report_layout(config))})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `LinkReceiver` with these parameters."""
        return f"link_receiver_{config.name}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        check = instantiate(m, platform, "check", FrameCheck.module(config),
                            lambda: FrameCheck(config))
        came, right = Signal(), Signal(reset_less=True)
        good, bad = Signal(), Signal()
        body = Signal(frame_body(config), reset_less=True)
        m.d.comb += [check.body.eq(self.frame.body),
                     good.eq(came & right), bad.eq(came & ~right)]
        m.d.sync += came.eq(self.valid & ~self.down)
        # Only here is the checksum used, so a simulation need not compute it in other cycles.
        with m.If(self.valid):
            m.d.sync += [body.eq(self.frame.body),
                         right.eq((check.check == self.frame.check) & (self.frame.zeros == 0))]

        expected = Signal(config.count_bits)
        ahead = Signal(config.count_bits)  # the upper half of its values is behind
        arrived, lost = Signal(), Signal()
        waiting = Signal()  # until the flit that was lost arrives
        inside = Signal(CHANNELS)  # of a packet
        m.d.comb += [
            ahead.eq(body.sequence - expected),
            arrived.eq(good & body.carries),
            self.received.eq(arrived & (ahead == 0)),
            lost.eq(bad | (arrived & (ahead != 0) & ~ahead[-1])),
            self.channel.eq(body.channel),
            self.flit.eq(body.flit),
            self.report.heard.eq(good),
            self.report.lost.eq(lost & ~waiting),
            self.report.repeated.eq(arrived & ahead[-1]),
            self.report.inside.eq(inside.any()),
            self.report.expected.eq(expected),
            *(getattr(self.report, name).eq(getattr(body, name))
              for name in ("poll", "resend", "known", "fresh", "acknowledge", "freed")),
        ]
        with m.If(self.received):
            m.d.sync += [expected.eq(expected + 1), waiting.eq(0),
                         inside.bit_select(body.channel, 1).eq(~body.flit.tail)]
        with m.Elif(lost):
            m.d.sync += waiting.eq(1)
        return m
