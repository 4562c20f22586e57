"""The host's end of a serial line: bytes, and all that can go wrong with them."""

from collections.abc import Iterable

import cocotb
from cocotb.handle import HierarchyObject

from verif.benches.clocking import ClockDomain, pin

__all__ = ["Line"]


class Line:
    """Sends bytes to the design and collects those that it sends.

    Parameters
    ----------
    domain : ClockDomain
        The clock.
    dut : HierarchyObject
        The design.
    divisor : int
        Cycles of a bit.

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

    async def send(self, line: Iterable[int | None], divisor: int | None = None) -> None:
        """Sends bytes; None: one without its stop bit. ``divisor`` can differ from the design's."""
        cycles = divisor or self._divisor
        for byte in line:
            await self.level(0, cycles)
            for bit in range(8):
                await self.level((byte or 0) >> bit & 1, cycles)
            await self.level(int(byte is not None), cycles)
            if byte is None:
                await self.level(1, cycles)

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
