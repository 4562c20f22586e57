"""Counting semaphores, which bundles, the host, transfers and the other core change."""

from amaranth import Array, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..isa import SEMAPHORES
from .interface import SEMAPHORE_BITS, SemaphoreSignal

__all__ = ["Semaphores"]


class Semaphores(wiring.Component):
    """The semaphores of a core; all zero after reset.

    A bundle and an external signal may both change a semaphore in one cycle; the bundle goes first.

    Attributes
    ----------
    index, amount : In(4), In(32)
        Semaphore and amount of the bundle's operation.
    is_wait, is_signal : In(1)
        The operation.
    issue : In(1)
        The bundle issues in this cycle.
    satisfied : Out(1)
        The semaphore is at least ``amount``.
    overflow : Out(1)
        The semaphore plus ``amount`` exceeds 32 bits.
    external : In(SemaphoreSignal)
        A signal from outside the program.
    external_overflow : Out(1)
        ``external`` would exceed 32 bits; it is not added.
    write, write_index, write_value : In(1), In(4), In(32)
        Write by the host; not together with ``issue``.
    read_index, read_value, host_index, host_value : In(4), Out(32), In(4), Out(32)
        Two read ports.
    """

    def __init__(self) -> None:
        super().__init__({
            "index": In(SEMAPHORE_BITS), "amount": In(32), "is_wait": In(1), "is_signal": In(1),
            "issue": In(1), "satisfied": Out(1), "overflow": Out(1),
            "external": In(SemaphoreSignal()), "external_overflow": Out(1),
            "write": In(1), "write_index": In(SEMAPHORE_BITS), "write_value": In(32),
            "read_index": In(SEMAPHORE_BITS), "read_value": Out(32),
            "host_index": In(SEMAPHORE_BITS), "host_value": Out(32),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        values = Array(Signal(32, name=f"semaphore_{i}") for i in range(SEMAPHORES))
        value = Signal(32)
        total = Signal(33)
        changes = Signal()
        changed_index = Signal(SEMAPHORE_BITS)
        changed_value = Signal(32)
        external_value = Signal(32)
        external_total = Signal(33)
        m.d.comb += [
            value.eq(values[self.index]),
            total.eq(value + self.amount),
            self.satisfied.eq(value >= self.amount),
            self.overflow.eq(total[32]),
            self.read_value.eq(values[self.read_index]),
            self.host_value.eq(values[self.host_index]),
        ]
        with m.If(self.write):
            m.d.comb += [changes.eq(1), changed_index.eq(self.write_index),
                         changed_value.eq(self.write_value)]
        with m.Else():
            m.d.comb += [
                changes.eq(self.issue & (self.is_wait | self.is_signal)),
                changed_index.eq(self.index),
                changed_value.eq(Mux(self.is_wait, value - self.amount, total)),
            ]
        m.d.comb += [
            external_value.eq(Mux(changes & (changed_index == self.external.index),
                                  changed_value, values[self.external.index])),
            external_total.eq(external_value + self.external.amount),
            self.external_overflow.eq(self.external.valid & external_total[32]),
        ]
        with m.If(changes):
            m.d.sync += values[changed_index].eq(changed_value)
        with m.If(self.external.valid & ~external_total[32]):
            m.d.sync += values[self.external.index].eq(external_total)
        return m
