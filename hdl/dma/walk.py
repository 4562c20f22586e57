"""Computes the addresses of a transfer's blocks, at its source or at its destination."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..config import Config
from .interface import BLOCK_BITS, MAX_BURST, address_bits, check_config, side

__all__ = ["AddressWalk"]


class AddressWalk(wiring.Component):
    """Steps through the blocks of a side, by equal steps or by bursts that stay within a run.

    Attributes
    ----------
    load, side : In(1), In(side)
        ``load`` begins ``side`` in the next cycle, and overrides ``step``.
    bursts : In(1)
        A step is a burst of up to `MAX_BURST` blocks; otherwise it is ``unit`` blocks.
    unit : In(9)
        Blocks of a step if ``bursts`` is not set; must divide the number of blocks of each run.
    step : In(1)
        Advances by ``count`` blocks.
    address : Out(address_bits)
        Address of the current block.
    count : Out(9)
        Number of blocks by which the next ``step`` advances.
    last : Out(1)
        The next step is the last one.
    """

    def __init__(self, config: Config) -> None:
        check_config(config)
        self._config = config
        super().__init__({
            "load": In(1), "side": In(side(config)), "bursts": In(1),
            "unit": In(range(MAX_BURST + 1)), "step": In(1),
            "address": Out(address_bits(config)), "count": Out(range(MAX_BURST + 1)),
            "last": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        start = Signal.like(self.address, reset_less=True)  # of the run
        stride = Signal.like(self.side.stride, reset_less=True)
        run = Signal(BLOCK_BITS, reset_less=True)
        left = Signal(BLOCK_BITS, reset_less=True)
        left_in_run = Signal(BLOCK_BITS, reset_less=True)
        most = Signal(BLOCK_BITS)
        run_ends = Signal()
        next_start = Signal.like(self.address)
        m.d.comb += [
            most.eq(Mux(left < left_in_run, left, left_in_run)),
            self.last.eq(left == self.count),
            run_ends.eq(left_in_run == self.count),
            next_start.eq(start + stride),
        ]
        with m.If(~self.bursts):
            m.d.comb += self.count.eq(self.unit)
        with m.Elif(most > MAX_BURST):
            m.d.comb += self.count.eq(MAX_BURST)
        with m.Else():
            m.d.comb += self.count.eq(most)
        with m.If(self.load):
            m.d.sync += [
                start.eq(self.side.address), self.address.eq(self.side.address),
                stride.eq(self.side.stride), run.eq(self.side.run), left.eq(self.side.blocks),
                left_in_run.eq(self.side.run),
            ]
        with m.Elif(self.step):
            m.d.sync += left.eq(left - self.count)
            with m.If(run_ends):
                m.d.sync += [start.eq(next_start), self.address.eq(next_start),
                             left_in_run.eq(run)]
            with m.Else():
                m.d.sync += [self.address.eq(self.address + self.count),
                             left_in_run.eq(left_in_run - self.count)]
        return m
