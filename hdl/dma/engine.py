"""The DMA engine: moves rows between memories while the program runs."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from ..axi.interface import hbm_burst, hbm_done, hbm_row
from ..config import Config
from ..core.interface import (
    FAULT_BITS,
    SEMAPHORE_BITS,
    DmaIssue,
    Response,
    Space,
    core_request,
    word_write,
)
from ..link.format import Direction
from ..tiles import instantiate
from ..vpu.interface import host_read_request, host_write_row, row_bits
from .descriptor import DescriptorFrontEnd
from .format import DESCRIPTOR_WORDS
from .interface import check_config, transfer
from .queue import STAGES, TransferQueue
from .reader import Collector, Reader
from .remote import PLACE_PORTS
from .rows import RowBuffer
from .writer import BurstIssuer, Completion, Writer

__all__ = ["DmaEngine"]


class DmaEngine(wiring.Component):
    """Moves rows between memories, according to descriptors of the program and of the host.

    At most `hdl.dma.interface.QUEUE_DEPTH` transfers are in the engine's queue. Rows are read and
    written in the order of the transfers, one a cycle. The exceptions are memories of words: scalar
    memory is read one word a cycle; scalar and instruction memory are written
    `hdl.core.interface.write_words` words a cycle. Transfers overlap: the rows of a transfer are
    requested, and read, while earlier transfers are still being written. So a transfer that reads
    what an earlier one writes must start after the earlier one has signalled its completion.
    Transfers complete, and signal, in order.

    A failed read or write raises ``bus_error``. The transfer continues with its other rows, but
    does not signal its completion.

    Parameters
    ----------
    config : Config
        ``array`` must be a power of two.

    Attributes
    ----------
    dma : In(DmaIssue)
        Starts of transfers by the program.
    host_descriptor, host_valid, host_ready, host_fault
        Starts of transfers by the host, see `DescriptorFrontEnd`.
    busy : Out(1)
        A transfer or an ``abort`` is in progress. A remote transfer that has started does not
        count: see ``busy`` of `hdl.link.egress.Egress`.
    abort : In(1)
        Abandons all transfers, and lets none start. No more rows are requested, and rows that
        arrive are dropped. Vectors and bursts that were begun are completed with arbitrary rows:
        vector memory writes them, the HBM does not. When ``busy`` has fallen, no access of the
        engine is in progress.
    bus_error : Out(1)
        For one cycle: the HBM answered with an error.
    host_done : Out(1)
        For one cycle: a transfer of the host has ended, successfully or not.
    host_failed : Out(1)
        In the cycle of ``host_done``: the HBM answered a part of that transfer with an error.
    vmem_read, vmem_rows, vmem_write
        To the ports ``host_read``, ``host_rows`` and ``host_write`` of this `Core`.
    vmem_busy : In(1)
        This core has accepted all rows of a vector, but will not have written the vector by the end
        of this cycle. It is the inverse of the core's ``host_write.ready``.
    other_read, other_rows, other_write, other_busy
        Like ``vmem_*``, for the other core.
    request, response : Out(stream of core_request), In(Response)
        Reads of words of this core. The response must follow the acceptance of a request by one
        cycle.
    word_write : Out(stream of word_write)
        Writes of words of this core.
    signal, other_signal : Out(stream of 4)
        Numbers of semaphores of this core, and of the other core, to which 1 is added.
    remote_push, remote_transfer, remote_room, width, height, x, y
        Present if the chip has links. The first three start remote transfers, through ``push``,
        ``transfer`` and ``room`` of `hdl.link.egress.Egress`. The others are the inputs of these
        names of `DescriptorFrontEnd`.
    hbm_read, hbm_rows, hbm_write, hbm_write_rows, discard, hbm_write_done
        To the ports of the same names of `hdl.axi.master.HbmPort`.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or ``array`` is not a power of two.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        row = stream.Signature(row_bits(config))
        read, write = stream.Signature(host_read_request()), stream.Signature(
            host_write_row(config))
        index = stream.Signature(SEMAPHORE_BITS)
        super().__init__({
            "dma": In(DmaIssue(config)), "host_descriptor": In(32 * DESCRIPTOR_WORDS),
            "host_valid": In(1), "host_ready": Out(1), "host_fault": Out(FAULT_BITS),
            "busy": Out(1), "abort": In(1), "bus_error": Out(1), "host_done": Out(1),
            "host_failed": Out(1),
            **{name: member for core in ("vmem", "other") for name, member in (
                (f"{core}_read", Out(read)), (f"{core}_rows", In(row)),
                (f"{core}_write", Out(write)), (f"{core}_busy", In(1)))},
            "request": Out(stream.Signature(core_request())), "response": In(Response()),
            "word_write": Out(stream.Signature(word_write(config))),
            "signal": Out(index), "other_signal": Out(index),
            "hbm_read": Out(stream.Signature(hbm_burst(config))),
            "hbm_rows": In(stream.Signature(hbm_row(config))),
            "hbm_write": Out(stream.Signature(hbm_burst(config))),
            "hbm_write_rows": Out(row), "discard": Out(1),
            "hbm_write_done": In(stream.Signature(hbm_done())),
            **({"remote_push": Out(1), "remote_transfer": Out(transfer(config)),
                "remote_room": In(len(Direction)),
                **{name: In(width) for name, width in PLACE_PORTS.items()}}
               if config.link_bytes else {}),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config = self._config
        self._front = instantiate(m, platform, "front", "dma_front_end",
                                  lambda: DescriptorFrontEnd(config))
        self._queue = instantiate(m, platform, "queue", "dma_queue", lambda: TransferQueue(config))
        self._reader = instantiate(m, platform, "reader", "dma_reader", lambda: Reader(config))
        self._collector = instantiate(m, platform, "collector", "dma_collector",
                                      lambda: Collector(config))
        self._buffer = instantiate(m, platform, "buffer", "dma_row_buffer",
                                   lambda: RowBuffer(config))
        self._issuer = instantiate(m, platform, "issuer", "dma_burst_issuer",
                                   lambda: BurstIssuer(config))
        self._writer = instantiate(m, platform, "writer", "dma_writer", lambda: Writer(config))
        self._completion = instantiate(m, platform, "completion", "dma_completion", Completion)
        stop = self._abort(m)
        self._start(m, stop)
        self._queue_up(m)
        self._read(m)
        self._write(m)
        self._complete(m)
        self._request_words(m)
        return m

    def _abort(self, m: Module) -> Signal:
        """Stop all stages on ``abort``; clear their transfers when all are idle.

        Return a signal that is set from ``abort`` until all are idle: the stages must stop.
        """
        stages = (self._reader, self._collector, self._issuer, self._writer, self._completion)
        aborting = Signal()
        stop = Signal()
        rest = Signal()
        clear = Signal()
        m.d.comb += [
            stop.eq(self.abort | aborting),
            rest.eq(self._reader.idle & self._collector.idle & self._issuer.idle
                    & self._writer.idle & self._completion.idle
                    & ~self.vmem_busy & ~self.other_busy),
            clear.eq(stop & rest),
            self._queue.clear.eq(clear), self._buffer.clear.eq(clear),
            self._writer.clear.eq(clear), self._completion.clear.eq(clear),
            *(stage.stop.eq(stop) for stage in stages),
            self.busy.eq(self._queue.completion_valid | self._front.busy | aborting |
                         self.signal.valid | self.other_signal.valid),
        ]
        m.d.sync += aborting.eq(stop & ~rest)
        return stop

    def _start(self, m: Module, stop: Signal) -> None:
        front, queue = self._front, self._queue
        connect(m, flipped(self.dma), front.dma)
        m.d.comb += [
            front.host_descriptor.eq(self.host_descriptor), front.host_valid.eq(self.host_valid),
            self.host_ready.eq(front.host_ready), self.host_fault.eq(front.host_fault),
            front.room.eq(queue.room & ~stop),
            queue.transfer.eq(front.transfer),
        ]
        if not self._config.link_bytes:
            m.d.comb += queue.push.eq(front.push)
            return
        remote = front.transfer.remote
        m.d.comb += [
            queue.push.eq(front.push & ~remote), self.remote_push.eq(front.push & remote),
            self.remote_transfer.eq(front.transfer),
            front.remote_room.eq(Mux(stop, 0, self.remote_room)),
            *(getattr(front, name).eq(getattr(self, name)) for name in PLACE_PORTS)]

    def _queue_up(self, m: Module) -> None:
        """Connect each stage to its next transfer in the queue."""
        queue = self._queue
        for stage in STAGES:
            port, entry = getattr(self, f"_{stage}"), getattr(queue, f"{stage}_transfer")
            m.d.comb += [port.valid.eq(getattr(queue, f"{stage}_valid")),
                         getattr(queue, f"{stage}_take").eq(port.take)]
            if stage in ("reader", "collector"):
                m.d.comb += port.source.eq(entry.source)
            if stage in ("issuer", "writer"):
                m.d.comb += port.destination.eq(entry.destination)
            if stage in ("collector", "writer"):
                m.d.comb += port.rows.eq(entry.rows)
            if stage in ("collector", "issuer", "completion"):
                m.d.comb += port.at.eq(getattr(queue, f"{stage}_place"))
        entry = queue.completion_transfer
        m.d.comb += [
            self._completion.space.eq(entry.destination.space),
            self._completion.semaphore.eq(entry.semaphore),
            self._completion.signals.eq(entry.signal),
            self._completion.signals_other.eq(entry.signal_other),
            self._completion.from_host.eq(entry.from_host),
        ]

    def _read(self, m: Module) -> None:
        reader, collector = self._reader, self._collector
        for name in ("hbm", "vmem", "other"):
            connect(m, getattr(reader, f"{name}_read"), flipped(getattr(self, f"{name}_read")))
            connect(m, flipped(getattr(self, f"{name}_rows")), getattr(collector, f"{name}_rows"))
            request = getattr(self, f"{name}_read")
            m.d.comb += getattr(collector, f"asked_{name}").eq(request.valid & request.ready)
        m.d.comb += collector.asked_rows.eq(reader.asked_rows)
        connect(m, collector.output, self._buffer.input)
        connect(m, self._buffer.output, self._writer.row)

    def _write(self, m: Module) -> None:
        issuer, writer, completion = self._issuer, self._writer, self._completion
        connect(m, issuer.hbm_write, flipped(self.hbm_write))
        for name in ("vmem_write", "other_write", "hbm_write_rows", "word_write"):
            connect(m, getattr(writer, name), flipped(getattr(self, name)))
        m.d.comb += [
            self.discard.eq(writer.discard),
            issuer.allow.eq(writer.few & ~completion.crowded),
            writer.issued.eq(issuer.issued), writer.issued_rows.eq(issuer.issued_rows),
            completion.issued.eq(issuer.issued), completion.issued_at.eq(issuer.issued_at),
            completion.written.eq(writer.done),
        ]

    def _complete(self, m: Module) -> None:
        completion, collector = self._completion, self._collector
        connect(m, flipped(self.hbm_write_done), completion.hbm_write_done)
        connect(m, completion.signal, flipped(self.signal))
        connect(m, completion.other_signal, flipped(self.other_signal))
        m.d.comb += [
            completion.failed.eq(collector.failed), completion.failed_at.eq(collector.failed_at),
            completion.vmem_busy.eq(self.vmem_busy), completion.other_busy.eq(self.other_busy),
            self.bus_error.eq(completion.bus_error), self.host_done.eq(completion.host_done),
            self.host_failed.eq(completion.host_failed),
        ]

    def _request_words(self, m: Module) -> None:
        collector, request = self._collector, self.request
        m.d.comb += [
            request.valid.eq(collector.ask),
            request.payload.space.eq(Space.SMEM.value),
            request.payload.address.eq(collector.ask_address),
            collector.granted.eq(request.valid & request.ready),
            collector.word.eq(self.response.data),
        ]
