"""The cross-lane unit: reads the rows of one vector register and writes those of another.

    chain -> operand register ---> rotator ----> result register -> result chain
                               |-> tree ---------^
    transposer's banks --------^   rotator ----> transposer's banks

With S sublanes, an operation enters the unit as S rows, one a cycle. In this package, these cycles
are called the operation's *slots*; they have nothing to do with the slots of a bundle. The
attributes of a row are fixed in its slot and travel with the row, so later events do not affect its
processing. Operations never overtake each other.
"""

from itertools import pairwise

from amaranth import C, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for, ceil_log2

from ..checks import instance
from ..config import Config
from ..core.interface import XluIssue
from ..isa import MiscOp
from ..tiles import instantiate
from ..vpu.interface import (
    REGISTER_BITS,
    ChainControl,
    RegisterWrite,
    RowShift,
    grant_port,
    row_bits,
)
from .reduce import Reduce, reduce_latency
from .rotate import Rotator, rotation_latency
from .transpose import transpose_banks

__all__ = ["Xlu", "XluControl"]


def _operation(config: Config) -> data.StructLayout:
    """Return the layout of a decoded operation.

    ``d``, ``a``: result and source register. ``reads``: there is a source register. ``writes``:
    there is a result. ``tree``: the rows pass through the tree, otherwise through the rotator.
    ``maximum``: the tree computes the maximum, otherwise the sum. ``hold``: all slots use the same
    source row. ``spread``: lane 0 of the rotated row is copied to all lanes. ``store``: rotated
    rows are written to the transposer. ``fetch``: rows are read from the transposer. ``drop``:
    number of source rows to skip first. ``index``: distance of the rotation in lanes; ``backward``:
    toward lower lanes. With ``store`` or ``fetch``, ``index`` is also the transposer's row or
    column, and is incremented in each slot.
    """
    return data.StructLayout({
        "d": REGISTER_BITS, "a": REGISTER_BITS, "reads": 1, "writes": 1, "tree": 1, "maximum": 1,
        "hold": 1, "spread": 1, "store": 1, "fetch": 1, "backward": 1,
        "drop": bits_for(config.sublanes - 1), "index": ceil_log2(config.lanes),
    })


class _Result(data.Struct):
    """Attributes of a result row that is in the rotator or in the tree.

    ``last``: this is the last row of its operation, which writes register ``d``. ``tree``:
    the row is in the tree. ``spread``: lane 0 of the rotated row is copied to all lanes.
    """

    valid: unsigned(1)
    last: unsigned(1)
    tree: unsigned(1)
    spread: unsigned(1)
    d: unsigned(REGISTER_BITS)


