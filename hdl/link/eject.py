"""Ejection: packets from the torus are checked, and written to the core that they are for."""

from typing import Any

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..axi.fifo import Fifo
from ..chip.arbiter import RoundRobin
from ..config import Config
from ..core.interface import SEMAPHORE_BITS, semaphore_addition
from ..tiles import instantiate
from ..vpu.interface import HOST_ADDRESS_BITS, host_write_row, row_bits
from .format import COORDINATE_BITS, Direction, flit_layout
from .packet import buffer_rows, flits_per_row, link_config, payload_layout

__all__ = ["ArrivalPort", "Arrivals", "Ejection", "PacketSink", "arrival"]


def arrival() -> data.StructLayout:
    """A packet that has arrived as a whole, for a core of this chip.

    ``vector``: the packet has a vector, to write to ``address``. ``signal``: ``amount`` is to be
    added to ``semaphore``, after the vector is written.
    """
    return data.StructLayout({"core": 1, "vector": 1, "address": HOST_ADDRESS_BITS, "signal": 1,
                              "semaphore": SEMAPHORE_BITS, "amount": 32})


def _stored(config: Config) -> data.StructLayout:
    """Entry of a sink's queue: an `arrival`, or the rows of a wrong packet.

    If ``stale_rows`` is not 0, it is the number of rows to discard, and ``packet`` does not matter.
    """
    return data.StructLayout({"packet": arrival(), "stale_rows": range(config.sublanes + 1)})


