"""A node of the chip: a core with its DMA engine, its memory port, and arbiters."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..axi.interface import Axi4, channel_bits
from ..axi.master import HbmPort
from ..config import Config
from ..core.core import Core
from ..core.counters import COUNTERS
from ..core.interface import SEMAPHORE_BITS, semaphore_addition
from ..dma.engine import DmaEngine
from ..dma.interface import check_config
from ..dma.remote import PLACE_PORTS, RemoteCheck
from ..isa import Fault
from ..link.egress import Egress
from ..link.eject import ArrivalPort, Arrivals
from ..link.format import Direction, flit_layout
from ..link.packet import link_config
from ..tiles import instantiate
from ..vpu.interface import host_read_request, host_write_row, row_bits
from .arbiter import RequestArbiter, SignalArbiter, VectorPort
from .control import CoreSide

__all__ = ["RESET_CYCLES", "CoreNode", "CoreReset", "NodeLink"]

RESET_CYCLES = 4
"""Number of cycles for which a core is reset."""
_SETTLE_CYCLES = 4
"""Cycles from the start of an abort until the engine's ``busy`` is valid."""


class NodeLink(wiring.Signature):
    """A node's accesses to the core of the other node: `Out` at the node that requests them.

    ``read``, ``rows``, ``write``, ``busy``: the engine's accesses to vector memory, like
    ``other_*`` of `hdl.dma.engine.DmaEngine`. ``transfer_signal``, a stream of semaphore numbers:
    the engine adds 1 to each of these semaphores. ``program_signal``, a stream of
    `semaphore_addition`: additions by the program. ``departure_signal``, present if the chip has
    links: like ``transfer_signal``, but from the egress (`hdl.link.egress`), which executes remote
    transfers.

    Parameters
    ----------
    config : Config
        Parameters.
    """

    def __init__(self, config: Config) -> None:
        super().__init__({
            "read": Out(stream.Signature(host_read_request())),
            "rows": In(stream.Signature(row_bits(config))),
            "write": Out(stream.Signature(host_write_row(config))), "busy": In(1),
            "transfer_signal": Out(stream.Signature(SEMAPHORE_BITS)),
            "program_signal": Out(stream.Signature(semaphore_addition())),
            **({"departure_signal": Out(stream.Signature(SEMAPHORE_BITS))}
               if config.link_bytes else {}),
        })

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeLink) and self.members == other.members

    def __hash__(self) -> int:
        return hash(NodeLink)


