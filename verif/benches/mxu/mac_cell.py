"""Driver, monitor and model of the array's cell, cycle by cycle.

The model follows the docstring of `hdl.mxu.cell.MacCell`. In both, data whose
valid bit is not set are undefined. But while the cell is idle, no output changes, defined or not.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import cocotb
import numpy as np
from cocotb.handle import HierarchyObject

from golden.numerics import bits, from_bits, mac
from hdl.config import Config
from verif.benches.clocking import ClockDomain, config_argument, int_reader, pin
from verif.models.in_order import InOrderChecker

__all__ = ["CellBench", "CellDriver", "CellInputs", "CellModel", "CellMonitor", "CellOutputs"]


@dataclass(frozen=True)
class CellInputs:
    """Inputs of the cell in one cycle.

    For `CellDriver`, ``p`` is the partial sum that belongs to ``x``, even if the cell needs it
    later.
    """

    rst: int = 0
    x: int = 0
    x_valid: int = 0
    swap: int = 0
    w_north: int = 0
    w_north_valid: int = 0
    w_west: int = 0
    w_west_valid: int = 0
    p: int = 0

    @property
    def active(self) -> bool:
        """Whether the cell has something to do."""
        return bool(self.x_valid or self.swap or self.w_north_valid or self.w_west_valid)


@dataclass(frozen=True)
class CellOutputs:
    """Outputs of the cell in one cycle."""

    x_east: int
    x_valid_east: int
    swap_east: int
    w_next: int
    w_south_valid: int
    w_east_valid: int
    p_south: int
    p_valid: int

    def promised(self) -> "CellOutputs":
        """The same outputs, but data whose valid bit is not set are zero."""
        return replace(
            self, x_east=self.x_east if self.x_valid_east else 0,
            w_next=self.w_next if self.w_south_valid or self.w_east_valid else 0,
            p_south=self.p_south if self.p_valid else 0)


_INPUTS = tuple(field.name for field in fields(CellInputs))
_OUTPUTS = tuple(field.name for field in fields(CellOutputs))


class CellDriver:
    """Drives all inputs, cycle by cycle; the valid bits are zero when nothing is queued.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        The cell.
    config : Config
        Determines how many cycles after ``x`` the cell needs ``p``.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, config: Config) -> None:
        self._domain = domain
        self._pins = {name: pin(dut, name) for name in _INPUTS}
        self._queue: deque[CellInputs] = deque()
        self._sums = deque([0] * (config.mac_latency - config.row_skew))
        self._driven: dict[str, int] = {}
        self._drive(CellInputs())
        cocotb.start_soon(self._run())

    @property
    def idle(self) -> bool:
        """Whether all inputs that were queued have been driven."""
        return not self._queue

    def send(self, inputs: Iterable[CellInputs]) -> None:
        """Queues the inputs of some cycles."""
        self._queue.extend(inputs)

    async def _run(self) -> None:
        while True:
            await self._domain.edge
            if self._queue:
                self._drive(self._queue.popleft())
            else:
                self._drive(CellInputs())

    def _drive(self, inputs: CellInputs) -> None:
        self._sums.append(inputs.p)
        values = {**vars(inputs), "p": self._sums.popleft()}
        for name, value in values.items():
            if self._driven.get(name) != value:
                self._pins[name].value = value
        self._driven = values


