"""Performance counters: each cycle of a core is charged to exactly one cause."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..mxu.mxu import COUNTER_BITS
from .interface import WAITS

__all__ = ["COUNTERS", "CoreCounters"]

COUNTERS = ("mxu_active_cycles", "weight_load_cycles", *(f"{wait}_wait_cycles" for wait in WAITS),
            "idle_cycles")
"""Causes, in order of priority: a cycle is charged to the first one that applies. All counts sum to
``cycles``."""


class CoreCounters(wiring.Component):
    """Counts cycles, in total and by cause.

    Attributes
    ----------
    clear : In(1)
        Clears all counters from the next cycle on; this cycle is not counted.
    x_accepted, w_accepted : In(1)
        The array accepts an activation row or a weight row in this cycle.
    waiting_{wait} : In(1)
        The sequencer's outputs of the same names, one for each of `WAITS`.
    cycles : Out(COUNTER_BITS)
        Cycles since reset or ``clear``.
    {counter} : Out(COUNTER_BITS)
        Cycles charged to this cause, one counter for each of `COUNTERS`.
    """

    def __init__(self) -> None:
        super().__init__({
            "clear": In(1), "x_accepted": In(1), "w_accepted": In(1),
            **{f"waiting_{wait}": In(1) for wait in WAITS},
            "cycles": Out(COUNTER_BITS),
            **{counter: Out(COUNTER_BITS) for counter in COUNTERS},
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        causes = [self.x_accepted, self.w_accepted,
                  *(getattr(self, f"waiting_{wait}") for wait in WAITS)]
        charged = Signal(range(len(COUNTERS)), init=len(COUNTERS) - 1)
        for number in reversed(range(len(causes))):
            with m.If(causes[number]):
                m.d.comb += charged.eq(number)
        counts = [getattr(self, counter) for counter in COUNTERS]
        with m.If(self.clear):
            m.d.sync += [self.cycles.eq(0), *(count.eq(0) for count in counts)]
        with m.Else():
            m.d.sync += self.cycles.eq(self.cycles + 1)
            for number, count in enumerate(counts):
                with m.If(charged == number):
                    m.d.sync += count.eq(count + 1)
        return m
