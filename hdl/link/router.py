"""The router of a chip: passes flits from links and injectors to links and ejectors, X before Y."""

from functools import reduce
from operator import or_

from amaranth import C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..axi.fifo import Fifo
from ..checks import instance
from ..chip.arbiter import RoundRobin
from ..tiles import instantiate
from .format import CHANNELS, Direction, LinkConfig, flit_layout

__all__ = ["ChannelBuffer", "PacketMux", "Router"]


class ChannelBuffer(wiring.Component):
    """The flits of a virtual channel that have arrived and not left.

    A flit that arrives at an empty buffer can leave in the same cycle. If the link dies inside a
    packet, the buffer ends the packet with a tail whose payload is all ones. No ejector accepts
    this tail: in the payload of a real flit, zeros follow the packet's header.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    arrives, flit : In(1), In(flit_layout)
        A flit arrives. There is room: the other end of the link counts the flits that left.
    down : In(1)
        The link was given up: no more flits arrive.
    output : Out(stream of flit_layout)
        The oldest flit.
    """

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        flit = flit_layout(config)
        super().__init__({"arrives": In(1), "flit": In(flit), "down": In(1),
                          "output": Out(stream.Signature(flit))})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `ChannelBuffer` with these parameters."""
        return f"channel_buffer_{config.name}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        flit, depth = flit_layout(self._config), self._config.depth
        width = flit.size
        fifo = instantiate(m, platform, "fifo", Fifo.module(width, depth),
                           lambda: Fifo(width, depth))
        stored = Signal(range(depth + 1))
        empty, inside, cut = Signal(), Signal(), Signal()
        hops = Signal(data.StructLayout({name: flit[name].shape for name in ("dx", "dy")}),
                      reset_less=True)  # of the flit that left last
        end = Signal(flit)
        leaves = self.output.payload
        m.d.comb += [
            empty.eq(stored == 0), cut.eq(empty & inside & self.down),
            end.as_value().eq(C(-1, width)), end.dx.eq(hops.dx), end.dy.eq(hops.dy),
            self.output.valid.eq(Mux(empty, self.arrives | cut, fifo.output.valid)),
            leaves.eq(Mux(empty, Mux(cut, end, self.flit), fifo.output.payload)),
            fifo.output.ready.eq(self.output.ready & ~empty),
            fifo.input.valid.eq(self.arrives & ~(empty & self.output.ready)),
            fifo.input.payload.eq(self.flit),
        ]
        m.d.sync += stored.eq(stored + fifo.input.valid
                              - (fifo.output.valid & fifo.output.ready))
        with m.If(self.output.valid & self.output.ready):
            m.d.sync += [inside.eq(~leaves.tail), hops.dx.eq(leaves.dx), hops.dy.eq(leaves.dy)]
        return m


class PacketMux(wiring.Component):
    """Merges streams of packets into one, which carries one packet at a time on each channel.

    The choice is combinational. A source whose packet is offered on a channel holds the channel
    until the packet's tail has left. The sources that want a free channel get it in turn. If both
    channels can send, they take turns.

    Parameters
    ----------
    config : LinkConfig
    sources : int
        Number of streams.
    channels : int
        Number of channels of the output, 1 or `CHANNELS`.

    Attributes
    ----------
    source : In(stream of flit_layout).array(sources)
        Packets.
    onto : In(1).array(sources)
        Channel on which each stream's flit is to leave; the same for all flits of a packet.
    room : In(channels)
        A flit can leave on this channel.
    offer : Out(channels)
        A flit leaves on this channel, or would leave if the channel had ``room`` and its turn.
    send, channel, flit : Out(1), Out(1), Out(flit_layout)
        With ``send``: ``flit`` leaves on ``channel`` in this cycle.
    """

    def __init__(self, config: LinkConfig, sources: int, channels: int) -> None:
        self._sources, self._channels = sources, channels
        flit = flit_layout(config)
        super().__init__({
            "source": In(stream.Signature(flit)).array(sources), "onto": In(1).array(sources),
            "room": In(channels), "offer": Out(channels), "send": Out(1), "channel": Out(1),
            "flit": Out(flit)})

    @staticmethod
    def module(config: LinkConfig, sources: int, channels: int) -> str:
        """Name of the Verilog module of a `PacketMux` with these parameters."""
        return f"packet_mux_{sources}_{channels}_{flit_layout(config).size}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        count = self._sources
        valid = Cat(source.valid for source in self.source)
        choices, holders = [], []
        for channel in range(self._channels):
            turns = instantiate(m, platform, f"turns_{channel}", RoundRobin.module(count),
                                lambda: RoundRobin(count))
            holder = Signal(count, name=f"holder_{channel}")
            choice = Signal(count, name=f"choice_{channel}")
            wants = Cat(source.valid & (onto == channel)
                        for source, onto in zip(self.source, self.onto, strict=True))
            m.d.comb += [turns.wants.eq(wants),
                         choice.eq(Mux(holder.any(), holder & valid, turns.choice)),
                         turns.turn.eq(~holder.any()),
                         self.offer[channel].eq(choice.any())]
            choices.append(choice)
            holders.append(holder)

        able = Signal(self._channels)
        last = Signal()
        m.d.comb += [able.eq(self.offer & self.room), self.send.eq(able.any())]
        if self._channels == CHANNELS:
            m.d.comb += self.channel.eq(Mux(able.all(), ~last, able[1]))
        with m.If(self.send):
            m.d.sync += last.eq(self.channel)
        for channel, (choice, holder) in enumerate(zip(choices, holders, strict=True)):
            with m.If(choice.any()):
                m.d.sync += holder.eq(choice)
            with m.If(self.channel == channel):
                for number, source in enumerate(self.source):
                    m.d.comb += source.ready.eq(self.send & choice[number])
                    with m.If(choice[number]):
                        m.d.comb += self.flit.eq(source.payload)
                with m.If(self.send & self.flit.tail):
                    m.d.sync += holder.eq(0)
        return m


class _Source:
    """A stream of packets, the channel on which they arrive, and the muxes that may take them.

    The channel is None if the packets come from an injector.
    """

    def __init__(self, m: Module, name: str, flits: stream.Interface, channel: int | None) -> None:
        self.flits = flits
        self.channel = channel
        self._m = m
        self._name = name
        self._ready: list[Value] = []

    def offer(self, number: int, mux: wiring.Component, goes: Value, onto: Value) -> None:
        """Connect the stream to input ``number`` of ``mux``, a `PacketMux`.

        ``goes`` tells whether the stream's flit is for this mux, and ``onto`` is the channel on
        which it is to leave.
        """
        sink = mux.source[number]
        self._m.d.comb += [sink.valid.eq(self.flits.valid & goes),
                           sink.payload.eq(self.flits.payload), mux.onto[number].eq(onto)]
        self._ready.append(goes & sink.ready)

    def close(self) -> None:
        """Connect the stream's ``ready``, after all calls of `offer`."""
        self._m.d.comb += self.flits.ready.eq(reduce(or_, self._ready))


