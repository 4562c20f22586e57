"""Clock, reset and the count of cycles that drivers and monitors share."""

import gc
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.handle import (
    HierarchyObject,
    LogicArrayObject,
    LogicObject,
    PackedObject,
    ValueObjectBase,
    _GPISetAction,
)
from cocotb.simtime import get_sim_time
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge, Timer

__all__ = ["PERIOD_NS", "ClockDomain", "Pin", "config_argument", "int_reader", "pin", "reader",
           "writer"]

_BITS = {0: "0", 1: "1"}
_WORD = 32
_FEW = 4
"""Number of cycles that `ClockDomain.cycles` waits for one by one."""

PERIOD_NS = 10
"""A clock period in simulated time."""

Pin = ValueObjectBase[Any, Any]
"""A port of one bit or more: ``int(pin.value)`` reads it, ``pin.value = number`` drives it."""


def pin(dut: HierarchyObject, name: str) -> Pin:
    """Port ``name`` of the design."""
    handle = getattr(dut, name)
    if not isinstance(handle, ValueObjectBase):
        raise TypeError(f"port {name} must have a value, not be {handle!r}")
    return handle


def reader(pin: Pin) -> Callable[[], str]:
    """A function that reads a port's bits, the highest first, for ports read in every cycle.

    ``pin.value`` makes an object with a type for each bit, which takes ten times as long.
    """
    read: Callable[[], str] = pin._handle.get_signal_val_binstr
    return read


def int_reader(pin: Pin) -> Callable[[], int]:
    """Like `reader`, but returns a number, and raises ValueError if a bit is neither 0 nor 1."""
    read = reader(pin)
    return lambda: int(read(), 2)


def writer(pin: Pin) -> Callable[[int], None]:
    """A function that drives a port with a number, for ports driven in most cycles.

    ``pin.value = number`` examines the phase of the simulation and the type of the number, which
    takes longer than the write.
    """
    handle, deposit = pin._handle, _GPISetAction.DEPOSIT.value
    if isinstance(pin, LogicObject):
        return lambda number: handle.set_signal_val_binstr(deposit, _BITS[number])
    if not isinstance(pin, (LogicArrayObject, PackedObject)):
        raise TypeError(f"port must be of bits, not {pin!r}")
    width = len(pin)

    def write(number: int) -> None:
        if number < 0 or number >> width:
            raise ValueError(f"{pin._name} must be a number of {width} bits, not {number}")
        if width <= _WORD:
            handle.set_signal_val_int(deposit, number)
        else:
            handle.set_signal_val_binstr(deposit, f"{number:0{width}b}")

    return write


def config_argument(name: str) -> str:
    """Value of the simulation's argument ``+name=value``."""
    value = cocotb.plusargs.get(name)
    if not isinstance(value, str):
        raise ValueError(  # noqa: TRY004  # the argument without its value reads as True
            f"plusarg +{name}= must be given a value, not {value!r}")
    return value


class ClockDomain:
    """The design's ``clk`` and synchronous ``rst``.

    A task that awaits ``edge`` reads the ports as they were when the clock rose; what it then
    drives takes effect after that edge. So all that happens at one edge belongs to one cycle. A
    task that awaits ``middle`` reads outputs within a cycle and can still drive inputs of the same
    cycle.

    Parameters
    ----------
    dut : HierarchyObject
        The design.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        clk = dut.clk
        if not isinstance(clk, LogicObject):
            raise TypeError(f"clk must be one bit, not {clk!r}")
        self._clk = clk
        self._rst = pin(dut, "rst")
        self._read_rst = reader(self._rst)
        self._origin = 0
        self._functions: list[Callable[[], None]] = []
        self.edge = RisingEdge(clk)
        self.middle = FallingEdge(clk)

    def start(self) -> None:
        """Starts the clock, which rises at once and runs until the test ends."""
        # Looking for garbage would take a twentieth of the time of a bench.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        self._origin = int(get_sim_time("ns"))
        Clock(self._clk, PERIOD_NS, unit="ns").start()

    def at_each_edge(self, function: Callable[[], None]) -> None:
        """Calls a function at each edge, from now on.

        One task calls all functions, because resuming a task takes longer than most of the
        functions.
        """
        self._functions.append(function)
        if len(self._functions) == 1:
            cocotb.start_soon(self._run())

    async def _run(self) -> None:
        while True:
            await self.edge
            for function in self._functions:
                function()

    async def cycles(self, count: int) -> None:
        """Waits for ``count`` edges."""
        if count <= _FEW:
            await ClockCycles(self._clk, count)
        else:
            # One wait until just before the last edge, because each edge resumes the task.
            phase = (int(get_sim_time("ns")) - self._origin) % PERIOD_NS
            await Timer(count * PERIOD_NS - PERIOD_NS // 2 - phase, "ns")
            await self.edge

    async def reset(self, cycles: int = 2) -> None:
        """Holds the reset for some cycles; returns at the last edge at which it is set."""
        self._rst.value = 1
        await self.cycles(cycles)
        self._rst.value = 0

    @property
    def resetting(self) -> bool:
        """Whether this edge resets the design."""
        return self._read_rst() == "1"

    @property
    def now(self) -> int:
        """Number of the current cycle; only differences have a meaning.

        A cycle begins with an edge, and includes the next ``middle``.
        """
        return (int(get_sim_time("ns")) - self._origin) // PERIOD_NS
