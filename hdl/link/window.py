"""Counters of the sending end of a link: rate of frames, credits, sequence numbers, retries."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .format import CHANNELS, LinkConfig

__all__ = ["Credits", "RateLimiter", "RetryTimer", "Window"]


class RateLimiter(wiring.Component):
    """Limits the frames of a link to ``rate_flits`` in ``rate_cycles`` cycles.

    This is a token bucket: it gains ``rate_flits`` tokens a cycle, and a frame takes
    ``rate_cycles`` of them. It never saves tokens for more than one frame. So in any *n* cycles
    there are at most ``(n * rate_flits - 1) // rate_cycles + 1`` frames.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    free : Out(1)
        A frame may be sent in this cycle.
    use : In(1)
        A frame is sent in this cycle; only with ``free``.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        super().__init__({"free": Out(1), "use": In(1)})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `RateLimiter` with these parameters."""
        return f"rate_limiter_{config.rate_flits}_{config.rate_cycles}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        gain, price = self._config.rate_flits, self._config.rate_cycles
        tokens = Signal(range(max(price, 2)), init=price - gain)
        total = Signal(range(price + gain))
        m.d.comb += [total.eq(tokens + gain), self.free.eq(total >= price)]
        # A full bucket keeps the tokens that, with the next gain, are enough for a frame.
        m.d.sync += tokens.eq(Mux(self.use, total - price, Mux(self.free, price - gain, total)))
        return m


class Credits(wiring.Component):
    """Counts the credits of a link: the free places in the other end's buffers.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    send, channel : In(1), In(1)
        A new flit of a channel is sent.
    heard, freed : In(1), In(CHANNELS counts)
        With ``heard``: the totals of flits that have left the other end's buffers.
    free : Out(CHANNELS)
        The buffer of this channel has room for a flit.
    owed : Out(1)
        A flit that was sent is not known to have left its buffer.
    wrong : Out(1)
        The other end claims that more flits have left its buffers than were sent.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._bits = bits = config.count_bits
        super().__init__({
            "send": In(1), "channel": In(1), "heard": In(1),
            "freed": In(data.ArrayLayout(bits, CHANNELS)),
            "free": Out(CHANNELS), "owed": Out(1), "wrong": Out(1)})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `Credits` with these parameters."""
        return f"credits_{config.depth}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        owed, wrong = Signal(CHANNELS), Signal(CHANNELS)
        for channel in range(CHANNELS):
            used = Signal(self._bits, name=f"used_{channel}")
            freed = Signal(self._bits, name=f"freed_{channel}")
            more = Signal(self._bits, name=f"more_{channel}")
            sent = Signal(name=f"sent_{channel}")
            m.d.comb += [
                more.eq(Mux(self.heard, self.freed[channel] - freed, 0)),
                sent.eq(self.send & (self.channel == channel)),
                self.free[channel].eq(~used[-1]),
                owed[channel].eq(used != 0),
                wrong[channel].eq(more > used),
            ]
            m.d.sync += [used.eq(used + sent - more), freed.eq(freed + more)]
        m.d.comb += [self.owed.eq(owed.any()), self.wrong.eq(wrong.any())]
        return m


class Window(wiring.Component):
    """Numbers the flits of a link, and decides which of them to send again.

    The sender keeps all flits from the oldest that is not acknowledged to the newest. When it goes
    back, it sends all of these again, in order.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    send, again : In(1), In(1)
        A new flit is sent; the flit ``next`` is sent again.
    heard, acknowledge : In(1), In(count_bits)
        With ``heard``: the number of the flit that the other end expects.
    back : In(1)
        Go back to the oldest flit that is not acknowledged.
    new, next : Out(count_bits)
        Number of the next new flit; of the next flit to send again. They are equal if there is
        none to send again.
    full : Out(1)
        ``depth`` flits are kept.
    unanswered : Out(1)
        A flit is kept.
    progress : Out(1)
        A flit is acknowledged in this cycle.
    wrong : Out(1)
        The other end acknowledges a flit that was not sent.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._bits = bits = config.count_bits
        super().__init__({
            "send": In(1), "again": In(1), "heard": In(1), "acknowledge": In(bits), "back": In(1),
            "new": Out(bits), "next": Out(bits), "full": Out(1), "unanswered": Out(1),
            "progress": Out(1), "wrong": Out(1)})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `Window` with these parameters."""
        return f"window_{config.depth}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self._bits
        oldest, kept, repeated = Signal(bits), Signal(bits), Signal(bits)
        received, start = Signal(bits), Signal(bits)
        m.d.comb += [
            kept.eq(self.new - oldest),
            repeated.eq(self.next - oldest),
            received.eq(Mux(self.heard, self.acknowledge - oldest, 0)),
            start.eq(oldest + received),
            self.full.eq(kept[-1]),
            self.unanswered.eq(kept != 0),
            self.progress.eq(received != 0),
            self.wrong.eq(received > kept),
        ]
        m.d.sync += oldest.eq(start)
        with m.If(self.send):
            m.d.sync += self.new.eq(self.new + 1)
        # An acknowledgement can overtake the repetition of flits that were not lost.
        with m.If(self.back | (received > repeated)):
            m.d.sync += self.next.eq(start)
        with m.Elif(self.send | self.again):
            m.d.sync += self.next.eq(self.next + 1)
        return m


class RetryTimer(wiring.Component):
    """Measures for how long the other end does not answer.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    waiting : In(1)
        An answer is expected.
    answered : In(1)
        The answer arrives in this cycle.
    expired : Out(1)
        ``retry_cycles`` cycles have passed without an answer; set for one cycle.
    dead : Out(1)
        Set with ``expired`` if ``expired`` was set ``retries`` times before, since the last answer.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        super().__init__({"waiting": In(1), "answered": In(1), "expired": Out(1), "dead": Out(1)})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `RetryTimer` with these parameters."""
        return f"retry_timer_{config.retry_cycles}_{config.retries}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        cycles = Signal(range(config.retry_cycles))
        tries = Signal(range(config.retries + 1))
        m.d.comb += [
            self.expired.eq(self.waiting & ~self.answered & (cycles == config.retry_cycles - 1)),
            self.dead.eq(self.expired & (tries == config.retries))]
        with m.If(self.answered | ~self.waiting):
            m.d.sync += [cycles.eq(0), tries.eq(0)]
        with m.Elif(self.expired):
            m.d.sync += [cycles.eq(0), tries.eq(tries + 1)]
        with m.Else():
            m.d.sync += cycles.eq(cycles + 1)
        return m
