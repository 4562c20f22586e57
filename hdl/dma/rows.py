"""A buffer of two rows, and a module that gathers words into rows."""

from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from ..axi.interface import hbm_row
from ..config import Config
from ..vpu.interface import row_bits
from .interface import BLOCK_BITS, address_bits, check_config, row_words_log2

__all__ = ["RowBuffer", "WordGatherer"]


class RowBuffer(wiring.Component):
    """Buffer of two rows: passes one row a cycle, without combinational paths between its streams.

    Attributes
    ----------
    input, output : In(stream of hbm_row), Out(stream of hbm_row)
        Rows, which leave in the order in which they entered. ``input.ready`` falls only after a row
        has entered.
    clear : In(1)
        Drops the buffered rows; no row may enter in this cycle.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        row = stream.Signature(hbm_row(config))
        super().__init__({"input": In(row), "output": Out(row), "clear": In(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        first = Signal(self.output.payload.shape(), reset_less=True)
        second = Signal(self.output.payload.shape(), reset_less=True)
        waiting = Signal()  # a row waits in `second`
        enters = Signal()
        leaves = Signal()
        m.d.comb += [
            self.input.ready.eq(~waiting),
            enters.eq(self.input.valid & self.input.ready),
            self.output.payload.eq(first),
            leaves.eq(self.output.valid & self.output.ready),
        ]
        with m.If(self.clear):
            m.d.sync += [self.output.valid.eq(0), waiting.eq(0)]
        with m.Elif(leaves | ~self.output.valid):
            m.d.sync += [self.output.valid.eq(waiting | enters), waiting.eq(0)]
            with m.If(waiting):
                m.d.sync += first.eq(second)
            with m.Elif(enters):
                m.d.sync += first.eq(self.input.payload)
        with m.Elif(enters):
            m.d.sync += [second.eq(self.input.payload), waiting.eq(1)]
        return m


class WordGatherer(wiring.Component):
    """Gathers words of scalar memory into rows, one word a cycle.

    Attributes
    ----------
    start, address, rows : In(1), In(address_bits), In(24)
        ``start``: from the next cycle on, gathers ``rows`` rows from ``address`` on. Allowed only
        while not ``busy``, or in the cycle of the last row.
    stop : In(1)
        Requests no more words; but a request that was not granted yet remains until ``granted``.
    busy : Out(1)
        Not all rows have been delivered.
    ask, ask_address, granted : Out(1), Out(address_bits), In(1)
        ``ask`` requests the word at ``ask_address``. If ``granted`` is set, the word is read in
        this cycle and arrives in the next one.
    word : In(32)
        The word read in the previous cycle.
    row_valid, row : Out(1), Out(row_bits)
        A row is complete, and must be accepted in this cycle.
    room : In(1)
        A row can be accepted. The driver must keep ``room`` set, once it is set, until a row is
        delivered.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        bits = address_bits(config)
        super().__init__({
            "start": In(1), "address": In(bits), "rows": In(BLOCK_BITS),
            "stop": In(1), "busy": Out(1),
            "ask": Out(1), "ask_address": Out(bits), "granted": In(1), "word": In(32),
            "row_valid": Out(1), "row": Out(row_bits(config)), "room": In(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        index = Signal(row_words_log2(self._config))  # of the next word to request
        left = Signal(BLOCK_BITS)  # rows of which words are still to be requested
        arrives = Signal()
        completes = Signal()
        refused = Signal()
        gathered = Signal(row_bits(self._config) - 32, reset_less=True)
        m.d.comb += [
            # The last word of a row is requested only if the row will be taken.
            self.ask.eq((left != 0) & (~index.all() | self.room) & (~self.stop | refused)),
            self.row_valid.eq(arrives & completes),
            self.row.eq(Cat(gathered, self.word)),
            self.busy.eq((left != 0) | arrives),
        ]
        m.d.sync += [arrives.eq(self.granted), completes.eq(index.all()),
                     refused.eq(self.ask & ~self.granted)]
        with m.If(arrives):
            m.d.sync += gathered.eq(Cat(gathered, self.word)[32:])
        with m.If(self.start):
            m.d.sync += [self.ask_address.eq(self.address), left.eq(self.rows), index.eq(0)]
        with m.Elif(self.granted):
            m.d.sync += [self.ask_address.eq(self.ask_address + 1), index.eq(index + 1),
                         left.eq(left - index.all())]
        with m.If(self.stop & ~(self.ask & ~self.granted)):
            m.d.sync += left.eq(0)
        return m
