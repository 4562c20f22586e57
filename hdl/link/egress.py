"""Egress: remote transfers and signals of a core, queued by the direction of their first hop."""

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..axi.fifo import Fifo
from ..chip.arbiter import RoundRobin
from ..config import Config
from ..core.interface import SEMAPHORE_BITS
from ..dma.interface import QUEUE_DEPTH, remote_chip, transfer
from ..dma.remote import directions
from ..dma.walk import AddressWalk
from ..tiles import instantiate
from ..vpu.interface import HOST_ADDRESS_BITS, HostSpace, host_read_request, row_bits
from .format import Direction, flit_layout
from .packet import PacketSource, buffer_rows, departure, link_config

__all__ = ["Departures", "Egress", "remote_addition"]

_READS = 4
"""Maximum number of vectors that are requested and have not arrived; a power of two."""


def remote_addition() -> data.StructLayout:
    """Payload of a remote signal, which adds ``amount`` to semaphore number ``semaphore``.

    ``to``, a `remote_chip`, names the chip and the core that have the semaphore.
    """
    return data.StructLayout({"to": remote_chip(), "semaphore": SEMAPHORE_BITS, "amount": 32})


def _entry(config: Config) -> data.StructLayout:
    """Entry of a queue: a transfer or, if ``alone``, a signal that adds ``amount``.

    For a signal, only ``to`` and ``remote_semaphore`` of ``transfer`` are defined.
    """
    return data.StructLayout({"transfer": transfer(config), "alone": 1, "amount": 32})


def _vector_read() -> data.StructLayout:
    """Layout of a request for the vector at ``address`` of a transfer's source.

    ``last``: it is the transfer's last vector. The other members are fields of the transfer; they
    say what to signal when the last vector has been read.
    """
    return data.StructLayout({
        "address": HOST_ADDRESS_BITS, "last": 1, "semaphore": SEMAPHORE_BITS, "signal": 1,
        "signal_other": 1, "from_host": 1})