class Router(wiring.Component):
    """Passes packets on: along X until no hop remains, then along Y, then out to this chip.

    Packets go straight on, turn once from X to Y, or end. Along each dimension, a packet begins on
    channel 0; at the link that crosses the dateline of its ring, it changes to channel 1. So
    packets never wait for each other in a circle: there is no deadlock. A flit can leave in the
    cycle in which it arrives.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    received, from_channel, from_flit : In(1).array(4), In(1).array(4), In(flit_layout).array(4)
        From the `hdl.link.receiver.LinkReceiver` of each `Direction`.
    freed : Out(CHANNELS).array(4)
        A flit that arrived on this channel of this port has left its buffer.
    room, send, to_channel, to_flit : In(CHANNELS).array(4), Out(1).array(4), Out(1).array(4), \
Out(flit_layout).array(4)
        To the `LinkSender` of each direction.
    offer : Out(CHANNELS).array(4)
        For the link in each direction: a flit waits for room on this channel, or leaves.
    down : In(4)
        The link in this direction was given up: packets that it has cut are ended by a tail whose
        payload is all ones.
    wraps : In(4)
        The link in this direction is the dateline of its ring: it joins the last chip and the
        first.
    inject : In(stream of flit_layout).array(4)
        Packets of this chip. Port ``d`` takes packets whose first hop has direction ``d``.
    eject : Out(stream of flit_layout).array(4)
        Packets for this chip, by the port at which they arrived; their hops are zero. A flit that
        is not accepted in the cycle of its arrival is offered again two cycles later.

    Raises
    ------
    TypeError
        If ``config`` is not a `LinkConfig`.
    """

    def __init__(self, config: LinkConfig) -> None:
        instance("config", config, LinkConfig)
        self._config = config
        flit, ports = flit_layout(config), len(Direction)
        super().__init__({
            "received": In(1).array(ports), "from_channel": In(1).array(ports),
            "from_flit": In(flit).array(ports), "freed": Out(CHANNELS).array(ports),
            "room": In(CHANNELS).array(ports), "send": Out(1).array(ports),
            "to_channel": Out(1).array(ports), "to_flit": Out(flit).array(ports),
            "offer": Out(CHANNELS).array(ports),
            "wraps": In(ports), "down": In(ports),
            "inject": In(stream.Signature(flit)).array(ports),
            "eject": Out(stream.Signature(flit)).array(ports)})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `Router` with these parameters."""
        return f"router_{config.name}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        arrived = {port: self._buffers(m, platform, port) for port in Direction}
        injected = {port: _Source(m, f"inject_{port}", self.inject[port], None)
                    for port in Direction}
        for port in Direction:
            self._leave(m, platform, port, arrived, injected)
            self._eject(m, platform, port, arrived[port])
        for source in (*injected.values(), *(one for both in arrived.values() for one in both)):
            source.close()
        return m

    def _buffers(self, m: Module, platform: object, port: Direction) -> list[_Source]:
        """Instantiate a buffer for each channel of a port; return the buffers' outputs."""
        config = self._config
        found = []
        for channel in range(CHANNELS):
            buffer = instantiate(m, platform, f"buffer_{port}_{channel}",
                                 ChannelBuffer.module(config),
                                 lambda: ChannelBuffer(config))
            m.d.comb += [
                buffer.arrives.eq(self.received[port] & (self.from_channel[port] == channel)),
                buffer.flit.eq(self.from_flit[port]), buffer.down.eq(self.down[port]),
                self.freed[port][channel].eq(buffer.output.valid & buffer.output.ready)]
            found.append(_Source(m, f"{port}_{channel}", buffer.output, channel))
        return found

    def _leave(self, m: Module, platform: object, port: Direction,
               arrived: dict[Direction, list[_Source]], injected: dict[Direction, _Source]) -> None:
        """Select the flits that leave by the link in direction ``port``.

        They come from ``arrived``, the buffers of each port, and from ``injected``, the injectors.
        """
        inputs = [(source, self._goes(source, port, Direction(side)))
                  for side in Direction for source in arrived[side]
                  if side == port.opposite or (side.is_x and not port.is_x)]
        inputs.append((injected[port], Value.cast(1)))
        config, count = self._config, len(inputs)
        mux = instantiate(m, platform, f"leave_{port}", PacketMux.module(config, count, CHANNELS),
                          lambda: PacketMux(config, count, CHANNELS))
        straight = arrived[port.opposite]
        for number, (source, goes) in enumerate(inputs):
            # A packet that has crossed the dateline of this dimension stays on channel 1.
            crossed = source.channel if source in straight else 0
            source.offer(number, mux, goes, self.wraps[port] | crossed)
        hops = {name: getattr(mux.flit, name) for name in ("dx", "dy")}
        axis = "dx" if port.is_x else "dy"
        hops[axis] = hops[axis] - port.step
        flit = data.View(flit_layout(config), self.to_flit[port])
        m.d.comb += [
            mux.room.eq(self.room[port]), self.offer[port].eq(mux.offer),
            self.send[port].eq(mux.send),
            self.to_channel[port].eq(mux.channel),
            flit.tail.eq(mux.flit.tail), flit.payload.eq(mux.flit.payload),
            flit.dx.eq(hops["dx"]), flit.dy.eq(hops["dy"])]

    @staticmethod
    def _goes(source: _Source, port: Direction, side: Direction) -> Value:
        """Return a bit that is set if ``source``'s flit, from ``side``, leaves by ``port``."""
        flit = source.flits.payload
        if port == side.opposite:
            return (flit.dx if side.is_x else flit.dy) != 0
        return (flit.dx == 0) & ((flit.dy > 0) if port.step > 0 else (flit.dy < 0))

    def _eject(self, m: Module, platform: object, port: Direction, sources: list[_Source]) -> None:
        """Select the flits for this chip among those that arrived at ``port``.

        ``sources`` are the buffers of the port.
        """
        config = self._config
        mux = instantiate(m, platform, f"eject_{port}", PacketMux.module(config, len(sources), 1),
                          lambda: PacketMux(config, len(sources), 1))
        for number, source in enumerate(sources):
            flit = source.flits.payload
            source.offer(number, mux, (flit.dx == 0) & (flit.dy == 0), Value.cast(0))
        m.d.comb += [mux.room.eq(self.eject[port].ready), self.eject[port].valid.eq(mux.offer),
                     self.eject[port].payload.eq(mux.flit)]
