"""Counting semaphores, changed by bundles, by the host, by transfers and by the other core."""

from collections.abc import Callable

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..isa import SEMAPHORES
from ..target import Target
from .interface import SEMAPHORE_BITS, SemaphoreSignal

__all__ = ["BankedSemaphores", "Semaphores", "Storage"]

Storage = tuple[Callable[[Value], Value], Callable[[int, Value, Value, Value], None]]
"""Functions to read and to write semaphores. The first maps an index to the semaphore's value. The
second has the arguments port (0 or 1), enable, index and value; if both ports write the same
semaphore in one cycle, port 1 wins."""


class Semaphores(wiring.Component):
    """The semaphores of a core; all zero after reset.

    A bundle and an addition from outside the program may both change a semaphore in one cycle; the
    bundle's change is made first.

    Attributes
    ----------
    index, amount : In(4), In(32)
        Number of the semaphore, and amount, in the bundle's operation.
    is_wait, is_signal : In(1)
        The bundle's operation is a wait, or a signal.
    issue : In(1)
        The bundle issues in this cycle.
    satisfied : Out(1)
        Semaphore ``index`` is at least ``amount``, so a wait can issue.
    overflow : Out(1)
        Semaphore ``index`` plus ``amount`` exceeds 32 bits.
    external : In(SemaphoreSignal)
        An addition from outside the program: by the host, a transfer or the other core.
    external_overflow : Out(1)
        The sum of a semaphore and ``external`` exceeds 32 bits; the semaphore keeps its value.
    write, write_index, write_value : In(1), In(4), In(32)
        Write by the host; not together with ``issue``.
    read_index, read_value, host_index, host_value : In(4), Out(32), In(4), Out(32)
        Two read ports, each with the number of a semaphore and its value.
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

    def variant(self, target: Target) -> "BankedSemaphores | None":
        """Return an equivalent component that suits the synthesis ``target`` better, or None."""
        return None if target is Target.GENERIC else BankedSemaphores()

    @staticmethod
    def storage(m: Module) -> Storage:
        """Add the registers of the semaphores to ``m``; return functions to read and write them."""
        values = Array(Signal(32, name=f"semaphore_{i}") for i in range(SEMAPHORES))

        def write(port: int, enable: Value, index: Value, value: Value) -> None:
            with m.If(enable):
                m.d.sync += values[index].eq(value)

        return values.__getitem__, write

    def elaborate(self, platform: object) -> Module:
        m = Module()
        read, write = self.storage(m)
        value = Signal(32)
        total = Signal(33)
        changes = Signal()
        changed_index = Signal(SEMAPHORE_BITS)
        changed_value = Signal(32)
        external_value = Signal(32)
        external_total = Signal(33)
        m.d.comb += [
            value.eq(read(self.index)),
            total.eq(value + self.amount),
            self.satisfied.eq(value >= self.amount),
            self.overflow.eq(total[32]),
            self.read_value.eq(read(self.read_index)),
            self.host_value.eq(read(self.host_index)),
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
                                  changed_value, read(self.external.index))),
            external_total.eq(external_value + self.external.amount),
            self.external_overflow.eq(self.external.valid & external_total[32]),
        ]
        write(0, changes, changed_index, changed_value)
        write(1, self.external.valid & ~external_total[32], self.external.index, external_total)
        return m


class BankedSemaphores(Semaphores):
    """`Semaphores` made of memories with one write port each, such as LUT RAM.

    Each of the two write ports has its own bank, a copy of all semaphores. Two bits for each
    semaphore record whether it was written since reset, and which bank holds its newest value.
    """

    @staticmethod
    def storage(m: Module) -> Storage:
        written = Array(Signal(name=f"written_{i}") for i in range(SEMAPHORES))
        newest = Array(Signal(name=f"newest_{i}", reset_less=True) for i in range(SEMAPHORES))
        banks = [Memory(shape=32, depth=SEMAPHORES, init=[]) for _ in range(2)]
        m.submodules.bank_0, m.submodules.bank_1 = banks

        def read(index: Value) -> Value:
            words = []
            for bank in banks:
                port = bank.read_port(domain="comb")
                m.d.comb += port.addr.eq(index)
                words.append(port.data)
            chosen = Mux(newest[index], words[1], words[0])
            return Mux(written[index], chosen, 0)

        def write(number: int, enable: Value, index: Value, value: Value) -> None:
            port = banks[number].write_port()
            m.d.comb += [port.en.eq(enable), port.addr.eq(index), port.data.eq(value)]
            with m.If(enable):
                m.d.sync += [written[index].eq(1), newest[index].eq(number)]

        return read, write
