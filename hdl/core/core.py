"""The core: sequencer, vector unit, matrix unit and cross-lane unit."""

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..checks import instance
from ..config import Config
from ..mxu.mxu import COUNTER_BITS, Mxu
from ..tiles import instantiate
from ..vpu.interface import V1_DELAY, host_read_request, host_write_row, row_bits
from ..vpu.vpu import Vpu
from ..xlu.xlu import Xlu
from .counters import COUNTERS, CoreCounters
from .feeder import RowCollector, RowFeeder
from .interface import (
    WAITS,
    DmaIssue,
    Response,
    SemaphoreSignal,
    core_request,
    fault_bits,
    link_ports,
    semaphore_addition,
    word_write,
)
from .sequencer import Sequencer

__all__ = ["Core"]


class Core(wiring.Component):
    """One tensor core, without HBM and DMA engine: executes programs of `hdl.isa`.

    The sequencer issues bundles to the units. Chains of the vector unit carry the rows of vector
    registers to the array and to the cross-lane unit, and back.

    Parameters
    ----------
    config : Config
        Parameters.

    Attributes
    ----------
    start, start_pc, stop, watchdog, running, fault, pc, request, response, word_write, signal
    other_signal, dma, bus_error, link_error, remote, remote_fault
        Same as in `hdl.core.sequencer.Sequencer`.
    waiting : Out(1)
        The bundle at ``pc`` waits only for a semaphore.
    idle : Out(1)
        No operation is in progress. Results in the array that await a pop do not count: they may
        still move while the core is ``idle`` and not ``running``.
    host_read, host_rows, host_write, host_busy
        Same as in `hdl.vpu.vpu.Vpu`: the host's access to vector memory and vector registers.
    clear_counters : In(1)
        Clears the counters.
    cycles, {counter} : Out(COUNTER_BITS)
        Same as in `hdl.core.counters.CoreCounters`.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or not valid for a `Vpu`.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        # A core does not know the HBM, so cores of many chips are the same.
        config = self._config = config.core_config
        super().__init__({
            "start": In(1), "start_pc": In(32), "stop": In(1), "watchdog": In(32),
            "running": Out(1), "waiting": Out(1), "idle": Out(1),
            "fault": Out(fault_bits(config)), "pc": Out(32),
            "request": In(stream.Signature(core_request())), "response": Out(Response()),
            "word_write": In(stream.Signature(word_write(config))),
            "signal": In(SemaphoreSignal()),
            "other_signal": Out(stream.Signature(semaphore_addition())),
            "dma": Out(DmaIssue(config)), "bus_error": In(1),
            **(link_ports() if config.link_bytes else {}),
            "host_read": In(stream.Signature(host_read_request())),
            "host_rows": Out(stream.Signature(row_bits(config))),
            "host_write": In(stream.Signature(host_write_row(config))), "host_busy": Out(1),
            "clear_counters": In(1),
            "cycles": Out(COUNTER_BITS),
            **{counter: Out(COUNTER_BITS) for counter in COUNTERS},
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        sequencer = instantiate(m, platform, "sequencer", "sequencer", lambda: Sequencer(config))
        vpu = instantiate(m, platform, "vpu", "vpu", lambda: Vpu(config))
        mxu = instantiate(m, platform, "mxu", "mxu", lambda: Mxu(config))
        xlu = instantiate(m, platform, "xlu", "xlu", lambda: Xlu(config))
        feeder_x, feeder_w = (
            instantiate(m, platform, f"feeder_{name}", "row_feeder", lambda: RowFeeder(config))
            for name in "xw")
        collector = instantiate(m, platform, "collector", "row_collector",
                                lambda: RowCollector(config))

        self._connect_host(m, sequencer, vpu)
        for slot in ("v0", "v1", "load", "store"):
            connect(m, getattr(sequencer, slot), getattr(vpu, slot))
        connect(m, vpu.written, sequencer.written)
        connect(m, vpu.mask_written, sequencer.mask_written)
        self._feed(m, sequencer, vpu, mxu, feeder_x, "x")
        self._feed(m, sequencer, vpu, mxu, feeder_w, "w")
        m.d.comb += [
            # The first row of a push activates the new weights for all of its rows.
            mxu.x.payload.swap.eq(feeder_x.row_flag & feeder_x.row_first),
            mxu.w.payload.transpose.eq(feeder_w.row_flag),
        ]
        if config.issue_cycles > 1:
            # The chains read registers through ports of the vector slots, x before w. The second
            # cycle after an issue is always free: v0 reads in the first, v1 in the third.
            m.d.comb += [xlu.grant.eq(~vpu.reading), feeder_x.grant.eq(~vpu.reading),
                         feeder_w.grant.eq(~vpu.reading & ~feeder_x.chain.load),
                         sequencer.w_free.eq(feeder_w.free & ~feeder_x.pending.valid)]
        self._cross(m, sequencer, vpu, xlu)
        self._collect(m, sequencer, vpu, mxu, collector, xlu)
        m.d.comb += self.idle.eq(feeder_x.idle & feeder_w.idle & collector.idle
                                 & ~xlu.busy & ~vpu.busy & ~sequencer.busy)
        self._count(m, platform, sequencer, mxu)
        return m

    def _connect_host(self, m: Module, sequencer: Sequencer, vpu: Vpu) -> None:
        for name in ("start", "start_pc", "stop", "watchdog", "bus_error"):
            m.d.comb += getattr(sequencer, name).eq(getattr(self, name))
        if self._config.link_bytes:
            m.d.comb += [sequencer.link_error.eq(self.link_error),
                         sequencer.remote_fault.eq(self.remote_fault)]
            connect(m, sequencer.remote, flipped(self.remote))
        for name in ("running", "fault", "pc"):
            m.d.comb += getattr(self, name).eq(getattr(sequencer, name))
        m.d.comb += self.waiting.eq(sequencer.waiting_semaphore)
        connect(m, flipped(self.request), sequencer.request)
        connect(m, sequencer.response, flipped(self.response))
        connect(m, flipped(self.word_write), sequencer.word_write)
        connect(m, flipped(self.signal), sequencer.signal)
        connect(m, sequencer.other_signal, flipped(self.other_signal))
        connect(m, sequencer.dma, flipped(self.dma))
        connect(m, flipped(self.host_read), vpu.host_read)
        connect(m, vpu.host_rows, flipped(self.host_rows))
        connect(m, flipped(self.host_write), vpu.host_write)
        m.d.comb += [
            self.host_busy.eq(vpu.host_busy),
            sequencer.urgent_read.eq(vpu.urgent_read),
            sequencer.urgent_write.eq(vpu.urgent_write),
        ]

    def _feed(self, m: Module, sequencer: Sequencer, vpu: Vpu, mxu: Mxu, feeder: RowFeeder,
              name: str) -> None:
        """Connect pushes to the array's stream ``name``, through the chain ``name``.

        ``name`` is "x" for activations or "w" for weights.
        """
        rows = getattr(mxu, name)
        connect(m, getattr(sequencer, f"push_{name}"), feeder.push)
        connect(m, feeder.pending, getattr(sequencer, f"{name}_pending"))
        connect(m, feeder.chain, getattr(vpu, f"{name}_chain"))
        m.d.comb += [
            getattr(sequencer, f"{name}_ready").eq(feeder.ready),
            getattr(sequencer, f"{name}_free").eq(feeder.free),
            rows.valid.eq(feeder.row_valid),
            rows.payload.data.eq(getattr(vpu, f"{name}_row")),
            feeder.row_ready.eq(rows.ready),
        ]

    def _cross(self, m: Module, sequencer: Sequencer, vpu: Vpu, xlu: Xlu) -> None:
        """Connect the cross-lane unit to the sequencer and to its chains in the vector unit."""
        connect(m, sequencer.xlu, xlu.start)
        connect(m, xlu.pending, sequencer.xlu_pending)
        connect(m, xlu.chain, vpu.xlu_chain)
        connect(m, xlu.result, vpu.result_chain)
        m.d.comb += [
            sequencer.xlu_ready.eq(xlu.ready),
            sequencer.xlu_free.eq(xlu.free),
            xlu.row.eq(vpu.xlu_row),
        ]

    def _collect(self, m: Module, sequencer: Sequencer, vpu: Vpu, mxu: Mxu,
                 collector: RowCollector, xlu: Xlu) -> None:
        """Connect the array's results to pops.

        Pops and the cross-lane unit share a write port of the vector registers; the cross-lane unit
        has priority. If ``issue_cycles`` is 3, loads share it, too; they have priority over pops.
        """
        pops = collector.write.valid
        # Rows of the array can wait; those of the cross-lane unit cannot.
        grant = ~xlu.write.valid
        if self._config.issue_cycles > 1:
            # Operations of v1 read registers only in the third cycle after issue, and all reads of
            # a bundle come before its writes.
            valid, earlier = sequencer.pop.valid, Const(0, 1)
            for i in range(V1_DELAY):
                delayed = Signal(name=f"pop_{i}")
                m.d.sync += delayed.eq(valid)
                earlier, valid = earlier | delayed, delayed
            with m.If(sequencer.pop.valid):
                m.d.sync += collector.pop.d.eq(sequencer.pop.d)
            m.d.comb += [collector.pop.valid.eq(valid),
                         sequencer.pop_ready.eq(collector.ready & ~earlier)]
            pops &= ~vpu.load_waits
            grant &= ~vpu.load_waits
        else:
            connect(m, sequencer.pop, collector.pop)
            m.d.comb += sequencer.pop_ready.eq(collector.ready)
        m.d.comb += [
            collector.row_valid.eq(mxu.y.valid),
            mxu.y.ready.eq(collector.row_ready),
            vpu.pop_chain.shift.eq(collector.shift),
            vpu.pop_chain.row.eq(mxu.y.payload),
            collector.grant.eq(grant),
            vpu.chain_write.valid.eq(xlu.write.valid | pops),
            vpu.chain_write.d.eq(Mux(xlu.write.valid, xlu.write.d, collector.write.d)),
            vpu.chain_write.from_xlu.eq(xlu.write.valid),
        ]

    def _count(self, m: Module, platform: object, sequencer: Sequencer, mxu: Mxu) -> None:
        counters = instantiate(m, platform, "counters", "core_counters", CoreCounters)
        m.d.comb += [
            counters.clear.eq(self.clear_counters),
            counters.x_accepted.eq(mxu.x.valid & mxu.x.ready),
            counters.w_accepted.eq(mxu.w.valid & mxu.w.ready),
            *(getattr(counters, f"waiting_{wait}").eq(getattr(sequencer, f"waiting_{wait}"))
              for wait in WAITS),
            self.cycles.eq(counters.cycles),
            *(getattr(self, counter).eq(getattr(counters, counter)) for counter in COUNTERS),
        ]