class PacketSink(wiring.Component):
    """Collects the flits of a port into whole packets, and drops packets that are wrong.

    It always drains: the buffer has room for two vectors, and a packet is offered to its core as
    soon as it is complete. The core writes the packet without waiting for anything but its vector
    memory (`Arrivals`). So a packet that has begun never waits for room that only its own tail
    would free.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    flit : In(stream of flit_layout)
        The flits of a router's ejector; an offer may be withdrawn.
    x, y : In(COORDINATE_BITS)
        Coordinates of this chip.
    packet : Out(stream of arrival)
        Packets that have arrived as a whole.
    row : Out(stream of row_bits)
        The rows of the vectors, in the order of the packets.
    wrong : Out(1)
        For one cycle: a packet is for another chip, for a core or an address that does not exist,
        of a wrong length, or cut (`hdl.link.router.ChannelBuffer`). This packet is dropped.
    full : Out(1)
        A packet has arrived as a whole, and has not left.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or has no links.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__({
            "flit": In(stream.Signature(flit_layout(link_config(config)))),
            "x": In(COORDINATE_BITS), "y": In(COORDINATE_BITS),
            "packet": Out(stream.Signature(arrival())),
            "row": Out(stream.Signature(row_bits(config))), "wrong": Out(1), "full": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        rows, kind = buffer_rows(config), _stored(config)
        depth = max(2, 1 << ceil_log2(rows // config.sublanes))
        buffer = instantiate(m, platform, "rows", Fifo.module(row_bits(config), rows),
                             lambda: Fifo(row_bits(config), rows))
        packets = instantiate(m, platform, "packets", Fifo.module(kind.size, depth),
                              lambda: Fifo(kind.size, depth))
        parts = flits_per_row(config)
        total = parts * config.sublanes
        number = Signal(range(max(total, 2)))  # of the flit in its packet
        moves, good, dropped = Signal(), Signal(), Signal()
        left = Signal(range(depth + 3))
        payload = data.View(payload_layout(config), self.flit.payload.payload)
        header, tail = payload.header, self.flit.payload.tail
        length = Signal()  # the packet ends where it should
        enters, leaves, stale = Signal(), Signal(), Signal()
        m.d.comb += [
            self.flit.ready.eq(buffer.input.ready & packets.input.ready),
            moves.eq(self.flit.valid & self.flit.ready),
            # The tail of ones that ends a cut packet has no zeros, wherever this chip is.
            good.eq((payload.zeros == 0) & (header.x == self.x) & (header.y == self.y)
                    & (header.core < config.cores)
                    & (~header.vector | (header.address < config.vmem_vectors))
                    & length & ~dropped),
            length.eq(Mux(header.vector, tail == (number == total - 1), tail & (number == 0))),
            self.wrong.eq(moves & ~dropped & ~good),
            # The rows of a packet that turns out to be wrong are in the buffer already.
            stale.eq(self.wrong & (number >= parts)),
            enters.eq((moves & tail & good) | stale),
            packets.input.valid.eq(enters),
            self.full.eq(left != 0)]
        entry = data.View(kind, packets.input.payload)
        m.d.comb += [*(entry.packet[name].eq(header[name])
                       for name in ("core", "vector", "address", "signal", "semaphore")),
                     entry.packet.amount.eq(Mux(header.vector, 1, payload.data[:32])),
                     entry.stale_rows.eq(Mux(stale, number // parts, 0))]
        m.d.sync += left.eq(left + enters - leaves)
        with m.If(moves):
            m.d.sync += [dropped.eq(~tail & ~good), number.eq(Mux(tail, 0, number + 1))]
        self._gather(m, buffer, payload.data, number, moves & good & header.vector)
        m.d.comb += leaves.eq(packets.output.valid & packets.output.ready)
        self._offer(m, buffer, packets)
        return m

    def _offer(self, m: Module, buffer: Fifo, packets: Fifo) -> None:
        """Offer the packets and their rows, and discard the rows of wrong packets.

        ``buffer`` has the rows and ``packets`` the packets, of layout `_stored`.
        """
        entry = data.View(_stored(self._config), packets.output.payload)
        discarded = Signal(range(self._config.sublanes + 1))
        discards, last = Signal(), Signal()
        m.d.comb += [
            discards.eq(packets.output.valid & (entry.stale_rows != 0)),
            last.eq(buffer.output.valid & (discarded == entry.stale_rows - 1)),
            self.packet.valid.eq(packets.output.valid & ~discards),
            self.packet.payload.eq(entry.packet),
            self.row.valid.eq(buffer.output.valid & ~discards),
            self.row.payload.eq(buffer.output.payload),
            buffer.output.ready.eq(Mux(discards, 1, self.row.ready)),
            packets.output.ready.eq(Mux(discards, last, self.packet.ready))]
        with m.If(discards & buffer.output.valid):
            m.d.sync += discarded.eq(Mux(last, 0, discarded + 1))

    def _gather(self, m: Module, buffer: Fifo, part: Value, number: Signal,
                moves: Value) -> None:
        """Join the parts of each row, and put the rows into ``buffer``.

        ``part``, the data of a flit, arrives in each cycle in which ``moves`` is set. ``number`` is
        the number of the flit in its vector.
        """
        parts = flits_per_row(self._config)
        m.d.comb += buffer.input.valid.eq(moves & ((number & (parts - 1)) == parts - 1))
        if parts == 1:
            m.d.comb += buffer.input.payload.eq(part)
            return
        earlier = Signal(row_bits(self._config) - len(part), reset_less=True)
        m.d.comb += buffer.input.payload.eq(Cat(earlier, part))
        with m.If(moves):
            m.d.sync += earlier.eq(Cat(earlier, part)[len(part):])


class ArrivalPort(wiring.Signature):
    """Packets for a core, from the `Ejection` of the chip to the core's `Arrivals`.

    For each port of the chip, ``packet_{port}`` is a stream of `arrival`, and ``row_{port}``
    carries the rows of these packets' vectors.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, config: Config) -> None:
        super().__init__({name: member for port in Direction for name, member in (
            (f"packet_{port}", Out(stream.Signature(arrival()))),
            (f"row_{port}", Out(stream.Signature(row_bits(config)))))})

    @staticmethod
    def streams(port: wiring.PureInterface) -> list[tuple[Any, Any]]:
        """Return two streams for each port of the chip: packets and rows."""
        return [(getattr(port, f"packet_{number}"), getattr(port, f"row_{number}"))
                for number in Direction]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrivalPort) and self.members == other.members

    def __hash__(self) -> int:
        return hash(ArrivalPort)


