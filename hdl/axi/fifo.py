"""A FIFO in a memory, for entries that are too wide or too many for registers."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import integer
from ..sram import Sram
from ..tiles import instantiate

__all__ = ["Fifo"]


class Fifo(wiring.Component):
    """A FIFO that accepts and delivers one entry a cycle.

    An entry that enters an empty FIFO is available two cycles later. The memory's read port holds
    the oldest entry, which ``output`` offers. So this entry needs no register, and ``depth`` does
    not count it.

    Parameters
    ----------
    width : int
        Bits of an entry, at least 1.
    depth : int
        Number of entries, without the one that ``output`` offers; a power of two, at least 2.

    Attributes
    ----------
    input, output : In(stream of width), Out(stream of width)
        Entries, which leave in the order in which they entered.

    Raises
    ------
    TypeError, ValueError
        If the width or the depth is out of range.
    """

    def __init__(self, width: int, depth: int) -> None:
        self._width = width = integer("width", width, 1)
        self._depth = depth = integer("depth", depth)
        if depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth must be a power of two of at least 2, not {depth!r}")
        super().__init__({"input": In(stream.Signature(width)),
                          "output": Out(stream.Signature(width))})

    @staticmethod
    def module(width: int, depth: int) -> str:
        """Name of the Verilog module of a FIFO of ``depth`` entries of ``width`` bits."""
        return f"fifo_{width}x{depth}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width, depth = self._width, self._depth
        memory = instantiate(m, platform, "memory", Sram.module(width, depth),
                             lambda: Sram(width, depth))
        bits = ceil_log2(depth)
        # One bit more than an address, so that equal pointers mean empty, not full.
        written = Signal(bits + 1)
        read = Signal(bits + 1)
        stored = Signal(bits + 1)
        write = Signal()
        fetch = Signal()
        m.d.comb += [
            stored.eq(written - read),
            self.input.ready.eq(~stored[bits]),
            write.eq(self.input.valid & self.input.ready),
            fetch.eq((stored != 0) & (self.output.ready | ~self.output.valid)),
            memory.write.eq(write),
            memory.write_address.eq(written[:bits]),
            memory.write_data.eq(self.input.payload),
            memory.read.eq(fetch),
            memory.read_address.eq(read[:bits]),
            self.output.payload.eq(memory.read_data),
        ]
        with m.If(write):
            m.d.sync += written.eq(written + 1)
        with m.If(fetch):
            m.d.sync += [read.eq(read + 1), self.output.valid.eq(1)]
        with m.Elif(self.output.ready):
            m.d.sync += self.output.valid.eq(0)
        return m