class Departures(wiring.Component):
    """The remote transfers of a core that leave in one direction, and their packets.

    Packets leave in the order of the entries. Rows go to a buffer as they arrive. A vector is
    requested only if this buffer has room for it, so its rows never wait.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    entry : In(stream of _entry)
        Transfers and signals; ``ready`` does not depend on ``valid``.
    read : Out(stream of _vector_read)
        Vectors to read. An offer is withdrawn if ``stop`` is set.
    row : In(stream of row_bits)
        The rows of the vectors that were accepted at ``read``; always ``ready``.
    flit : Out(stream of flit_layout)
        The packets.
    stop : In(1)
        Drops all entries. Vectors that were accepted at ``read`` leave nevertheless.
    busy, full : Out(1), Out(1)
        ``busy``: a vector or signal has yet to become a packet. ``full``: a packet has not left.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__({
            "entry": In(stream.Signature(_entry(config))),
            "read": Out(stream.Signature(_vector_read())),
            "row": In(stream.Signature(row_bits(config))),
            "flit": Out(stream.Signature(flit_layout(link_config(config)))),
            "stop": In(1), "busy": Out(1), "full": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entry = _entry(self._config)
        queue = instantiate(m, platform, "queue", Fifo.module(entry.size, QUEUE_DEPTH),
                            lambda: Fifo(entry.size, QUEUE_DEPTH), reset=self.stop)
        waiting = Signal(range(QUEUE_DEPTH + 3))
        active, finishes, take = Signal(), Signal(), Signal()
        following = data.View(entry, queue.output.payload)
        current = Signal(entry, reset_less=True)
        m.d.comb += [
            queue.input.valid.eq(self.entry.valid), queue.input.payload.eq(self.entry.payload),
            self.entry.ready.eq(queue.input.ready & ~self.stop),
            take.eq(queue.output.valid & ~self.stop & (~active | finishes)),
            queue.output.ready.eq(take),
            self.busy.eq(active | (waiting != 0))]
        with m.If(self.stop):
            m.d.sync += [active.eq(0), waiting.eq(0)]
        with m.Else():
            m.d.sync += waiting.eq(waiting + (self.entry.valid & self.entry.ready) - take)
            with m.If(take):
                m.d.sync += [active.eq(1), current.eq(following)]
            with m.Elif(finishes):
                m.d.sync += active.eq(0)
        walks = {}
        for side in ("source", "destination"):
            walks[side] = walk = instantiate(m, platform, side, "dma_address_walk",
                                             lambda: AddressWalk(self._config))
            m.d.comb += [walk.load.eq(take), walk.side.eq(following.transfer[side]),
                         walk.unit.eq(1)]
        self._send(m, platform, active & ~self.stop, current, walks, finishes)
        return m

    def _send(self, m: Module, platform: object, active: object, current: data.View,
              walks: dict[str, AddressWalk], finishes: Signal) -> None:
        """Make packets of the entry ``current`` while ``active`` is set.

        Set ``finishes`` in the cycle of the entry's last packet. ``walks`` holds one `AddressWalk`
        for its ``source`` and one for its ``destination``.
        """
        config = self._config
        rows = buffer_rows(config)
        capacity = rows // config.sublanes
        depth = max(2, 1 << ceil_log2(capacity))
        kind = departure(config)
        packets = instantiate(m, platform, "packets", Fifo.module(kind.size, depth),
                              lambda: Fifo(kind.size, depth))
        buffer = instantiate(m, platform, "rows", Fifo.module(row_bits(config), rows),
                             lambda: Fifo(row_bits(config), rows))
        source = instantiate(m, platform, "source_of_flits", "packet_source",
                             lambda: PacketSource(config))
        used = Signal(range(capacity + 1))  # vectors that are requested or in the buffer
        left = Signal(range(depth + 3))  # packets
        granted, alone, enters, leaves = Signal(), Signal(), Signal(), Signal()
        goes = current.transfer
        packet = data.View(kind, packets.input.payload)
        header = packet.header
        m.d.comb += [
            self.read.valid.eq(active & ~current.alone & (used != capacity) & packets.input.ready),
            self.read.payload.address.eq(walks["source"].address),
            self.read.payload.last.eq(walks["source"].last),
            *(self.read.payload[name].eq(goes[name])
              for name in ("semaphore", "signal", "signal_other", "from_host")),
            granted.eq(self.read.valid & self.read.ready),
            alone.eq(active & current.alone & packets.input.ready),
            finishes.eq((granted & walks["source"].last) | alone),
            *(walk.step.eq(granted) for walk in walks.values()),
            enters.eq(granted | alone),
            packets.input.valid.eq(enters),
            *(packet[name].eq(goes.to[name]) for name in ("dx", "dy")),
            *(header[name].eq(goes.to[name]) for name in ("x", "y", "core")),
            header.vector.eq(~current.alone), header.address.eq(walks["destination"].address),
            header.signal.eq(current.alone | (goes.signal_remote & walks["source"].last)),
            header.semaphore.eq(goes.remote_semaphore), packet.amount.eq(current.amount),
            leaves.eq(self.flit.valid & self.flit.ready & self.flit.payload.tail),
            self.full.eq(left != 0)]
        m.d.sync += [used.eq(used + granted - (leaves & source.packet.payload.header.vector)),
                     left.eq(left + enters - leaves)]
        wiring.connect(m, wiring.flipped(self.row), buffer.input)
        wiring.connect(m, buffer.output, source.row)
        m.d.comb += [source.packet.valid.eq(packets.output.valid),
                     source.packet.payload.eq(packets.output.payload),
                     packets.output.ready.eq(source.packet.ready)]
        wiring.connect(m, source.flit, wiring.flipped(self.flit))


class Egress(wiring.Component):
    """Sends vectors of a core's vector memory, and signals, to cores of other chips.

    Each direction has a queue of `QUEUE_DEPTH` transfers. The directions share one reader of vector
    memory, which reads a vector for each of them in turn. A transfer has completed when its last
    vector is in the buffer of its direction.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    push, transfer, room : In(1), In(transfer), Out(4)
        ``push`` starts ``transfer``, whose destination is REMOTE_VMEM. It may be set only if the
        direction of the transfer's first hop has ``room``.
    addition : In(stream of remote_addition)
        Signals of the program, which leave after the transfers that started before them. ``ready``
        does not depend on ``valid`` or ``push``.
    read, rows : Out(stream of host_read_request), In(stream of row_bits)
        To the vector memory of this core.
    signal, other_signal : Out(stream of 4)
        Signals of completion: numbers of semaphores of this core, and of the other core, to which 1
        is added.
    host_done : Out(1)
        For one cycle: a transfer of the host has completed.
    flit : Out(stream of flit_layout).array(4)
        Packets, by the `Direction` of their first hop.
    stop : In(1)
        Drops all transfers and signals in the queues. Vectors that were requested from vector
        memory, and signals that are packets already, leave nevertheless, so no packet is cut.
    busy : Out(1)
        A transfer has not completed, a signal has yet to become a packet, or vector memory has not
        delivered all rows.
    full : Out(1)
        A packet has not left.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        ports = len(Direction)
        index = stream.Signature(SEMAPHORE_BITS)
        super().__init__({
            "push": In(1), "transfer": In(transfer(config)), "room": Out(ports),
            "addition": In(stream.Signature(remote_addition())),
            "read": Out(stream.Signature(host_read_request())),
            "rows": In(stream.Signature(row_bits(config))),
            "signal": Out(index), "other_signal": Out(index), "host_done": Out(1),
            "flit": Out(stream.Signature(flit_layout(link_config(config)))).array(ports),
            "stop": In(1), "busy": Out(1), "full": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sides = [instantiate(m, platform, f"departures_{port}", "departures",
                             lambda: Departures(self._config)) for port in Direction]
        for side, flit in zip(sides, self.flit, strict=True):
            m.d.comb += side.stop.eq(self.stop)
            wiring.connect(m, side.flit, wiring.flipped(flit))
        self._queue_up(m, sides)
        reading = self._read(m, platform, sides)
        m.d.comb += [
            self.busy.eq(Cat(side.busy for side in sides).any() | reading
                         | self.signal.valid | self.other_signal.valid),
            self.full.eq(Cat(side.full for side in sides).any())]
        return m

    def _queue_up(self, m: Module, sides: list[Departures]) -> None:
        """Pass transfers and signals to the queue of their direction, one of ``sides``."""
        offered = self.addition.payload
        entry = Signal(_entry(self._config))
        # The host's descriptor may start at any time; a program's never in the cycle of its signal.
        free = ~self.transfer.from_host
        signals = self.addition.valid & self.addition.ready
        m.d.comb += entry.transfer.eq(self.transfer)
        with m.If(~self.push):
            m.d.comb += [entry.transfer.to.eq(offered.to), entry.alone.eq(1),
                         entry.transfer.remote_semaphore.eq(offered.semaphore),
                         entry.amount.eq(offered.amount)]
        ready = 0
        for number, side in enumerate(sides):
            here = directions(self.transfer.to)[number]
            there = directions(offered.to)[number]
            ready |= there & side.entry.ready
            m.d.comb += [self.room[number].eq(side.entry.ready), side.entry.payload.eq(entry),
                         side.entry.valid.eq((self.push & here) | (signals & there))]
        m.d.comb += self.addition.ready.eq(ready & free)

    def _read(self, m: Module, platform: object, sides: list[Departures]) -> Signal:
        """Read vectors for ``sides``, the queues of the directions: one vector for each in turn.

        Return a signal that is set while rows are outstanding.
        """
        turns = instantiate(m, platform, "turns", RoundRobin.module(len(sides)),
                            lambda: RoundRobin(len(sides)))
        owner = data.StructLayout({"side": len(sides), "read": _vector_read()})
        owners = Array(Signal(owner, name=f"owner_{number}", reset_less=True)
                       for number in range(_READS))
        asked, arrived = Signal(range(2 * _READS)), Signal(range(2 * _READS))
        outstanding = Signal.like(asked)
        chosen = Signal(owner)
        head = Signal(owner)
        free, ends = Signal(), Signal()
        m.d.comb += [
            turns.wants.eq(Cat(side.read.valid for side in sides)),
            outstanding.eq(asked - arrived),
            free.eq((~self.read.valid | self.read.ready) & (outstanding != _READS)),
            turns.turn.eq(free & turns.choice.any()),
            chosen.side.eq(turns.choice),
            self.read.payload.space.eq(HostSpace.VMEM),
            head.eq(owners[arrived[:-1]])]
        for number, side in enumerate(sides):
            m.d.comb += side.read.ready.eq(free & turns.choice[number])
            with m.If(turns.choice[number]):
                m.d.comb += chosen.read.eq(side.read.payload)
        with m.If(turns.turn):
            m.d.sync += [owners[asked[:-1]].eq(chosen), asked.eq(asked + 1),
                         self.read.valid.eq(1), self.read.payload.address.eq(chosen.read.address)]
        with m.Elif(self.read.ready):
            m.d.sync += self.read.valid.eq(0)

        sublane = Signal(range(max(self._config.sublanes, 2)))
        moves = Signal()
        settled = Signal()
        m.d.comb += [
            settled.eq((~self.signal.valid | self.signal.ready)
                       & (~self.other_signal.valid | self.other_signal.ready)),
            self.rows.ready.eq(settled), moves.eq(self.rows.valid & settled),
            ends.eq(moves & (sublane == self._config.sublanes - 1))]
        for number, side in enumerate(sides):
            m.d.comb += [side.row.valid.eq(moves & head.side[number]),
                         side.row.payload.eq(self.rows.payload)]
        with m.If(moves):
            m.d.sync += sublane.eq(Mux(ends, 0, sublane + 1))
        m.d.sync += self.host_done.eq(ends & head.read.last & head.read.from_host)
        for port, wanted in ((self.signal, head.read.signal),
                             (self.other_signal, head.read.signal_other)):
            with m.If(ends):
                m.d.sync += [arrived.eq(arrived + 1), port.payload.eq(head.read.semaphore),
                             port.valid.eq(head.read.last & wanted)]
            with m.Elif(port.ready):
                m.d.sync += port.valid.eq(0)
        reading = Signal()
        m.d.comb += reading.eq(outstanding != 0)
        return reading