class Ejection(wiring.Component):
    """Collects the packets of all ports of a chip, and offers each to its core.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    flit : In(stream of flit_layout).array(4)
        The flits of the router's ejectors.
    x, y, wrong, full
        As in `PacketSink`. ``wrong`` and ``full`` are set if those of any port are.
    core : Out(ArrivalPort).array(cores)
        Packets, by the core that they are for.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__({
            "flit": In(stream.Signature(flit_layout(link_config(config)))).array(len(Direction)),
            "x": In(COORDINATE_BITS), "y": In(COORDINATE_BITS), "wrong": Out(1), "full": Out(1),
            "core": Out(ArrivalPort(config)).array(config.cores)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sinks = [instantiate(m, platform, f"sink_{port}", "packet_sink",
                             lambda: PacketSink(self._config)) for port in Direction]
        for port, sink in enumerate(sinks):
            m.d.comb += [sink.x.eq(self.x), sink.y.eq(self.y)]
            wiring.connect(m, wiring.flipped(self.flit[port]), sink.flit)
            for number, core in enumerate(self.core):
                packet, row = ArrivalPort.streams(core)[port]
                here = Signal(name=f"here_{port}_{number}")
                m.d.comb += [
                    here.eq(sink.packet.payload.core == number),
                    packet.valid.eq(sink.packet.valid & here),
                    packet.payload.eq(sink.packet.payload),
                    row.valid.eq(sink.row.valid & packet.valid), row.payload.eq(sink.row.payload)]
                with m.If(here):
                    m.d.comb += [sink.packet.ready.eq(packet.ready), sink.row.ready.eq(row.ready)]
        m.d.comb += [self.wrong.eq(Cat(sink.wrong for sink in sinks).any()),
                     self.full.eq(Cat(sink.full for sink in sinks).any())]
        return m


class Arrivals(wiring.Component):
    """Writes packets for a core to its vector memory, and then adds to its semaphores.

    It waits for nothing but vector memory, which gives each client its turn, and the semaphores,
    which accept an addition from each source in turn.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    source : In(ArrivalPort)
        Packets for this core.
    write : Out(stream of host_write_row)
        To vector memory.
    vector_busy : In(1)
        All rows of a vector have been accepted, but the vector will not be written by the end of
        this cycle.
    signal : Out(stream of semaphore_addition)
        Additions to the core's semaphores.
    busy : Out(1)
        An addition has not been accepted yet.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__({
            "source": In(ArrivalPort(config)),
            "write": Out(stream.Signature(host_write_row(config))), "vector_busy": In(1),
            "signal": Out(stream.Signature(semaphore_addition())), "busy": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        ports = len(Direction)
        source = ArrivalPort.streams(self.source)
        turns = instantiate(m, platform, "turns", RoundRobin.module(ports),
                            lambda: RoundRobin(ports))
        kept = Signal(ports)
        due = Signal()  # an addition waits until the vector before it is written
        sublane = Signal(range(max(self._config.sublanes, 2)))
        chosen = Signal(arrival())
        moves, ends = Signal(), Signal()
        m.d.comb += [
            turns.wants.eq(Mux(kept.any(), kept, Mux(
                due, 0, Cat(packet.valid for packet, _ in source)))),
            turns.turn.eq(ends),
            moves.eq(self.write.valid & self.write.ready),
            ends.eq(turns.choice.any() & Mux(
                chosen.vector, moves & (sublane == self._config.sublanes - 1), 1)),
            self.write.payload.address.eq(chosen.address),
            self.busy.eq(due | self.signal.valid)]
        for number, (packet, row) in enumerate(source):
            choice = turns.choice[number]
            with m.If(choice):
                m.d.comb += [chosen.eq(packet.payload),
                             self.write.valid.eq(packet.payload.vector & row.valid),
                             self.write.payload.data.eq(row.payload)]
            m.d.comb += [packet.ready.eq(choice & ends), row.ready.eq(choice & moves)]
        m.d.sync += kept.eq(Mux(ends, 0, turns.choice))
        with m.If(moves):
            m.d.sync += sublane.eq(Mux(ends, 0, sublane + 1))

        waiting = Signal(semaphore_addition(), reset_less=True)
        leaves = Signal()
        m.d.comb += leaves.eq(due & ~self.vector_busy & (~self.signal.valid | self.signal.ready))
        with m.If(ends & chosen.signal):
            m.d.sync += [due.eq(1), waiting.index.eq(chosen.semaphore),
                         waiting.amount.eq(chosen.amount)]
        with m.Elif(leaves):
            m.d.sync += due.eq(0)
        with m.If(leaves):
            m.d.sync += [self.signal.valid.eq(1), self.signal.payload.eq(waiting)]
        with m.Elif(self.signal.ready):
            m.d.sync += self.signal.valid.eq(0)
        return m
