"""The second half of a transfer: writes rows to the destination, and signals completion."""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..axi.interface import hbm_burst, hbm_done, hbm_row
from ..config import Config
from ..core.interface import SEMAPHORE_BITS, Space, word_write, write_words
from ..tiles import instantiate
from ..vpu.interface import host_write_row, row_bits
from .format import DmaSpace
from .interface import (
    BLOCK_BITS,
    MAX_BURST,
    QUEUE_DEPTH,
    SPACE_BITS,
    WORD_SPACES,
    check_config,
    side,
)
from .walk import AddressWalk

__all__ = ["BurstIssuer", "Completion", "Writer"]

_AHEAD = 8
"""A burst is requested only while fewer than this number of rows of earlier bursts are undelivered.
This is the least number that sustains the full rate."""
_PENDING_BITS = 8
"""Width of the count of a transfer's unanswered bursts."""
_PLACE_BITS = exact_log2(QUEUE_DEPTH)


class BurstIssuer(wiring.Component):
    """Requests the write bursts of transfers to the HBM, slightly ahead of their rows.

    Attributes
    ----------
    valid, destination, at, take : In(1), In(side), In(2), Out(1)
        The next transfer: its destination, and its place in the queue. ``take``: the issuer begins
        this transfer in this cycle.
    allow : In(1)
        A burst may be requested. ``allow`` must not fall while a request waits for the HBM.
    hbm_write : Out(stream of hbm_burst)
        Write requests to the HBM.
    issued, issued_rows, issued_at : Out(1), Out(9), Out(2)
        ``issued``: the HBM accepts a burst of ``issued_rows`` rows in this cycle. ``issued_at``:
        its transfer's place in the queue.
    stop : In(1)
        Abandons the current transfer and begins no other; but a request that waits for the HBM
        remains until it is accepted.
    idle : Out(1)
        The issuer has no transfer.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        super().__init__({
            "valid": In(1), "destination": In(side(config)), "at": In(_PLACE_BITS), "take": Out(1),
            "allow": In(1), "hbm_write": Out(stream.Signature(hbm_burst(config))),
            "issued": Out(1), "issued_rows": Out(range(MAX_BURST + 1)),
            "issued_at": Out(_PLACE_BITS), "stop": In(1), "idle": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        walk = instantiate(m, platform, "walk", "dma_address_walk",
                           lambda: AddressWalk(self._config))
        active = Signal()
        refused = Signal()
        finishes = Signal()
        burst = self.hbm_write
        m.d.comb += [
            burst.valid.eq(active & self.allow & (~self.stop | refused)),
            burst.payload.row.eq(walk.address), burst.payload.more.eq(walk.count - 1),
            self.issued.eq(burst.valid & burst.ready), self.issued_rows.eq(walk.count),
            finishes.eq(self.issued & walk.last),
            self.take.eq(self.valid & ~self.stop & (~active | finishes)),
            self.idle.eq(~active),
            walk.load.eq(self.take), walk.side.eq(self.destination), walk.step.eq(self.issued),
            walk.bursts.eq(1), walk.unit.eq(1),
        ]
        m.d.sync += refused.eq(burst.valid & ~burst.ready)
        with m.If(self.take):
            m.d.sync += [active.eq(self.destination.space == DmaSpace.HBM.value),
                         self.issued_at.eq(self.at)]
        with m.Elif(finishes | (self.stop & ~(burst.valid & ~burst.ready))):
            m.d.sync += active.eq(0)
        return m


class Writer(wiring.Component):
    """Delivers the rows of one transfer after the other to their destination.

    Attributes
    ----------
    valid, destination, rows, take : In(1), In(side), In(24), Out(1)
        The destination and the rows of the next transfer; ``take``: the writer begins this transfer
        in this cycle.
    row : In(stream of hbm_row)
        The rows of the transfers, in order.
    vmem_write, other_write : Out(stream of host_write_row)
        Rows for this core's vector unit, and for the other core's.
    hbm_write_rows, discard : Out(stream of row_bits), Out(1)
        Rows of the issued bursts. If ``discard`` is set, the HBM must not write the row.
    issued, issued_rows, few : In(1), In(9), Out(1)
        ``issued``: a burst of ``issued_rows`` rows is issued. ``few``: of the issued bursts, fewer
        than `_AHEAD` rows are left to deliver.
    word_write : Out(stream of word_write)
        Words for scalar and instruction memory.
    done : Out(1)
        The transfer's last row is delivered in this cycle.
    stop : In(1)
        Begins no transfer and accepts no row. Vectors and bursts that were begun are completed with
        arbitrary rows.
    clear : In(1)
        Drops the current transfer; only while ``stop`` and ``idle``.
    idle : Out(1)
        No vector and no burst is incomplete.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        vector = stream.Signature(host_write_row(config))
        super().__init__({
            "valid": In(1), "destination": In(side(config)), "rows": In(BLOCK_BITS), "take": Out(1),
            "row": In(stream.Signature(hbm_row(config))),
            "vmem_write": Out(vector), "other_write": Out(vector),
            "hbm_write_rows": Out(stream.Signature(row_bits(config))), "discard": Out(1),
            "issued": In(1), "issued_rows": In(range(MAX_BURST + 1)), "few": Out(1),
            "word_write": Out(stream.Signature(word_write(config))),
            "done": Out(1), "stop": In(1), "clear": In(1), "idle": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._walk = walk = instantiate(m, platform, "walk", "dma_address_walk",
                                        lambda: AddressWalk(self._config))
        self._active = active = Signal()
        self._space = space = Signal(SPACE_BITS, reset_less=True)
        self._comes = comes = Signal()  # a row, of this transfer
        left = Signal(BLOCK_BITS, reset_less=True)
        leaves = Signal()
        m.d.comb += comes.eq(active & self.row.valid & ~self.stop)
        vector_row, vector_step, vector_idle = self._write_vectors(m)
        hbm_row, hbm_idle = self._write_hbm(m)
        word_row, word_step, word_idle = self._write_words(m)
        m.d.comb += [
            self.row.ready.eq(vector_row | hbm_row | word_row),
            leaves.eq(self.row.ready),
            self.done.eq(leaves & (left == 1)),
            self.take.eq(self.valid & ~self.stop & (~active | self.done)),
            walk.load.eq(self.take), walk.side.eq(self.destination),
            walk.step.eq(vector_step | word_step),
            self.idle.eq(vector_idle & hbm_idle & word_idle),
        ]
        with m.If(self.take):
            m.d.sync += [active.eq(1), space.eq(self.destination.space), left.eq(self.rows)]
        with m.Else():
            m.d.sync += left.eq(left - leaves)
            with m.If(self.done | self.clear):
                m.d.sync += active.eq(0)
        return m

    def _write_vectors(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """Offer the row to the vector unit of the destination.

        Return three signals: a vector unit accepts the row; the next row has another address; no
        vector is incomplete.
        """
        sublanes = self._config.sublanes
        sublane = Signal(range(sublanes))
        refused = Signal()
        offers = Signal(name="offers_vector")
        given = Signal()
        row = Signal(name="vector_row")
        step = Signal(name="vector_step")
        idle = Signal(name="vector_idle")
        writes = {DmaSpace.VMEM: self.vmem_write, DmaSpace.OTHER_VMEM: self.other_write}
        m.d.comb += offers.eq(self._comes |
                              (self._active & self.stop & ((sublane != 0) | refused)))
        ready = []
        for space, write in writes.items():
            m.d.comb += [
                write.valid.eq(offers & (self._space == space.value)),
                write.payload.address.eq(self._walk.address),
                write.payload.data.eq(self.row.payload.data),
            ]
            ready.append(write.valid & write.ready)
        m.d.comb += [
            given.eq(ready[0] | ready[1]),
            row.eq(given & ~self.stop),
            step.eq(row & (sublane == sublanes - 1)),
            idle.eq((sublane == 0) & ~self.vmem_write.valid & ~self.other_write.valid),
        ]
        m.d.sync += [
            sublane.eq(sublane + given),
            refused.eq((self.vmem_write.valid | self.other_write.valid) & ~given),
        ]
        return row, step, idle

    def _write_hbm(self, m: Module) -> tuple[Signal, Signal]:
        """Offer the row to the HBM.

        Return two signals: the HBM accepts the row; no issued burst lacks rows.
        """
        promised = Signal(range(_AHEAD + MAX_BURST + 1))
        given = Signal(name="hbm_given")
        row = Signal(name="hbm_row")
        idle = Signal(name="hbm_idle")
        rows = self.hbm_write_rows
        m.d.comb += [
            rows.valid.eq((promised != 0) & (
                (self._comes & (self._space == DmaSpace.HBM.value)) | self.stop)),
            rows.payload.eq(self.row.payload.data),
            self.discard.eq(self.stop | self.row.payload.error),
            given.eq(rows.valid & rows.ready),
            row.eq(given & ~self.stop),
            idle.eq(promised == 0),
            self.few.eq(promised < _AHEAD),
        ]
        m.d.sync += promised.eq(promised + Mux(self.issued, self.issued_rows, 0) - given)
        return row, idle

    def _write_words(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """Write the row to scalar or instruction memory, `write_words` words a cycle.

        A row of more than `write_words` words is written in several parts, each of which is a whole
        bundle in instruction memory. A row of fewer words lies within one bundle.

        Return three signals: the row's last words are written; the `AddressWalk` advances; no words
        are offered.
        """
        write, walk = self.word_write, self._walk
        together = write_words(self._config)
        parts = self._config.lanes // together
        refused = Signal(name="word_refused")
        is_word = Signal()
        row = Signal(name="word_row")
        step = Signal(name="word_step")
        idle = Signal(name="word_idle")
        m.d.comb += [
            is_word.eq(self._space.matches(*WORD_SPACES)),
            walk.unit.eq(Mux(is_word, together, 1)),
            write.valid.eq(is_word & (self._comes | (self.stop & refused))),
            write.payload.space.eq(Mux(self._space == DmaSpace.IMEM.value,
                                       Space.IMEM.value, Space.SMEM.value)),
            write.payload.address.eq(walk.address),
            step.eq(self._comes & write.valid & write.ready),
            idle.eq(~write.valid),
        ]
        m.d.sync += refused.eq(write.valid & ~write.ready)
        data = self.row.payload.data
        if parts == 1:
            m.d.comb += [write.payload.data.eq(data), row.eq(step)]
            return row, step, idle
        part = Signal(range(parts))
        chosen = Array(data.word_select(number, 32 * together) for number in range(parts))
        m.d.comb += [write.payload.data.eq(chosen[part]), row.eq(step & part.all())]
        m.d.sync += part.eq(part + step)
        with m.If(self.take | self.clear):
            m.d.sync += part.eq(0)
        return row, step, idle


class Completion(wiring.Component):
    """Completes transfers in order, and signals their completion.

    Attributes
    ----------
    valid, space, at, take : In(1), In(3), In(2), Out(1)
        The oldest transfer: the space of its destination, and its place in the queue. ``take``: the
        transfer completes in this cycle.
    semaphore, signals, signals_other, from_host : In(4), In(1), In(1), In(1)
        Fields of the oldest transfer, as in `transfer`.
    written : In(1)
        The `Writer` has finished a transfer.
    issued, issued_at, crowded : In(1), In(2), Out(1)
        ``issued``: a burst is issued, for the transfer in queue place ``issued_at``. ``crowded``:
        no more bursts may be issued, because the count of unanswered bursts is almost full.
    hbm_write_done : In(stream of hbm_done)
        The HBM's answers, one for each burst.
    failed, failed_at : In(1), In(2)
        ``failed``: a row of the transfer in queue place ``failed_at`` could not be read.
    vmem_busy, other_busy : In(1)
        This core, or the other, has accepted all rows of a vector, but has not written the vector.
    signal, other_signal : Out(stream of 4)
        Numbers of semaphores of this core, and of the other core, to which 1 is added.
    bus_error : Out(1)
        For one cycle: a transfer failed. That transfer will not signal its completion.
    host_done : Out(1)
        For one cycle: a transfer with ``from_host`` has ended.
    host_failed : Out(1)
        In the cycle of ``host_done``: that transfer has failed.
    stop, clear : In(1), In(1)
        ``stop``: no transfer completes. ``clear``: drops all transfers.
    idle : Out(1)
        All bursts are answered, and all signals have been accepted.
    """

    def __init__(self) -> None:
        index = stream.Signature(SEMAPHORE_BITS)
        super().__init__({
            "valid": In(1), "space": In(SPACE_BITS), "semaphore": In(SEMAPHORE_BITS),
            "signals": In(1), "signals_other": In(1), "from_host": In(1),
            "at": In(_PLACE_BITS), "take": Out(1), "host_done": Out(1), "host_failed": Out(1),
            "written": In(1), "issued": In(1), "issued_at": In(_PLACE_BITS), "crowded": Out(1),
            "hbm_write_done": In(stream.Signature(hbm_done())),
            "failed": In(1), "failed_at": In(_PLACE_BITS),
            "vmem_busy": In(1), "other_busy": In(1),
            "signal": Out(index), "other_signal": Out(index), "bus_error": Out(1),
            "stop": In(1), "clear": In(1), "idle": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        written = Signal(range(QUEUE_DEPTH + 1))  # transfers written but not complete
        failed = Array(Signal(name=f"failed_{number}") for number in range(QUEUE_DEPTH))
        pending, none_pending = self._count_bursts(m, failed)
        settled = Signal()
        free = Signal()
        m.d.comb += [
            settled.eq((pending[self.at] == 0) &
                       ~((self.space == DmaSpace.VMEM.value) & self.vmem_busy) &
                       ~((self.space == DmaSpace.OTHER_VMEM.value) & self.other_busy)),
            free.eq((~self.signal.valid | self.signal.ready) &
                    (~self.other_signal.valid | self.other_signal.ready)),
            self.take.eq(self.valid & (written != 0) & settled & free & ~self.stop),
            self.idle.eq(none_pending & ~self.signal.valid & ~self.other_signal.valid),
        ]
        m.d.sync += [
            written.eq(Mux(self.clear, 0, written + self.written - self.take)),
            self.host_done.eq(self.take & self.from_host),
            self.host_failed.eq(self.take & self.from_host & failed[self.at]),
            self.bus_error.eq(~self.stop & (self.failed | (self.hbm_write_done.valid &
                                                           self.hbm_write_done.payload.error))),
        ]
        with m.If(self.failed):
            m.d.sync += failed[self.failed_at].eq(1)
        for port, wanted in ((self.signal, self.signals), (self.other_signal, self.signals_other)):
            with m.If(self.take):
                m.d.sync += [port.valid.eq(wanted & ~failed[self.at]),
                             port.payload.eq(self.semaphore)]
            with m.Elif(port.ready):
                m.d.sync += port.valid.eq(0)
        with m.If(self.take):
            m.d.sync += failed[self.at].eq(0)
        with m.If(self.clear):
            m.d.sync += [one.eq(0) for one in failed]
        return m

    def _count_bursts(self, m: Module, failed: Array) -> tuple[Array, Signal]:
        """Count the unanswered bursts of the transfer in each place of the queue.

        Return the counts by place, and a signal that is set if all bursts are answered. Answers
        arrive in the order of the bursts, so each belongs to the oldest transfer that still awaits
        an answer. An error marks this transfer in ``failed``.
        """
        pending = Array(Signal(_PENDING_BITS, name=f"pending_{number}")
                        for number in range(QUEUE_DEPTH))
        oldest = Signal(_PLACE_BITS)
        done = self.hbm_write_done
        none = Signal()
        m.d.comb += [done.ready.eq(1),
                     self.crowded.eq(sum(count[-1] for count in pending) != 0),
                     none.eq(sum(count != 0 for count in pending) == 0)]
        for number in reversed(range(QUEUE_DEPTH)):
            candidate = Signal(_PLACE_BITS, name=f"candidate_{number}")
            m.d.comb += candidate.eq(self.at + number)
            with m.If(pending[candidate] != 0):
                m.d.comb += oldest.eq(candidate)
        for number, count in enumerate(pending):
            m.d.sync += count.eq(count + (self.issued & (self.issued_at == number))
                                 - (done.valid & (oldest == number)))
        with m.If(done.valid & done.payload.error):
            m.d.sync += failed[oldest].eq(1)
        return pending, none