class CellMonitor:
    """Reports all ports at every clock edge.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        The cell.
    on_cycle : callable
        Called with the inputs and the outputs of each cycle.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject,
                 on_cycle: Callable[[CellInputs, CellOutputs], None]) -> None:
        self._domain = domain
        self._inputs = [int_reader(pin(dut, name)) for name in _INPUTS]
        self._outputs = [int_reader(pin(dut, name)) for name in _OUTPUTS]
        self._on_cycle = on_cycle
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        while True:
            await self._domain.edge
            self._on_cycle(CellInputs(*(read() for read in self._inputs)),
                           CellOutputs(*(read() for read in self._outputs)))


class CellModel:
    """The cell, one cycle at a time.

    Parameters
    ----------
    config : Config
        ``mac_latency`` is the delay of results.

    Attributes
    ----------
    filled : bool
        Whether the cell has a next weight.
    """

    def __init__(self, config: Config) -> None:
        self._latency = config.mac_latency
        self._lag = config.mac_latency - config.row_skew
        self._next = 0
        self._quiet = 0
        self._reset()

    def _reset(self) -> None:
        self.filled = False
        self._weight: int | None = None
        # The operands of each cycle, newest first, and the sums of those whose p has come.
        self._operands: deque[tuple[int, int] | None] = deque([None] * (self._lag + 1))
        self._sums: deque[int | None] = deque([None] * (self._latency - self._lag))

    @property
    def holding(self) -> bool:
        """Whether the outputs must not have changed: the cell has been idle for long enough."""
        return self._quiet > self._latency

    def step(self, inputs: CellInputs) -> CellOutputs:
        """Steps the cell by a cycle; returns the `promised` outputs of the next cycle."""
        self._quiet = 0 if inputs.rst or inputs.active else self._quiet + 1
        arrives = inputs.w_north_valid or inputs.w_west_valid
        assert not (inputs.w_north_valid and inputs.w_west_valid), "weights from both sides"
        weight = inputs.w_west if inputs.w_west_valid else inputs.w_north

        if inputs.rst:
            self._reset()
            return CellOutputs(*[0] * len(_OUTPUTS))

        operands: tuple[int, int] | None = None
        if inputs.x_valid:
            assert self._weight is not None, "an activation before the first weight"
            operands = inputs.x, self._weight
        self._operands.pop()
        self._operands.appendleft(operands)
        self._sums.pop()
        oldest = self._operands[-1]
        self._sums.appendleft(None if oldest is None else _sum(inputs.p, *oldest))

        passed = arrives and self.filled
        if arrives and not self.filled:
            assert not inputs.swap, "a weight beside a swap that has none to make active"
            self._next, self.filled = weight, True
        elif inputs.swap:
            assert self.filled, "a swap without a next weight"
            self._weight, self.filled = self._next, False
        result = self._sums[-1]
        return CellOutputs(
            x_east=inputs.x, x_valid_east=inputs.x_valid, swap_east=inputs.swap, w_next=weight,
            w_south_valid=int(passed and inputs.w_north_valid),
            w_east_valid=int(passed and inputs.w_west_valid),
            p_south=result or 0, p_valid=int(result is not None)).promised()


def _sum(acc: int, x: int, w: int) -> int:
    """Bit pattern of ``acc + x * w``."""
    return int(bits(mac(from_bits(np.uint32(acc)), from_bits(np.uint16(x)),
                        from_bits(np.uint16(w)))))


class CellBench:
    """A cell with driver, monitor, model and a checker of every output in every cycle.

    Attributes
    ----------
    results : list of int
        Patterns of the results, in order.
    held : int
        Cycles in which no output was allowed to change.
    """

    def __init__(self, dut: HierarchyObject) -> None:
        self.config = Config.preset(config_argument("preset"),
                                    mac_latency=int(config_argument("mac_latency")))
        self.results: list[int] = []
        self.held = 0
        self._domain = ClockDomain(dut)
        self._driver = CellDriver(self._domain, dut, self.config)
        self._model = CellModel(self.config)
        self._checker: InOrderChecker[CellOutputs] = InOrderChecker("cycle")
        self._before: CellOutputs | None = None
        CellMonitor(self._domain, dut, self._observe)
        self._domain.start()
        # Before the first reset the outputs mean nothing.
        self._driver.send([CellInputs(rst=1)] * 2)

    def _observe(self, inputs: CellInputs, outputs: CellOutputs) -> None:
        if not self._checker.empty:
            self._checker.check(outputs.promised())
            if self._model.holding:
                assert outputs == self._before, (
                    f"the idle cell went from {self._before} to {outputs}")
                self.held += 1
            if outputs.p_valid:
                self.results.append(outputs.p_south)
        elif not inputs.rst:
            return
        self._before = outputs
        self._checker.expect(self._model.step(inputs))

    async def run(self, inputs: Iterable[CellInputs]) -> None:
        """Drives the inputs of some cycles, and waits until the cell has been idle for a while."""
        self._driver.send(inputs)
        while not self._driver.idle:
            await self._domain.edge
        await self._domain.cycles(self.config.mac_latency + 4)

    def finish(self, results: int) -> None:
        """Checks the number of results; their values have been checked already."""
        assert self._checker.checked > 0
        assert len(self.results) == results, f"{len(self.results)} results, not {results}"