class CoreReset(wiring.Component):
    """Resets a core when no access is in progress that the reset would interrupt.

    Attributes
    ----------
    request : In(1)
        Requests a reset. While ``reset`` is set, the whole sequence begins again; earlier in
        ``resetting``, a request has no effect.
    at_rest : In(1)
        DMA engine and memory port have no access in progress. Ignored in the first
        `_SETTLE_CYCLES` cycles of ``resetting``.
    resetting : Out(1)
        Set from the cycle after ``request`` until the core can be used again. Meanwhile no new
        access may begin.
    reset : Out(1)
        Resets the core and its DMA engine, in the last `RESET_CYCLES` cycles of ``resetting``.
    """

    def __init__(self) -> None:
        super().__init__({"request": In(1), "at_rest": In(1), "resetting": Out(1),
                          "reset": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        count = Signal(range(max(RESET_CYCLES, _SETTLE_CYCLES)))
        with m.FSM(name="phase") as fsm:
            m.d.comb += self.resetting.eq(~fsm.ongoing("WORK"))
            with m.State("WORK"), m.If(self.request):
                m.next = "SETTLE"
            with m.State("SETTLE"):
                m.d.sync += count.eq(count + 1)
                with m.If(count == _SETTLE_CYCLES - 1):
                    m.d.sync += count.eq(0)
                    m.next = "DRAIN"
            with m.State("DRAIN"), m.If(self.at_rest):
                m.next = "RESET"
            with m.State("RESET"):
                m.d.comb += self.reset.eq(1)
                m.d.sync += count.eq(count + 1)
                with m.If(count == RESET_CYCLES - 1):
                    m.d.sync += count.eq(0)
                    m.next = "WORK"
                with m.If(self.request):
                    m.d.sync += count.eq(0)
                    m.next = "SETTLE"
        return m


class CoreNode(wiring.Component):
    """A core, its DMA engine and its AXI4 masters; the host and the other core share its ports.

    When the host requests a reset, the program stops, the engine abandons its transfers, and memory
    completes all outstanding bursts. Then core and engine are reset; the AXI4 masters are not. The
    other core continues. Data that the other core's engine reads from this core during the reset
    are undefined, and writes of that engine to this core may be lost.

    Parameters
    ----------
    config : Config
        Parameters; ``array`` must be a power of two, and ``hbm_channels`` must divide a row into
        powers of two from 4 to 128 bytes.
    link_clock : bool
        Whether the egress and the arrivals have a clock of their own; requires a chip with links.

    Attributes
    ----------
    control : In(CoreSide)
        Control of the core by the host.
    axi : Out(Axi4).array(hbm_channels)
        AXI4 masters to the memory channels.
    peer, guest : Out(NodeLink), In(NodeLink)
        Accesses of this node to the other core, and of the other node to this core. Present only if
        the chip has two cores.
    flit, arrivals, link_error, width, height, x, y, link_busy
        Present only if the chip has links, see `hdl.chip.links.ChipLinks`. ``flit``, ``arrivals``:
        packets of this core and for this core. ``link_error``: cause of the fault LINK. ``width``,
        ``height``, ``x``, ``y``: size of the torus, coordinates of this chip. ``link_busy``: a
        packet of this core has not left the core, or a signal for this core has not had its effect.
    link_clk, link_wake : In(1), Out(1)
        Present only if ``link_clock`` is true: the clock of the egress and of the arrivals. It may
        stop when `Chip` permits it. ``link_wake``: a transfer or signal to another chip begins.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or not valid for a chip.
    """

    def __init__(self, config: Config, *, link_clock: bool = False) -> None:
        check_config(config)
        self._config = config
        self._link_clock = link_clock
        self._two = config.cores == 2
        self._links = config.link_bytes != 0
        super().__init__({
            "control": In(CoreSide(config.link_bytes != 0)),
            "axi": Out(Axi4(config.hbm_address_bits, channel_bits(config))).array(
                config.hbm_channels),
            **({"peer": Out(NodeLink(config)), "guest": In(NodeLink(config))} if self._two else {}),
            **(self._link_ports(config) if config.link_bytes else {}),
            **({"link_clk": In(1), "link_wake": Out(1)} if link_clock else {}),
        })

    @staticmethod
    def _link_ports(config: Config) -> dict[str, wiring.Member]:
        flit = stream.Signature(flit_layout(link_config(config)))
        return {"flit": Out(flit).array(len(Direction)), "arrivals": In(ArrivalPort(config)),
                "link_error": In(1), "link_busy": Out(1),
                **{name: In(width) for name, width in PLACE_PORTS.items()}}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        resets = instantiate(m, platform, "resets", "core_reset", CoreReset)
        self._reset = Signal()
        m.d.comb += self._reset.eq(resets.reset)
        self._core = instantiate(m, platform, "core", "core", lambda: Core(config),
                                 reset=self._reset)
        self._engine = instantiate(m, platform, "engine", "dma_engine", lambda: DmaEngine(config),
                                   reset=self._reset)
        self._port = instantiate(m, platform, "port", "hbm_port", lambda: HbmPort(config))
        if self._links:
            clock = self.link_clk if self._link_clock else None
            self._egress = instantiate(m, platform, "egress", "egress", lambda: Egress(config),
                                       clock=clock)
            self._arrivals = instantiate(m, platform, "arrived", "arrivals",
                                         lambda: Arrivals(config), clock=clock)
        self._connect_control(m, resets)
        self._connect_memory(m)
        self._share_vectors(m, platform)
        self._share_requests(m, platform)
        self._share_semaphores(m, platform)
        if self._links:
            self._connect_links(m, platform)
        return m

    def _connect_links(self, m: Module, platform: object) -> None:
        """Connect the egress of remote transfers, and the packets that arrive."""
        engine, egress, arrivals = self._engine, self._egress, self._arrivals
        missed = Signal()  # an error during a reset, of which the core does not know
        m.d.sync += missed.eq(self.control.resetting & (self.link_error | missed))
        m.d.comb += [
            egress.push.eq(engine.remote_push), egress.transfer.eq(engine.remote_transfer),
            engine.remote_room.eq(egress.room), egress.stop.eq(engine.abort),
            *(getattr(engine, name).eq(getattr(self, name)) for name in PLACE_PORTS),
            self._core.link_error.eq(self.link_error | missed),
            self.link_busy.eq(egress.busy | egress.full | arrivals.busy)]
        for inside, outside in zip(egress.flit, self.flit, strict=True):
            connect(m, inside, flipped(outside))
        connect(m, flipped(self.arrivals), arrivals.source)
        check = instantiate(m, platform, "remote_check", "remote_check",
                            lambda: RemoteCheck(self._config))
        remote, addition = self._core.remote, egress.addition
        m.d.comb += [
            *(getattr(check, name).eq(getattr(self, name)) for name in PLACE_PORTS),
            check.word.eq(remote.payload.word),
            self._core.remote_fault.eq(
                Mux(check.malformed, Fault.DMA_DESCRIPTOR.value,
                    Mux(check.outside, Fault.DMA_RANGE.value, Fault.NONE.value))),
            addition.valid.eq(remote.valid), remote.ready.eq(addition.ready),
            addition.payload.to.eq(check.to),
            addition.payload.semaphore.eq(remote.payload.semaphore),
            addition.payload.amount.eq(remote.payload.amount)]
        if self._link_clock:
            m.d.comb += self.link_wake.eq(egress.push | addition.valid)

    def _connect_control(self, m: Module, resets: CoreReset) -> None:
        """Connect commands, status and reset. A reset stops the program and aborts transfers."""
        control, core, engine = self.control, self._core, self._engine
        busy, done = engine.busy, engine.host_done
        if self._links:
            busy |= self._egress.busy
            done |= self._egress.host_done
        m.d.comb += [
            core.start.eq(control.start), core.start_pc.eq(control.start_pc),
            core.stop.eq(control.stop | resets.resetting),
            core.watchdog.eq(control.watchdog), core.clear_counters.eq(control.clear_counters),
            *(getattr(control, name).eq(getattr(core, name)) for name in (
                "running", "waiting", "idle", "fault", "pc", "cycles",
                *COUNTERS)),
            engine.host_descriptor.eq(control.host_descriptor),
            engine.host_valid.eq(control.host_valid),
            control.host_ready.eq(engine.host_ready), control.host_fault.eq(engine.host_fault),
            control.dma_busy.eq(busy), control.transfer_done.eq(done),
            control.transfer_failed.eq(engine.host_failed),
            core.bus_error.eq(engine.bus_error),
            resets.request.eq(control.reset_request),
            control.resetting.eq(resets.resetting), engine.abort.eq(resets.resetting),
            resets.at_rest.eq(~busy & ~self._port.busy),
        ]
        connect(m, core.dma, engine.dma)

    def _connect_memory(self, m: Module) -> None:
        engine, port = self._engine, self._port
        for name in ("hbm_read", "hbm_write", "hbm_write_rows"):
            connect(m, getattr(engine, name), getattr(port, name))
        for name in ("hbm_rows", "hbm_write_done"):
            connect(m, getattr(port, name), getattr(engine, name))
        m.d.comb += port.discard.eq(engine.discard)
        for inside, outside in zip(port.axi, self.axi, strict=True):
            connect(m, inside, flipped(outside))

    def _share_vectors(self, m: Module, platform: object) -> None:
        """Share the core's vector memory among the engines of both cores and the links."""
        config, core, engine = self._config, self._core, self._engine
        clients = config.cores + self._links
        port = instantiate(m, platform, "vectors", "vector_port",
                           lambda: VectorPort(config, clients))
        connect(m, port.host_read, core.host_read)
        connect(m, core.host_rows, port.host_rows)
        connect(m, port.host_write, core.host_write)
        connect(m, engine.vmem_read, port.read[0])
        connect(m, port.rows[0], engine.vmem_rows)
        connect(m, engine.vmem_write, port.write[0])
        m.d.comb += [port.reset.eq(self._reset), engine.vmem_busy.eq(port.busy)]
        if self._links:
            connect(m, self._egress.read, port.read[-1])
            connect(m, port.rows[-1], self._egress.rows)
            connect(m, self._arrivals.write, port.write[-1])
            m.d.comb += self._arrivals.vector_busy.eq(port.busy)
        if not self._two:
            return
        connect(m, flipped(self.guest.read), port.read[1])
        connect(m, port.rows[1], flipped(self.guest.rows))
        connect(m, flipped(self.guest.write), port.write[1])
        connect(m, engine.other_read, flipped(self.peer.read))
        connect(m, flipped(self.peer.rows), engine.other_rows)
        connect(m, engine.other_write, flipped(self.peer.write))
        m.d.comb += [self.guest.busy.eq(port.busy), engine.other_busy.eq(self.peer.busy)]

    def _share_requests(self, m: Module, platform: object) -> None:
        """Share the core's port for single words: the host reads and writes, the engine only reads.

        The engine writes several words at once, through a port of its own.
        """
        core, engine, control = self._core, self._engine, self.control
        requests = instantiate(m, platform, "requests", "request_arbiter",
                               lambda: RequestArbiter(2))
        connect(m, requests.core_request, core.request)
        connect(m, core.response, requests.core_response)
        connect(m, flipped(control.request), requests.request[0])
        connect(m, requests.response[0], flipped(control.response))
        connect(m, engine.request, requests.request[1])
        connect(m, requests.response[1], engine.response)
        connect(m, engine.word_write, core.word_write)

    def _share_semaphores(self, m: Module, platform: object) -> None:
        """Share the core's semaphores among the host, the core's engine and the other core's node.

        The arbiter is reset together with the core, but accepts additions even then: their loss
        does not matter, because the reset clears the semaphores.
        """
        config, core, engine = self._config, self._core, self._engine
        sources = 4 if self._two else 2
        first = sources
        if self._links:
            sources += 1 + config.cores
        signals = instantiate(m, platform, "signals", "signal_arbiter",
                              lambda: SignalArbiter(sources),
                              reset=self._reset)
        connect(m, signals.signal, core.signal)
        connect(m, flipped(self.control.signal), signals.source[0])
        self._count_one(m, engine.signal, signals.source[1])
        if self._links:
            connect(m, self._arrivals.signal, signals.source[first])
            self._count_one(m, self._egress.signal, signals.source[first + 1])
        if self._links and self._two:
            self._count_one(m, flipped(self.guest.departure_signal), signals.source[first + 2])
            connect(m, self._egress.other_signal, flipped(self.peer.departure_signal))
        if not self._two:
            return
        self._count_one(m, flipped(self.guest.transfer_signal), signals.source[2])
        connect(m, flipped(self.guest.program_signal), signals.source[3])
        connect(m, engine.other_signal, flipped(self.peer.transfer_signal))
        connect(m, core.other_signal, flipped(self.peer.program_signal))

    def _count_one(self, m: Module, index: wiring.PureInterface,
                   source: wiring.PureInterface) -> None:
        """For each semaphore number on stream ``index``, offer an addition of 1 on ``source``."""
        m.d.comb += [source.valid.eq(index.valid), source.payload.index.eq(index.payload),
                     source.payload.amount.eq(1), index.ready.eq(source.ready)]
