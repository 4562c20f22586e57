"""The pins of a sequencer, under a `SequencerChecker`."""

from collections.abc import Callable

import cocotb
from cocotb.handle import HierarchyObject

from verif.benches.clocking import ClockDomain, int_reader, pin, writer
from verif.models.sequencer import SequencerChecker

__all__ = ["SequencerPins"]


class SequencerPins:
    """Drives the inputs that the checker chooses, and lets it check the outputs of every cycle.

    Inputs are driven only when they change: a write costs more than everything else in a cycle.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        The sequencer.
    checker : SequencerChecker
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, checker: SequencerChecker
                 ) -> None:
        self._domain = domain
        self._dut = dut
        self._checker = checker
        self._writers: dict[str, Callable[[int], None]] = {}
        self._numbers: dict[str, Callable[[], int]] = {}
        self._driven: dict[str, int] = {}
        cocotb.start_soon(self._run())

    def _peek(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = int_reader(pin(self._dut, name))
        return self._numbers[name]()

    def _drive(self, cycle: int) -> None:
        for name, value in self._checker.inputs(cycle).items():
            if self._driven.get(name) != value:
                if name not in self._writers:
                    self._writers[name] = writer(pin(self._dut, name))
                self._writers[name](value)
                self._driven[name] = value

    async def _run(self) -> None:
        cycle = 0
        self._drive(cycle)
        while True:
            await self._domain.edge
            if self._domain.resetting:
                self._checker.restart()
            else:
                self._checker.end(cycle, self._peek)
            cycle += 1
            self._drive(cycle)
