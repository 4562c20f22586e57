"""The first half of a transfer: requests rows from the source, and collects them."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..axi.interface import hbm_burst, hbm_row
from ..config import Config
from ..tiles import instantiate
from ..vpu.interface import HostSpace, host_read_request, row_bits
from .format import DmaSpace
from .interface import (
    BLOCK_BITS,
    MAX_BURST,
    QUEUE_DEPTH,
    VECTOR_SPACES,
    WORD_SPACES,
    address_bits,
    check_config,
    side,
)
from .rows import WordGatherer
from .walk import AddressWalk

__all__ = ["Collector", "Reader"]

_HOST_SPACES = {DmaSpace.VMEM: HostSpace.VMEM, DmaSpace.VREG: HostSpace.VREG,
                DmaSpace.MASK: HostSpace.MASK}
"""Spaces that are read through this core's vector unit, and the vector unit's code for each."""
assert {space.value for space in _HOST_SPACES} == set(VECTOR_SPACES) - {DmaSpace.OTHER_VMEM}


class Reader(wiring.Component):
    """Requests the rows of one transfer after the other from the HBM and the vector units.

    The reader does not wait for the rows: the rows of the next transfer are requested while earlier
    rows are still arriving. The `Collector` reads scalar memory itself.

    Attributes
    ----------
    valid, source, take : In(1), In(side), Out(1)
        The source of the next transfer; ``take``: the reader begins this transfer in this cycle.
    hbm_read : Out(stream of hbm_burst)
        Read requests to the HBM.
    vmem_read, other_read : Out(stream of host_read_request)
        Read requests to this core's vector unit, and to the other core's.
    asked_rows : Out(9)
        Number of rows of the burst at ``hbm_read``.
    stop : In(1)
        Abandons the current transfer and begins no other; but a request that is offered remains
        until it is accepted.
    idle : Out(1)
        The reader has no transfer.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        request = stream.Signature(host_read_request())
        super().__init__({
            "valid": In(1), "source": In(side(config)), "take": Out(1),
            "hbm_read": Out(stream.Signature(hbm_burst(config))),
            "vmem_read": Out(request), "other_read": Out(request),
            "asked_rows": Out(range(MAX_BURST + 1)), "stop": In(1), "idle": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        walk = instantiate(m, platform, "walk", "dma_address_walk",
                           lambda: AddressWalk(self._config))
        active = Signal()
        space = Signal.like(self.source.space, reset_less=True)
        wants = Signal()
        refused = Signal()
        made = Signal()
        granted = Signal()
        finishes = Signal()
        requests = (self.hbm_read, self.vmem_read, self.other_read)
        m.d.comb += [
            wants.eq(active & (~self.stop | refused)),
            self.hbm_read.valid.eq(wants & (space == DmaSpace.HBM.value)),
            self.other_read.valid.eq(wants & (space == DmaSpace.OTHER_VMEM.value)),
            self.vmem_read.valid.eq(
                wants & space.matches(*(own.value for own in _HOST_SPACES))),
            made.eq(sum(request.valid for request in requests) != 0),
            granted.eq(sum(request.valid & request.ready for request in requests) != 0),
            finishes.eq(granted & walk.last),
            self.take.eq(self.valid & ~self.stop & (~active | finishes)),
            self.idle.eq(~active),
            walk.load.eq(self.take), walk.side.eq(self.source), walk.step.eq(granted),
            walk.bursts.eq(space == DmaSpace.HBM.value), walk.unit.eq(1),
            self.asked_rows.eq(walk.count),
            self.hbm_read.payload.row.eq(walk.address),
            self.hbm_read.payload.more.eq(walk.count - 1),
            self.vmem_read.payload.address.eq(walk.address),
            self.other_read.payload.address.eq(walk.address),
            self.other_read.payload.space.eq(HostSpace.VMEM),
        ]
        with m.Switch(space):
            for own, name in _HOST_SPACES.items():
                with m.Case(own.value):
                    m.d.comb += self.vmem_read.payload.space.eq(name)
        m.d.sync += refused.eq(made & ~granted)
        with m.If(self.take):
            m.d.sync += [active.eq(~self.source.space.matches(*WORD_SPACES)),
                         space.eq(self.source.space)]
        with m.Elif(finishes | (self.stop & ~(made & ~granted))):
            m.d.sync += active.eq(0)
        return m


class Collector(wiring.Component):
    """Collects the requested rows in the order of the transfers, each from its source.

    Attributes
    ----------
    valid, source, rows, at, take : In(1), In(side), In(24), In(2), Out(1)
        The source, the rows and the place in the queue of the next transfer; ``take``: the
        collector begins this transfer in this cycle.
    hbm_rows, vmem_rows, other_rows : In(stream of hbm_row), In(stream of row_bits) twice
        Rows that the `Reader` requested.
    asked_hbm, asked_rows, asked_vmem, asked_other : In(1), In(9), In(1), In(1)
        Requests of the `Reader` in this cycle: a burst of ``asked_rows`` rows from the HBM, a
        vector of this core, or a vector of the other core.
    ask, ask_address, granted, word : Out(1), Out(address_bits), In(1), In(32)
        Reads of scalar memory, see `WordGatherer`.
    output : Out(stream of hbm_row)
        The rows, to a `hdl.dma.rows.RowBuffer`.
    failed, failed_at : Out(1), Out(2)
        A row with an error leaves in this cycle; ``failed_at``: its transfer's place in the queue.
    stop : In(1)
        Abandons the current transfer and begins no other. Rows that arrive are dropped.
    idle : Out(1)
        All requested rows have arrived.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        row = stream.Signature(row_bits(config))
        bits = address_bits(config)
        super().__init__({
            "valid": In(1), "source": In(side(config)), "rows": In(BLOCK_BITS),
            "at": In(exact_log2(QUEUE_DEPTH)), "take": Out(1),
            "hbm_rows": In(stream.Signature(hbm_row(config))), "vmem_rows": In(row),
            "other_rows": In(row),
            "asked_hbm": In(1), "asked_rows": In(range(MAX_BURST + 1)), "asked_vmem": In(1),
            "asked_other": In(1),
            "ask": Out(1), "ask_address": Out(bits), "granted": In(1), "word": In(32),
            "output": Out(stream.Signature(hbm_row(config))),
            "failed": Out(1), "failed_at": Out(exact_log2(QUEUE_DEPTH)),
            "stop": In(1), "idle": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        gatherer = instantiate(m, platform, "gatherer", "dma_word_gatherer",
                               lambda: WordGatherer(self._config))
        active = Signal()
        space = Signal.like(self.source.space, reset_less=True)
        left = Signal(BLOCK_BITS, reset_less=True)
        moves = Signal()
        finishes = Signal()
        m.d.comb += [
            moves.eq(self.output.valid & self.output.ready),
            finishes.eq(moves & (left == 1)),
            self.take.eq(self.valid & ~self.stop & (~active | finishes)),
            gatherer.start.eq(self.take & (self.source.space == DmaSpace.SMEM.value)),
            gatherer.address.eq(self.source.address), gatherer.rows.eq(self.rows),
            gatherer.stop.eq(self.stop), gatherer.room.eq(self.output.ready),
            gatherer.granted.eq(self.granted), gatherer.word.eq(self.word),
            self.ask.eq(gatherer.ask), self.ask_address.eq(gatherer.ask_address),
            self.failed.eq(moves & self.output.payload.error),
        ]
        with m.If(self.take):
            m.d.sync += [active.eq(1), space.eq(self.source.space), left.eq(self.rows),
                         self.failed_at.eq(self.at)]
        with m.Else():
            m.d.sync += left.eq(left - moves)
            with m.If(finishes | self.stop):
                m.d.sync += active.eq(0)
        self._choose(m, active & ~self.stop, space, gatherer)
        m.d.comb += self.idle.eq(~gatherer.busy & self._outstanding(m))
        return m

    def _choose(self, m: Module, active: Value, space: Signal,
                gatherer: WordGatherer) -> None:
        """Pass on the rows of the transfer's source; with ``stop``, drop rows from all sources.

        ``active``: there is a transfer, whose source is in ``space``. ``gatherer`` gives the rows
        of scalar memory.
        """
        for rows in (self.hbm_rows, self.vmem_rows, self.other_rows):
            m.d.comb += rows.ready.eq(self.stop)
        with m.If(active), m.Switch(space):
            with m.Case(DmaSpace.HBM.value):
                m.d.comb += [self.output.valid.eq(self.hbm_rows.valid),
                             self.output.payload.eq(self.hbm_rows.payload),
                             self.hbm_rows.ready.eq(self.output.ready)]
            with m.Case(DmaSpace.OTHER_VMEM.value):
                m.d.comb += [self.output.valid.eq(self.other_rows.valid),
                             self.output.payload.data.eq(self.other_rows.payload),
                             self.other_rows.ready.eq(self.output.ready)]
            with m.Case(DmaSpace.SMEM.value):
                m.d.comb += [self.output.valid.eq(gatherer.row_valid),
                             self.output.payload.data.eq(gatherer.row)]
            with m.Default():
                m.d.comb += [self.output.valid.eq(self.vmem_rows.valid),
                             self.output.payload.data.eq(self.vmem_rows.payload),
                             self.vmem_rows.ready.eq(self.output.ready)]

    def _outstanding(self, m: Module) -> Value:
        """Count the outstanding rows; return a value that is 1 while none is outstanding."""
        none = []
        register = self._config.sublanes
        for name, asked in (("hbm", Mux(self.asked_hbm, self.asked_rows, 0)),
                            ("vmem", Mux(self.asked_vmem, register, 0)),
                            ("other", Mux(self.asked_other, register, 0))):
            rows = getattr(self, f"{name}_rows")
            count = Signal(BLOCK_BITS + exact_log2(QUEUE_DEPTH), name=f"{name}_outstanding")
            m.d.sync += count.eq(count + asked - (rows.valid & rows.ready))
            none.append(count == 0)
        return none[0] & none[1] & none[2]
