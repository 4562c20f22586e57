"""Amaranth's simulator with quicker accesses to whole signals, which are most of a bench's time."""

import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from amaranth.hdl import Elaboratable, Signal
from amaranth.sim import Simulator
from amaranth.sim._async import TestbenchContext
from amaranth.sim.pysim import PySimEngine

from hdl.elaboration.netlist import speed_up

__all__ = ["fast_simulator", "simulate"]


def fast_simulator(design: Elaboratable) -> Simulator:
    """Return a simulator of ``design``; it does what Amaranth's does, in the same order.

    A testbench cannot read or assign signals after the simulator has been freed.
    """
    speed_up()
    return Simulator(design, engine=_Engine)


def simulate(design: Elaboratable, process: Callable[[Any], Awaitable[None]], *,
             clock: bool = True) -> None:
    """Simulate ``design`` until the testbench ``process``, which gets a context, has ended.

    ``clock`` is False if the design has no clock.
    """
    ended = []

    async def whole(ctx: TestbenchContext) -> None:
        await process(ctx)
        ended.append(True)

    simulator = fast_simulator(design)
    if clock:
        simulator.add_clock(1e-6)
    simulator.add_testbench(whole)
    simulator.run()
    assert ended, "the testbench waits for an event that never comes"


class _Engine(PySimEngine):
    """Reads and assigns whole signals at once, and does nothing where nothing has changed."""

    def __init__(self, design: Any) -> None:
        super().__init__(design)
        # By the identity of a signal, which is hashed quickly: the signal, which keeps the identity
        # from being used again, its state, and the least number that does not fit it.
        self._known: dict[int, tuple[Signal, Any, int]] = {}
        self._settled = False

    def _find(self, signal: Signal) -> tuple[Signal, Any, int]:
        shape = signal.shape()
        found = (signal, self._state.slots[self._state.get_signal(signal)],
                 0 if shape.signed else 1 << shape.width)
        self._known[id(signal)] = found
        return found

    def get_value(self, expr: Any) -> int:
        if type(expr) is not Signal:
            return int(super().get_value(expr))
        return int((self._known.get(id(expr)) or self._find(expr))[1].curr)

    def assign(self, signal: Signal, value: int) -> bool:
        """Assign to a signal that no logic drives; return whether that was possible at once."""
        _, state, limit = self._known.get(id(signal)) or self._find(signal)
        if state.is_comb or not 0 <= value < limit:
            return False
        if state.next != value:
            state.next = value
            self._state.pending.add(state)
            self.step_design()
        return True

    def step_design(self) -> None:
        if not self._settled or self._state.pending or self._active_triggers:
            super().step_design()
            self._settled = True

    def advance(self) -> bool:
        # Time has gone on since, so processes may be runnable.
        self._settled = False
        return bool(super().advance())

    def add_async_testbench(self, simulator: Simulator, process: Callable[[Any], Any], *,
                            background: bool) -> None:
        super().add_async_testbench(simulator, process, background=background)
        added = self._testbenches[-1]
        added.coroutine.close()
        # The simulator, which the context cannot do without, keeps both of them.
        added.context = _Context(self._design, weakref.proxy(self), weakref.proxy(added))
        added.reset()

    def __del__(self) -> None:
        # Processes and the states of signals refer to each other through this list; otherwise the
        # design would wait for the garbage collector.
        self._state.slots.clear()


class _Context(TestbenchContext):
    """A testbench's context."""

    def set(self, expr: Any, value: Any) -> None:
        plain = type(expr) is Signal and isinstance(value, int)
        if not (plain and self._engine.assign(expr, int(value))):
            super().set(expr, value)
