"""Keeps the fault of a bundle, where bundles are examined in one cycle and issue in a later one."""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..isa import Fault
from .interface import FAULT_BITS

__all__ = ["Examination"]


class Examination(wiring.Component):
    """Whether a bundle has been examined for faults, and the fault that was found.

    Once a bundle's operands are final, they stay as they are until it issues. Only a semaphore can
    change, by a signal from outside: a bundle that adds to one is then examined again.

    Attributes
    ----------
    valid : In(1)
        There is a bundle.
    clear : In(1)
        Nothing that it needs is outstanding, so its operands are final.
    issue : In(1)
        It issues in this cycle.
    changed : In(1)
        A semaphore changes in this cycle, and the bundle adds to one.
    fault : In(FAULT_BITS)
        The fault that its operands cause.
    examined : Out(1)
        ``known`` is the bundle's fault.
    known : Out(FAULT_BITS)
        The fault found; `Fault.ILLEGAL` before.
    keep, late : Out(1)
        To `ScalarOperands`: the examination reads the operands that it needs, and a later cycle the
        others.
    """

    def __init__(self) -> None:
        super().__init__({
            "valid": In(1), "clear": In(1), "issue": In(1), "changed": In(1),
            "fault": In(FAULT_BITS), "examined": Out(1), "known": Out(FAULT_BITS),
            "keep": Out(1), "late": Out(1),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        found = Signal(FAULT_BITS, reset_less=True)
        m.d.sync += self.examined.eq((self.examined | self.clear) & self.valid & ~self.issue
                                     & ~self.changed)
        with m.If(self.clear):
            m.d.sync += found.eq(self.fault)
        m.d.comb += [
            self.keep.eq(self.clear & ~self.examined),
            self.late.eq(self.examined | ~self.valid),
            self.known.eq(Mux(self.examined, found, Fault.ILLEGAL.value)),
        ]
        return m
