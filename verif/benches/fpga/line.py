"""The host's end of a serial line, which sends correct and damaged bytes."""

from collections.abc import Iterable

from cocotb.handle import HierarchyObject

from verif.benches.clocking import ClockDomain, pin, reader

__all__ = ["Line"]

_BITS = 9
"""Number of bits of a byte on the line, with the stop bit, but without the start bit."""


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
        self._out, self._read = pin(dut, "line_in"), reader(pin(dut, "line_out"))
        self._out.value = 1
        self.received: list[int] = []
        self._bits: list[str] = []
        self._wait = 0
        """Cycles until the next bit of a byte is read; 0 between bytes."""
        domain.at_each_edge(self._receive)

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

    def _receive(self) -> None:
        if not self._wait:
            if self._read() == "0":
                self._bits = []
                self._wait = self._divisor // 2 + self._divisor
            return
        self._wait -= 1
        if self._wait:
            return
        self._bits.append(self._read())
        if len(self._bits) < _BITS:
            self._wait = self._divisor
            return
        *data, stop = self._bits
        assert stop == "1", "stop bit is missing"
        self.received.append(int("".join(reversed(data)), 2))
