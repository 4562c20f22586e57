"""The host's end of a serial line, which sends correct and damaged bytes."""

from collections.abc import Iterable

import cocotb
from cocotb.handle import HierarchyObject

from verif.benches.clocking import ClockDomain, pin

__all__ = ["Line"]


class Line:
    """Sends bytes to the design, and collects the bytes that the design sends.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        The design.
    divisor : int
        Number of cycles that a bit takes.

    Attributes
    ----------
    received : list of int
        Bytes from the design, each with its stop bit.
    """

    def __init__(self, domain: ClockDomain, dut: HierarchyObject, divisor: int) -> None:
        self._domain = domain
        self._divisor = divisor
        self._out, self._in = pin(dut, "line_in"), pin(dut, "line_out")
        self._out.value = 1
        self.received: list[int] = []
        cocotb.start_soon(self._receive())

    async def level(self, value: int, cycles: int) -> None:
        """Drives the line for some cycles."""
        self._out.value = value
        await self._domain.cycles(cycles)

    async def send(self, line: Iterable[int | None], divisor: float | None = None) -> None:
        """Sends bytes; None stands for a byte without its stop bit.

        ``divisor``, the number of cycles that a bit takes, can differ from the design's. If it is
        not an integer, bits differ in length by one cycle, so that their average length is right.
        """
        cycles = divisor or self._divisor
        bits = 0
        for byte in line:
            broken = byte is None
            for value in (0, *((byte or 0) >> bit & 1 for bit in range(8)), int(not broken),
                          *[1] * broken):
                await self.level(value, round((bits + 1) * cycles) - round(bits * cycles))
                bits += 1

    async def _receive(self) -> None:
        while True:
            while self._in.value != 0:
                await self._domain.edge
            await self._domain.cycles(self._divisor // 2)
            bits = []
            for _ in range(9):
                await self._domain.cycles(self._divisor)
                bits.append(int(self._in.value))
            assert bits.pop() == 1, "stop bit is missing"
            self.received.append(sum(bit << place for place, bit in enumerate(bits)))