class XluControl(wiring.Component):
    """Accepts operations and decides in which cycles (*slots*) their rows enter the unit.

    One operation can wait while the chain holds the rows of the operation before it. In the
    last slot of the earlier operation, the rows of the waiting one are loaded, so there is no gap
    between the slots of the two.

    Parameters
    ----------
    config : Config
        ``lanes`` and ``sublanes`` are the size of a vector register.

    Attributes
    ----------
    start, ready, free, pending, chain
        As in `Xlu`.
    slot : Out(1)
        A row of ``operation`` enters the unit in this cycle: the southmost row of the chain, or
        column ``index`` of the transposer.
    last : Out(1)
        This is the last slot of ``operation``.
    operation : Out(_operation)
        The operation whose rows are entering the unit, or are being skipped.
    grant : In(1)
        As in `Xlu`.
    blocked : In(1)
        ``operation`` must not have a slot in this cycle. May depend on ``operation``.
    busy : Out(1)
        An operation waits, or has not had all of its slots.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__({
            "start": In(XluIssue()), "ready": Out(1), "free": Out(1),
            "pending": Out(RegisterWrite()), "chain": Out(ChainControl()),
            "slot": Out(1), "last": Out(1), "operation": Out(_operation(config)),
            **grant_port(config), "blocked": In(1), "busy": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        waits = Signal()
        waiting = Signal(_operation(self._config), reset_less=True)
        begin = Signal()
        left = Signal(range(self._config.sublanes + 1))
        active = Signal(_operation(self._config), reset_less=True)
        dropping = Signal()
        accept = Signal()

        begins = waits & ((left == 0) | (self.slot & self.last))
        if self._config.issue_cycles > 1:
            begins &= self.grant
        m.d.comb += [
            dropping.eq((left != 0) & (active.drop != 0)),
            self.operation.eq(active),
            self.slot.eq((left != 0) & (active.drop == 0) & ~self.blocked),
            self.last.eq(left == 1),
            begin.eq(begins),
            self.chain.load.eq(begin & waiting.reads),
            self.chain.source.eq(waiting.a),
            self.chain.shift.eq(dropping | (self.slot & active.reads & ~active.hold)),
            self.ready.eq(~waits | begin),
            # The chain can be loaded at the end of this cycle.
            self.free.eq(~waits & ((left == 0) | (self.slot & self.last))),
            self.pending.valid.eq(waits & waiting.reads & ~begin),
            self.pending.d.eq(waiting.a),
            self.busy.eq(waits | (left != 0)),
            accept.eq(self.start.valid & self.ready),
        ]
        with m.If(accept):
            m.d.sync += [waits.eq(1), waiting.eq(self._decoded(m))]
        with m.Elif(begin):
            m.d.sync += waits.eq(0)
        with m.If(begin):
            m.d.sync += [active.eq(waiting), left.eq(self._config.sublanes)]
        with m.Elif(self.slot):
            m.d.sync += left.eq(left - 1)
            with m.If(active.store | active.fetch):
                m.d.sync += active.index.eq(active.index + 1)
        with m.Elif(dropping):
            m.d.sync += active.drop.eq(active.drop - 1)
        return m

    def _decoded(self, m: Module) -> data.View:
        sublanes = self._config.sublanes
        decoded = Signal(_operation(self._config))
        # Operations that need links are left out, so that all chips have the same unit.
        is_ = {op: Signal(name=f"is_{op.name.lower()}") for op in MiscOp
               if op is not MiscOp.SIGNAL_REMOTE}
        m.d.comb += [bit.eq(self.start.op == op) for op, bit in is_.items()]
        amount = self.start.amount
        grouped = Signal()
        drop = Signal(len(decoded.drop))
        index = Signal(len(decoded.index))
        m.d.comb += [
            grouped.eq(is_[MiscOp.TRANSPOSE_IN] | is_[MiscOp.TRANSPOSE_OUT]),
            # The row that becomes sublane 0 must leave first, so those before it are skipped; the
            # chain recirculates them.
            drop.eq(Mux(is_[MiscOp.ROTATE_SUBLANES] & (amount != 0), sublanes - amount,
                        Mux(is_[MiscOp.BROADCAST_SUBLANE], amount, 0))),
            index.eq(Mux(grouped, amount * sublanes,
                         Mux(is_[MiscOp.ROTATE_LANES] | is_[MiscOp.BROADCAST_LANE], amount, 0))),
        ]
        m.d.comb += [
            decoded.d.eq(self.start.d),
            decoded.a.eq(self.start.a),
            decoded.reads.eq(~is_[MiscOp.TRANSPOSE_OUT]),
            decoded.writes.eq(~is_[MiscOp.TRANSPOSE_IN]),
            decoded.tree.eq(is_[MiscOp.SUM_LANES] | is_[MiscOp.MAX_LANES]),
            decoded.maximum.eq(is_[MiscOp.MAX_LANES]),
            decoded.hold.eq(is_[MiscOp.BROADCAST_SUBLANE]),
            decoded.spread.eq(is_[MiscOp.BROADCAST_LANE]),
            decoded.store.eq(is_[MiscOp.TRANSPOSE_IN]),
            decoded.fetch.eq(is_[MiscOp.TRANSPOSE_OUT]),
            decoded.backward.eq(is_[MiscOp.BROADCAST_LANE] | is_[MiscOp.TRANSPOSE_OUT]),
            decoded.drop.eq(drop),
            decoded.index.eq(index),
        ]
        return decoded


class Xlu(wiring.Component):
    """Cross-lane unit: executes the operations of `hdl.isa.Unit.XLU`.

    An operation waits in the unit until the chain is free. Then its source register is loaded into
    the chain, and may be overwritten from then on. With S sublanes, the operation has S slots in
    successive cycles. The first slot is in the cycle after the load; but a rotation or broadcast of
    sublanes first skips up to S - 1 rows, one a cycle. The first of S result rows follows
    ``latency`` cycles after the first slot, or ``tree_latency`` for sums and maxima. The result
    register is written in the cycle after the last result row. Back-to-back operations take S
    cycles each, and one more for each row that they skip.

    The first slot is delayed if results would otherwise overtake or collide with those of earlier
    sums and maxima. A read of the transposer is delayed until all earlier rows are stored in it.

    Parameters
    ----------
    config : Config
        ``lanes`` and ``sublanes`` are the size of a vector register.

    Attributes
    ----------
    start : In(XluIssue)
        An operation of this unit at issue, which is accepted if ``ready`` is set.
    ready : Out(1)
        An operation can be accepted in this cycle. Does not depend on ``start``.
    free : Out(1)
        An operation accepted in this cycle would read its source register in the next one.
    pending : Out(RegisterWrite)
        A source register that the unit will read in a later cycle, if any.
    chain : Out(ChainControl)
        Control of `Vpu.xlu_chain`, which recirculates its rows. The load of a source register
        follows ``start`` by at least one cycle.
    grant : In(1)
        The chain may be loaded in this cycle; present only if ``issue_cycles`` is 3.
    row : In(32 * lanes)
        The southmost row of the chain, `Vpu.xlu_row`.
    result : Out(RowShift)
        Result rows, to `Vpu.result_chain`.
    write : Out(RegisterWrite)
        Writes the last S result rows to this register at the end of this cycle. The next result row
        may be shifted into the chain in the same cycle.
    busy : Out(1)
        An accepted operation is incomplete.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "start": In(XluIssue()), "ready": Out(1), "free": Out(1),
            "pending": Out(RegisterWrite()),
            "chain": Out(ChainControl()), **grant_port(config), "row": In(row_bits(config)),
            "result": Out(RowShift(config)), "write": Out(RegisterWrite()), "busy": Out(1),
        })

    @property
    def latency(self) -> int:
        """Cycles from the entry of a source row to its result row, by way of the rotator."""
        return rotation_latency(self._config) + 2

    @property
    def tree_latency(self) -> int:
        """Cycles from the entry of a source row to its result row, by way of the tree.

        These are more than ``latency``.
        """
        return reduce_latency(self._config) + 2

    def elaborate(self, platform: object) -> Module:
        m = Module()
        control = instantiate(m, platform, "control", "xlu_control",
                              lambda: XluControl(self._config))
        for name in ("start", "pending", "chain"):
            wiring.connect(m, getattr(control, name), wiring.flipped(getattr(self, name)))
        if self._config.issue_cycles > 1:
            m.d.comb += control.grant.eq(self.grant)
        operand = Signal(row_bits(self._config), reset_less=True)
        with m.If(control.slot & control.operation.reads):
            m.d.sync += operand.eq(self.row)

        rotated, storing = self._rotate(m, platform, control, operand)
        reduced = self._reduce(m, platform, control, operand)
        leaving, in_tree, in_queue = self._queue(m, control)
        self._deliver(m, leaving, rotated, reduced)
        m.d.comb += [
            self.ready.eq(control.ready),
            self.free.eq(control.free),
            control.blocked.eq((control.operation.fetch & storing)
                               | (control.operation.writes & ~control.operation.tree & in_tree)),
            self.busy.eq(control.busy | storing | in_queue | self.result.shift | self.write.valid),
        ]
        return m

    def _rotate(self, m: Module, platform: object, control: XluControl,
                operand: Signal) -> tuple[Signal, Signal]:
        """Instantiate rotator and transposer; return the rotated row, and a busy flag.

        ``operand`` is the row that has entered from the chain. The flag is set while the rotator
        holds rows that will be written to the transposer.
        """
        operation = control.operation
        rotator = instantiate(m, platform, "rotator", "xlu_rotator", lambda: Rotator(self._config))
        banks = instantiate(m, platform, "banks", "xlu_transpose",
                            lambda: transpose_banks(self._config))
        fetched = Signal()
        distance = Signal(len(operation.index))
        m.d.comb += distance.eq(Mux(operation.backward & (operation.index != 0),
                                    self._config.lanes - operation.index, operation.index))
        m.d.sync += rotator.valid.eq(control.slot & ~operation.tree)
        with m.If(control.slot):
            m.d.sync += [fetched.eq(operation.fetch), rotator.distance.eq(distance)]
        # Attributes of the rows to be stored, from the slot to the banks.
        stored = [Signal(len(operation.index), name=f"stored_{stage}", reset_less=True)
                  for stage in range(rotation_latency(self._config) + 1)]
        stores = Signal(len(stored))
        m.d.sync += [
            stores.eq(Cat(control.slot & operation.store, stores[:-1])),
            *(later.eq(row) for row, later in zip([operation.index, *stored[:-1]], stored,
                                                  strict=True)),
        ]
        m.d.comb += [
            rotator.row.eq(Mux(fetched, banks.read_data, operand)),
            banks.lane.eq(Cat(*(C(lane, len(operation.index))
                                for lane in range(self._config.lanes)))),
            banks.read.eq(control.slot & operation.fetch),
            banks.read_column.eq(operation.index),
            banks.write.eq(stores[-1]),
            banks.write_row.eq(stored[-1]),
            banks.write_data.eq(rotator.rotated),
        ]
        storing = Signal()
        m.d.comb += storing.eq(stores.any())
        return rotator.rotated, storing

    def _reduce(self, m: Module, platform: object, control: XluControl,
                operand: Signal) -> Signal:
        """Instantiate the tree that reduces the lanes of a row; return its result."""
        reduce = instantiate(m, platform, "reduce", "xlu_reduce", lambda: Reduce(self._config))
        m.d.sync += [
            reduce.valid.eq(control.slot & control.operation.tree),
            reduce.maximum.eq(control.slot & control.operation.maximum),
        ]
        m.d.comb += reduce.row.eq(operand)
        return reduce.result

    def _queue(self, m: Module, control: XluControl) -> tuple[data.View, Signal, Signal]:
        """Build a shift register for the attributes of the result rows in rotator and tree.

        It has one stage for each cycle of the tree. A row that takes the shorter path, through the
        rotator, enters at a later stage, so that it leaves after the rotator's latency.

        Returns
        -------
        tuple
            The last stage; whether a row is still before the stage at which rows of the rotator
            enter; whether any stage is valid.
        """
        length = reduce_latency(self._config) + 1
        joins = length - 1 - rotation_latency(self._config)
        line = [Signal(_Result, name=f"result_{index}") for index in range(length)]
        in_tree = Signal()
        in_queue = Signal()
        m.d.comb += [
            in_tree.eq(Cat(entry.valid for entry in line[:joins]).any()),
            in_queue.eq(Cat(entry.valid for entry in line).any()),
        ]
        for before, after in pairwise(line):
            m.d.sync += after.eq(before)
        operation = control.operation
        # No collision: no row gets a slot for the rotator while a row of the tree has yet to pass
        # the stage at which rotated rows enter.
        enters = {0: Signal(name="enters_tree"), joins: Signal(name="enters_rotator")}
        m.d.comb += [
            enters[0].eq(control.slot & operation.tree),
            enters[joins].eq(control.slot & operation.writes & ~operation.tree),
        ]
        m.d.sync += line[0].valid.eq(0)
        for index, enter in enters.items():
            entry = line[index]
            with m.If(enter):
                m.d.sync += [entry.valid.eq(1), entry.last.eq(control.last),
                             entry.tree.eq(operation.tree), entry.spread.eq(operation.spread),
                             entry.d.eq(operation.d)]
        return line[-1], in_tree, in_queue

    def _deliver(self, m: Module, leaving: data.View, rotated: Signal, reduced: Signal) -> None:
        """Drive the result chain; after an operation's last row, drive the port ``write``.

        ``leaving``: attributes of the result row. ``rotated``: the row, if it comes from the
        rotator. ``reduced``: the element that fills the row, if it comes from the tree.
        """
        lanes = self._config.lanes
        row = Signal(row_bits(self._config), name="result_row", reset_less=True)
        last = Signal()
        d = Signal(REGISTER_BITS)
        with m.If(leaving.valid):
            with m.If(leaving.tree):
                m.d.sync += row.eq(reduced.replicate(lanes))
            with m.Elif(leaving.spread):
                m.d.sync += row.eq(rotated[:32].replicate(lanes))
            with m.Else():
                m.d.sync += row.eq(rotated)
        m.d.sync += [
            self.result.shift.eq(leaving.valid),
            last.eq(leaving.valid & leaving.last),
            d.eq(leaving.d),
            self.write.valid.eq(last),
            self.write.d.eq(d),
        ]
        m.d.comb += self.result.row.eq(row)
