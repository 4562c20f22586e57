"""The sending end of a link: frames, acknowledgements, credits, and repetition."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..checks import instance
from ..sram import Sram
from ..tiles import instantiate
from .check import FrameCheck
from .format import CHANNELS, LinkConfig, flit_layout, frame_body, frame_layout
from .receiver import report_layout
from .window import Credits, RateLimiter, RetryTimer, Window

__all__ = ["LinkSender"]


class LinkSender(wiring.Component):
    """Sends flits in frames, and repeats them from the first that was lost (go-back-N).

    A flit is on the wire two cycles after it was accepted. If there is no flit to send, a frame
    without a flit carries acknowledgements and credits.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    room : Out(CHANNELS)
        A flit of this channel can be accepted in this cycle. Always set while ``down``.
    send, channel, flit : In(1), In(1), In(flit_layout)
        Accept a flit; only if its channel has ``room``.
    freed : In(CHANNELS)
        A flit of this channel leaves the buffer behind this end's receiver.
    report : In(report_layout)
        From the `hdl.link.receiver.LinkReceiver` of this end.
    valid, frame : Out(1), Out(frame_layout)
        To the wire.
    starved : Out(CHANNELS)
        The other end's buffer has no room for a flit of this channel. Not set while ``down``.
    down : Out(1)
        The link is given up, until the reset: the other end did not answer ``retries`` repetitions,
        or was reset, or acknowledges or frees flits that were not sent. This sender then drops all
        flits that it accepts, so that nothing waits for it.
    busy : Out(1)
        A flit that was sent may still be on its way or in the other end's buffer, or this end has
        received only a part of a packet. Never set while ``down``.

    Raises
    ------
    TypeError
        If ``config`` is not a `LinkConfig`.
    """

    def __init__(self, config: LinkConfig) -> None:
        instance("config", config, LinkConfig)
        self._config = config
        super().__init__({
            "room": Out(CHANNELS), "send": In(1), "channel": In(1),
            "flit": In(flit_layout(config)), "freed": In(CHANNELS),
            "report": In(report_layout(config)),
            "valid": Out(1), "frame": Out(frame_layout(config)), "starved": Out(CHANNELS),
            "down": Out(1), "busy": Out(1)})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `LinkSender` with these parameters."""
        return f"link_sender_{config.name}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config, report = self._config, self.report
        slots = instantiate(m, platform, "slots", RateLimiter.module(config),
                            lambda: RateLimiter(config))
        credits = instantiate(m, platform, "credits", Credits.module(config),
                              lambda: Credits(config))
        window = instantiate(m, platform, "window", Window.module(config), lambda: Window(config))
        timer = instantiate(m, platform, "timer", RetryTimer.module(config),
                            lambda: RetryTimer(config))
        poll = Signal()  # ask for a frame with the next frame
        repeat, accepts = Signal(), Signal()
        m.d.comb += [
            credits.send.eq(accepts), credits.channel.eq(self.channel),
            credits.heard.eq(report.heard), credits.freed.eq(report.freed),
            window.send.eq(accepts),
            window.heard.eq(report.heard), window.acknowledge.eq(report.acknowledge),
            window.back.eq((report.heard & report.resend) | (timer.expired & window.unanswered)),
            # In the middle of a packet, this end asks whether the other one still lives: the rest
            # of the packet would hold its channels for ever.
            timer.waiting.eq(window.unanswered | credits.owed | report.inside),
            # While flits are not acknowledged, no other frame counts as an answer.
            timer.answered.eq(Mux(window.unanswered, window.progress, report.heard)),
            repeat.eq(window.next != window.new),
            accepts.eq(self.send & ~self.down),
            self.room.eq(Mux(slots.free & ~repeat & ~window.full, credits.free, 0)
                         | self.down.replicate(CHANNELS)),
            self.starved.eq(Mux(self.down, 0, ~credits.free)),
        ]
        again, control, leaving = Signal(), Signal(), Signal()
        alone, known, fresh = self._greet(m, leaving)
        news, due = self._news(m, leaving, poll, known, fresh)
        with m.If(timer.dead | credits.wrong | window.wrong | alone):
            m.d.sync += self.down.eq(1)
        m.d.comb += [
            again.eq(slots.free & repeat & ~window.back & ~self.down),
            control.eq(slots.free & ~accepts & ~again & due & ~leaving & ~self.down),
            slots.use.eq(accepts | again | control),
            window.again.eq(again),
            self.busy.eq(timer.waiting & ~self.down),
        ]
        m.d.sync += leaving.eq(slots.use)
        with m.If(timer.expired):
            m.d.sync += poll.eq(1)
        with m.Elif(leaving):
            m.d.sync += poll.eq(0)
        self._frame(m, platform, accepts, again, leaving, news, window)
        return m

    def _greet(self, m: Module, leaving: Signal) -> tuple[Signal, Signal, Signal]:
        """Detect that the other end was reset while this end was not.

        Frames of the other end are ``fresh`` from its reset until it knows that this end has
        received a frame from it. So a ``fresh`` frame after one that was not ``fresh`` shows a
        reset. ``leaving`` is set while a frame of this end leaves. Return three signals. The first
        is set when such a reset is detected. ``known`` and ``fresh`` are fields of the frames of
        this end; ``known`` says that this end has received a frame from the other end.
        """
        report = self.report
        known, fresh, spoken, settled = Signal(), Signal(init=1), Signal(), Signal()
        alone = Signal()
        m.d.comb += alone.eq(report.heard & report.fresh & settled)
        with m.If(leaving):
            m.d.sync += spoken.eq(1)
        with m.If(report.heard):
            m.d.sync += known.eq(1)
            with m.If(spoken & report.known):
                m.d.sync += [fresh.eq(0), settled.eq(settled | ~report.fresh)]
        return alone, known, fresh

    def _news(self, m: Module, leaving: Signal, poll: Signal, known: Signal,
              fresh: Signal) -> tuple[data.View, Signal]:
        """Return the *news*: the fields by which a frame of this end tells the other end its state.

        ``poll``, ``known`` and ``fresh`` are copied to the news. ``leaving`` is set while a frame
        with the news leaves. The second result is set if a frame is due even without a flit.
        """
        config, report = self._config, self.report
        count = config.count_bits
        news = Signal(data.StructLayout({
            "acknowledge": count, "freed": data.ArrayLayout(count, CHANNELS), "resend": 1,
            "poll": 1, "known": 1, "fresh": 1}))
        freed = Signal(data.ArrayLayout(count, CHANNELS))
        resend, reply, due = Signal(), Signal(), Signal()
        state = Cat(~fresh, known, report.expected, freed)
        told = Signal(len(state))
        for channel in range(CHANNELS):
            with m.If(self.freed[channel]):
                m.d.sync += freed[channel].eq(freed[channel] + 1)
        m.d.comb += [
            news.acknowledge.eq(report.expected), news.freed.eq(freed),
            news.resend.eq(resend), news.poll.eq(poll), news.known.eq(known), news.fresh.eq(fresh),
            due.eq((told != state) | reply | resend | poll)]
        with m.If(leaving):
            m.d.sync += [told.eq(state), reply.eq(0), resend.eq(0)]
        with m.If((report.heard & report.poll) | report.repeated):
            m.d.sync += reply.eq(1)
        with m.If(report.lost):
            m.d.sync += resend.eq(1)
        return news, due

    def _frame(self, m: Module, platform: object, accepts: Signal, again: Signal,
               leaving: Signal, news: data.View, window: Window) -> None:
        """Store new flits, and build the frame of the flit that was chosen one cycle ago.

        ``accepts``: ``flit`` is sent, as a new one. ``again``: flit number ``window.next`` is
        chosen, to be sent again. ``leaving``: the frame leaves in this cycle. ``news`` is the first
        result of `_news`.
        """
        config = self._config
        entry = data.StructLayout({"flit": flit_layout(config), "channel": 1})
        kept = instantiate(m, platform, "kept", Sram.module(entry.size, config.depth),
                           lambda: Sram(entry.size, config.depth))
        check = instantiate(m, platform, "check", FrameCheck.module(config),
                            lambda: FrameCheck(config))
        carries, repeated = Signal(), Signal()
        number = Signal(config.count_bits, reset_less=True)
        new = Signal(entry.size, reset_less=True)
        m.d.comb += [
            kept.write.eq(accepts), kept.write_address.eq(window.new),
            kept.write_data.eq(Cat(self.flit, self.channel)),
            kept.read.eq(again), kept.read_address.eq(window.next),
        ]
        m.d.sync += [carries.eq(accepts | again), repeated.eq(again), number.eq(window.next)]
        with m.If(accepts):
            m.d.sync += new.eq(kept.write_data)

        chosen = data.View(entry, Mux(repeated, kept.read_data, new))
        body = Signal(frame_body(config))
        m.d.comb += [
            body.flit.eq(chosen.flit), body.channel.eq(chosen.channel),
            body.carries.eq(carries), body.sequence.eq(number),
            *(getattr(body, name).eq(getattr(news, name))
              for name in ("acknowledge", "freed", "resend", "poll", "known", "fresh")),
            check.body.eq(body),
        ]
        m.d.sync += self.valid.eq(leaving)
        with m.If(leaving):
            m.d.sync += [self.frame.body.eq(body), self.frame.check.eq(check.check)]
