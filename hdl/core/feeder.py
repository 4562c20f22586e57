"""Row feeder and row collector: connect vector registers to the array's streams of rows."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..checks import instance
from ..config import Config
from ..vpu.interface import ChainControl, RegisterWrite, grant_port
from .interface import RowPush

__all__ = ["RowCollector", "RowFeeder"]


class RowFeeder(wiring.Component):
    """Sends pushed vector registers to a stream, one row a cycle, without gaps between pushes.

    The feeder controls a chain of the vector unit. It loads a vector register into the chain in one
    cycle, and shifts the chain by one row for each row that the stream accepts. The rows themselves
    do not pass through this component. One push can wait while the chain still holds rows.

    Attributes
    ----------
    push : In(RowPush)
        A push at issue, allowed only while ``ready``. A later cycle loads its vector register.
    ready : Out(1)
        A push may issue in this cycle.
    free : Out(1)
        A push that issues in this cycle would be loaded into the chain in the next one or, if
        ``issue_cycles`` is 3, in the one after that. A bundle that overwrites the register it
        pushes may issue only while ``free``; ``ready`` is not enough.
    pending : Out(RegisterWrite)
        A vector register that the feeder will load in a later cycle, and that must not be
        written before. A push that issues in this cycle is not included yet.
    grant : In(1)
        The chain may be loaded in this cycle; present only if ``issue_cycles`` is 3.
    chain : Out(ChainControl)
        Control of the chain.
    row_valid, row_first, row_flag : Out(1)
        ``row_valid``: the chain's southmost row is offered to the stream. ``row_first``: it is the
        first row of its vector register. ``row_flag``: the ``flag`` of its push.
    row_ready : In(1)
        The stream accepts the row in this cycle, if ``row_valid`` is set.
    idle : Out(1)
        No row and no push is pending.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "push": In(RowPush()), "ready": Out(1), "free": Out(1),
            "pending": Out(RegisterWrite()), "chain": Out(ChainControl()),
            **grant_port(config),
            "row_valid": Out(1), "row_first": Out(1), "row_flag": Out(1), "row_ready": In(1),
            "idle": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        rows = self._config.sublanes
        waiting = Signal()
        source = Signal.like(self.push.source, reset_less=True)
        flag = Signal(reset_less=True)
        left = Signal(range(rows + 1))
        taken = Signal()
        last = Signal()
        load = Signal()
        # The chain can be loaded in the next cycle.
        loads = waiting & ((left == 0) | last)
        if self._config.issue_cycles > 1:
            loads &= self.grant
        m.d.comb += [
            self.row_valid.eq(left != 0),
            taken.eq(self.row_valid & self.row_ready),
            last.eq(taken & (left == 1)),
            load.eq(loads),
            self.chain.load.eq(load),
            self.chain.source.eq(source),
            self.chain.shift.eq(taken),
            self.ready.eq(~waiting | load),
            self.free.eq(~waiting & ((left == 0) | last)),
            # The register may be overwritten at the end of the cycle in which it is loaded.
            self.pending.valid.eq(waiting & ~load),
            self.pending.d.eq(source),
            self.idle.eq(~waiting & (left == 0)),
        ]
        with m.If(self.push.valid):
            m.d.sync += [waiting.eq(1), source.eq(self.push.source), flag.eq(self.push.flag)]
        with m.Elif(load):
            m.d.sync += waiting.eq(0)
        with m.If(load):
            m.d.sync += [left.eq(rows), self.row_first.eq(1), self.row_flag.eq(flag)]
        with m.Elif(taken):
            m.d.sync += [left.eq(left - 1), self.row_first.eq(0)]
        return m


class RowCollector(wiring.Component):
    """Collects rows of a stream into vector registers, one row a cycle, without gaps.

    The collector controls the pop chain. Rows enter the chain as they arrive, even before their
    pop: the rows of one register can wait in the chain. One pop can wait for its rows.

    Attributes
    ----------
    pop : In(RegisterWrite)
        A pop at issue, into vector register ``d``; allowed only while ``ready``.
    ready : Out(1)
        A pop may issue in this cycle.
    row_valid : In(1)
        The stream offers a row.
    row_ready : Out(1)
        The row is accepted in this cycle, if ``row_valid`` is set.
    shift : Out(1)
        The row enters the chain at the end of this cycle.
    write : Out(RegisterWrite)
        Requests a write of the chain's rows to vector register ``d``. The request is held until
        a cycle with ``grant``, at the end of which the register is written.
    grant : In(1)
        The collector may use the write port of the chains in this cycle.
    idle : Out(1)
        No pop is pending.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "pop": In(RegisterWrite()), "ready": Out(1),
            "row_valid": In(1), "row_ready": Out(1), "shift": Out(1),
            "write": Out(RegisterWrite()), "grant": In(1), "idle": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        rows = self._config.sublanes
        waiting = Signal()
        d = Signal.like(self.pop.d, reset_less=True)
        held = Signal(range(rows + 1))
        full = Signal()
        done = Signal()
        m.d.comb += [
            full.eq(held == rows),
            self.write.valid.eq(waiting & full),
            self.write.d.eq(d),
            done.eq(self.write.valid & self.grant),
            self.ready.eq(~waiting | done),
            # A new row may enter at the clock edge at which the register takes the old ones.
            self.row_ready.eq(~full | done),
            self.shift.eq(self.row_valid & self.row_ready),
            self.idle.eq(~waiting),
        ]
        with m.If(self.pop.valid):
            m.d.sync += [waiting.eq(1), d.eq(self.pop.d)]
        with m.Elif(done):
            m.d.sync += waiting.eq(0)
        with m.If(done):
            m.d.sync += held.eq(self.shift)
        with m.Elif(self.shift):
            m.d.sync += held.eq(held + 1)
        return m
