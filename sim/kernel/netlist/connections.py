"""Converts connections of a netlist, which Yosys writes as lists of bits, to expressions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sim.kernel.ir import WIDTH, Graph, Node, low

__all__ = ["Bit", "Connections", "Driver"]

Bit = int | str
"""A bit of a connection as Yosys writes it: the number of a net, or a constant as text."""


@dataclass(frozen=True)
class Driver:
    """Driver of a net: bit ``index`` of ``port``, an output of ``cell``.

    If ``cell`` is None, ``port`` is an input of the module.
    """

    cell: str | None
    port: str
    index: int


class Connections:
    """Converts connections to expressions.

    Parameters
    ----------
    graph : Graph
        Creates the expressions.
    module : str
        Name of the module, for messages.
    drivers : mapping of Bit to Driver
        Driver of each net; entries may be added later.
    driven : callable
        Returns the value of the whole port of a driver.
    """

    def __init__(self, graph: Graph, module: str, drivers: Mapping[Bit, Driver],
                 driven: Callable[[Driver], Node]) -> None:
        self.graph = graph
        self._module = module
        self._drivers = drivers
        self._driven = driven

    def check_width(self, what: str, width: int) -> None:
        """Checks that a value of ``width`` bits fits in a number.

        Raises
        ------
        ValueError
            If the width is more than 64 bits; ``what`` names the value in the message.
        """
        if width > WIDTH:
            raise ValueError(f"{what} in module {self._module} must have at most {WIDTH} bits, not "
                             f"{width}")

    def value(self, bits: Sequence[Bit], what: str) -> Node:
        """A connection as a number, or as a bit if it is one bit wide.

        ``what`` names the connection in messages.
        """
        if len(bits) == 1:
            return self.bit(bits[0])
        return self.concatenation(bits, what)

    def number(self, bits: Sequence[Bit], what: str) -> Node:
        """The connection ``bits`` as a number; ``what`` names the connection in messages."""
        return self.as_number(self.value(bits, what))

    def as_number(self, value: Node) -> Node:
        """A value as a number: a bit as 0 or 1."""
        return self.graph.from_bit(value) if value.is_bit else value

    def bit(self, bit: Bit) -> Node:
        """One bit of a connection."""
        (_, _, index, source), = self._pieces([bit])
        if isinstance(source, int):
            return self.graph.bit(source)
        return source if source.is_bit else self.graph.test(source, 1 << index)

    def concatenation(self, bits: Sequence[Bit], what: str) -> Node:
        """The connection ``bits`` as a number, with bit i of the number driven by ``bits[i]``.

        Each run of bits from one source is shifted into place; the runs are combined by a bitwise
        or. ``what`` names the connection in messages.
        """
        graph = self.graph
        fields: dict[tuple[Node, int], int] = {}
        result = graph.const(0)
        for position, length, index, source in self._pieces(bits):
            if isinstance(source, int) and not source:
                continue
            if position + length > WIDTH:
                self.check_width(what, len(bits))
            if isinstance(source, int):
                result = graph.or_(result, graph.const(1 << position))
            elif source.is_bit:
                result = graph.or_(result, graph.shl(graph.from_bit(source), position))
            else:
                # Fields that move by the same distance move together.
                key = source, position - index
                fields[key] = fields.get(key, 0) | low(length) << position
        for (source, distance), mask in fields.items():
            moved = graph.and_(graph.shift(source, distance), graph.const(mask))
            result = graph.or_(moved, result)
        return result

    def extended(self, bits: Sequence[Bit], width: int, signed: bool, what: str) -> Node:
        """The connection ``bits`` as a number, truncated or extended to ``width`` bits.

        It is extended by its highest bit if ``signed``, otherwise by zeros. ``what`` names the
        connection in messages.
        """
        graph = self.graph
        if len(bits) >= width:
            return self.number(bits[:width], what) if width else graph.const(0)
        number = self.number(bits, what)
        if not signed:
            return number
        self.check_width(what, width)
        sign = graph.const(1 << len(bits) - 1)
        return graph.and_(graph.sub(graph.xor(number, sign), sign), graph.const(low(width)))

    def any(self, bits: Sequence[Bit], what: str) -> Node:
        """Return a bit that is one if any of ``bits`` is; there may be any number of ``bits``.

        ``what`` names the connection in messages.
        """
        graph = self.graph
        result = graph.bit(0)
        for begin in range(0, len(bits), WIDTH):
            value = self.value(bits[begin:begin + WIDTH], what)
            result = graph.orb(result, value if value.is_bit else graph.test(value))
        return result

    def _pieces(self, bits: Sequence[Bit]) -> list[tuple[int, int, int, Node | int]]:
        """Split ``bits`` into the longest runs of bits that are consecutive in one source.

        A run is (position in ``bits``, length, lowest bit in the source, source). The source of a
        constant bit is the integer 0 or 1.
        """
        pieces: list[tuple[int, int, int, Node | int]] = []
        position = 0
        while position < len(bits):
            bit = bits[position]
            driver = None if isinstance(bit, str) else self._drivers.get(bit)
            length = 1
            if driver is None:
                pieces.append((position, 1, 0, int(bit == "1")))
            else:
                while position + length < len(bits) and self._drivers.get(
                        bits[position + length]) == Driver(driver.cell, driver.port,
                                                           driver.index + length):
                    length += 1
                pieces.append((position, length, driver.index, self._driven(driver)))
            position += length
        return pieces
