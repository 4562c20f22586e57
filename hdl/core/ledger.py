"""Counts the weights that a program has pushed to the array, and the results that await a pop.

The limits are architectural: they depend only on the executed bundles, never on the progress of the
array. So a program that exceeds a limit always faults at the same bundle.
"""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..checks import instance
from ..config import Config
from ..isa import SLOTS, PopOp, PushOp, Slot

__all__ = ["ROWS", "WEIGHTS", "ArrayLedger"]

WEIGHTS = (PushOp.WEIGHTS.value, PushOp.WEIGHTS_T.value)
ROWS = (PushOp.ROWS.value, PushOp.ROWS_SWAP.value)
"""`WEIGHTS` and `ROWS`: operation codes of the pushes of weights and of activations."""


class ArrayLedger(wiring.Component):
    """Checks a bundle's push and pop against those of earlier bundles.

    Attributes
    ----------
    push, pop : In(3), In(1)
        Operation codes of the bundle's slots `push` and `pop`.
    issue : In(1)
        The bundle issues in this cycle.
    weight_load : Out(1)
        Fault WEIGHT_LOAD. Weights are pushed while the next tile is complete, or with a different
        operation code than the tile's earlier weights. Or activations are pushed with a swap while
        the next tile is incomplete, or without a swap before the first swap.
    overflow : Out(1)
        Fault FIFO_OVERFLOW: rows are pushed while the array already holds ``result_vregs`` results.
    underflow : Out(1)
        Fault FIFO_UNDERFLOW: a pop while no result is outstanding.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "push": In(SLOTS[Slot.PUSH]["op"]), "pop": In(SLOTS[Slot.POP]["op"]), "issue": In(1),
            "weight_load": Out(1), "overflow": Out(1), "underflow": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        whole, most = self._config.tile_vregs, self._config.result_vregs
        loaded = Signal(range(whole + 1))  # pushes of the next tile
        turned = Signal()  # their rows are columns
        active = Signal()  # a tile has become active
        held = Signal(range(most + 1))  # results: pushes of rows without a pop
        complete = Signal()
        weights = Signal()
        columns = Signal()
        rows = Signal()
        swap = Signal()
        pop = Signal()
        m.d.comb += [
            weights.eq(self.push.matches(*WEIGHTS)),
            columns.eq(self.push == PushOp.WEIGHTS_T.value),
            rows.eq(self.push.matches(*ROWS)),
            swap.eq(self.push == PushOp.ROWS_SWAP.value),
            pop.eq(self.pop == PopOp.POP.value),
            complete.eq(loaded == whole),
            self.weight_load.eq(
                (weights & (complete | ((loaded != 0) & (columns != turned)))) |
                (swap & ~complete) | (rows & ~swap & ~active)),
            # The counts are those before the bundle: its push and pop do not affect each other.
            self.overflow.eq(rows & (held == most)),
            self.underflow.eq(pop & (held == 0)),
        ]
        with m.If(self.issue):
            m.d.sync += held.eq(held + rows - pop)
            with m.If(weights):
                m.d.sync += [loaded.eq(loaded + 1), turned.eq(columns)]
            with m.If(swap):
                m.d.sync += [loaded.eq(0), active.eq(1)]
        return m
