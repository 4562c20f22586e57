"""Combinational cells of a netlist as expressions of their operands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.kernel.ir import ALL, WIDTH, Graph, Node, low
from sim.kernel.netlist.connections import Bit, Connections

__all__ = ["COMBINATIONAL", "LOW_BITS", "Cells", "parameter"]

LOW_BITS = ("$not", "$neg", "$pos", "$buf", "$and", "$or", "$xor", "$xnor", "$add", "$sub", "$mul",
           "$mux", "$pmux", "$bmux", "$shl", "$sshl")
"""Types of cells in which output bit n depends only on bits 0 to n of the (data) operands."""
_COMPARES = ("$eq", "$ne", "$eqx", "$nex", "$lt", "$le", "$gt", "$ge")
_SHIFTS = ("$shl", "$sshl", "$shr", "$sshr", "$shift", "$shiftx")
_REDUCTIONS = ("$reduce_and", "$reduce_or", "$reduce_xor", "$reduce_xnor", "$reduce_bool",
               "$logic_not", "$logic_and", "$logic_or")
_ARITHMETIC: dict[str, Callable[[Graph, Node, Node], Node]] = {
    "$and": Graph.and_, "$or": Graph.or_, "$xor": Graph.xor, "$xnor": Graph.xor,
    "$add": Graph.add, "$sub": Graph.sub, "$mul": Graph.mul}
_ONE_BIT: dict[str, Callable[[Graph, Node, Node], Node]] = {
    "$and": Graph.andb, "$or": Graph.orb, "$xor": Graph.xorb, "$xnor": Graph.xorb,
    "$add": Graph.xorb, "$sub": Graph.xorb, "$mul": Graph.andb}
"""Functions that compute two-operand cells: `_ARITHMETIC` on numbers, `_ONE_BIT` on bits.

For a ``$xnor`` cell, the function computes the exclusive or, which the caller inverts.
"""
COMBINATIONAL = frozenset((*LOW_BITS, *_COMPARES, *_SHIFTS, *_REDUCTIONS))
"""Types of cells that `Cells` evaluates."""


def parameter(text: str | int) -> int:
    """Integer value of a Yosys cell's parameter: an integer, or binary digits with x and z as 0."""
    if isinstance(text, int):
        return text
    return int("".join("1" if digit == "1" else "0" for digit in text) or "0", 2)


class Cells:
    """Converts combinational cells to expressions.

    Parameters
    ----------
    wires : Connections
        Converts the cells' operands.
    """

    def __init__(self, wires: Connections) -> None:
        self._wires = wires

    def value(self, name: str, cell: Mapping[str, Any], width: int) -> Node:
        """The lowest ``width`` bits of the output of ``cell``; the tile uses no others.

        ``name`` is the cell's name, for messages.

        Raises
        ------
        ValueError
            If an operand or the output has more than 64 bits.
        """
        graph = self._wires.graph
        kind, connections = cell["type"], cell["connections"]
        what = f"cell {name} of type {kind}"
        if width == 0:
            return graph.const(0)
        if kind not in (*_COMPARES, *_REDUCTIONS):
            self._wires.check_width(what, width)
        if kind in _COMPARES:
            result = self._compare(kind, cell, what)
        elif kind in _REDUCTIONS:
            result = self._reduce(kind, connections, what)
        elif kind in _SHIFTS:
            result = self._shift(kind, cell, width, what)
        elif kind in ("$mux", "$pmux", "$bmux"):
            result = self._mux(kind, cell, width, what)
        else:
            result = self._arithmetic(kind, cell, width, what)
        if len(connections["Y"]) == 1:
            return result if result.is_bit else graph.test(result, 1)
        return graph.and_(self._wires.as_number(result), graph.const(low(width)))

    def _signed(self, cell: Mapping[str, Any], port: str) -> bool:
        return bool(parameter(cell["parameters"].get(f"{port}_SIGNED", "0")))

    def _arithmetic(self, kind: str, cell: Mapping[str, Any], width: int, what: str) -> Node:
        graph = self._wires.graph
        connections = cell["connections"]
        a = self._wires.extended(connections["A"], width, self._signed(cell, "A"), what)
        ones = graph.const(low(width))
        if kind in ("$pos", "$buf"):
            return a
        if kind == "$not":
            return graph.not_(graph.test(a, 1)) if width == 1 else graph.xor(a, ones)
        if kind == "$neg":
            return graph.sub(graph.const(0), a)
        b = self._wires.extended(connections["B"], width, self._signed(cell, "B"), what)
        if width == 1:
            result = _ONE_BIT[kind](graph, graph.test(a, 1), graph.test(b, 1))
            return graph.not_(result) if kind == "$xnor" else result
        result = _ARITHMETIC[kind](graph, a, b)
        return graph.xor(result, ones) if kind == "$xnor" else result

    def _compare(self, kind: str, cell: Mapping[str, Any], what: str) -> Node:
        graph = self._wires.graph
        connections = cell["connections"]
        signed = self._signed(cell, "A") and self._signed(cell, "B")
        width = max(len(connections["A"]), len(connections["B"]))
        if kind in ("$eq", "$ne", "$eqx", "$nex"):
            equal = graph.bit(1)
            if signed:
                self._wires.check_width(what, width)
            for begin in range(0, width, WIDTH):
                part = [self._wires.extended(connections[port][begin:begin + WIDTH] or ["0"],
                                             min(WIDTH, width - begin), signed, what)
                        for port in "AB"]
                equal = graph.andb(equal, graph.eq(*part))
            return equal if kind in ("$eq", "$eqx") else graph.not_(equal)
        a, b = (self._wires.extended(connections[port], width, signed, what) for port in "AB")
        if signed:
            # With their sign bits inverted, signed numbers compare like unsigned ones.
            sign = graph.const(1 << width - 1)
            a, b = graph.xor(a, sign), graph.xor(b, sign)
        match kind:
            case "$lt":
                return graph.ltu(a, b)
            case "$le":
                return graph.not_(graph.ltu(b, a))
            case "$gt":
                return graph.ltu(b, a)
            case _:
                return graph.not_(graph.ltu(a, b))

    def _reduce(self, kind: str, connections: Mapping[str, Sequence[Bit]], what: str) -> Node:
        graph = self._wires.graph
        a = connections["A"]
        match kind:
            case "$reduce_or" | "$reduce_bool":
                return self._wires.any(a, what)
            case "$logic_not":
                return graph.not_(self._wires.any(a, what))
            case "$logic_and":
                return graph.andb(self._wires.any(a, what), self._wires.any(connections["B"], what))
            case "$logic_or":
                return graph.orb(self._wires.any(a, what), self._wires.any(connections["B"], what))
        result = graph.bit(kind in ("$reduce_and", "$reduce_xnor"))
        for begin in range(0, len(a), WIDTH):
            value = self._wires.value(a[begin:begin + WIDTH], what)
            length = len(a[begin:begin + WIDTH])
            if kind == "$reduce_and":
                full = value if value.is_bit else graph.eq(value, graph.const(low(length)))
                result = graph.andb(result, full)
            else:
                if not value.is_bit:
                    half = 1 << (length - 1).bit_length() - 1
                    while half:
                        value = graph.xor(value, graph.shr(value, half))
                        half //= 2
                    value = graph.test(value, 1)
                result = graph.xorb(result, value)
        return result

    def _shift(self, kind: str, cell: Mapping[str, Any], width: int, what: str) -> Node:
        graph = self._wires.graph
        connections = cell["connections"]
        signed = self._signed(cell, "A")
        wide = width if kind in LOW_BITS else max(width, len(connections["A"]))
        self._wires.check_width(what, wide)
        a = self._wires.extended(connections["A"], wide,
                                 signed and kind not in ("$shift", "$shiftx"), what)
        bits = connections["B"]
        negative = self._signed(cell, "B") and kind in ("$shift", "$shiftx")
        count = self._count(bits, what)
        if kind in LOW_BITS:
            return graph.shlv(a, count)
        if kind == "$sshr" and signed:
            # Sign extension: invert the sign bit, shift, then subtract the shifted sign bit.
            sign = graph.const(1 << wide - 1)
            limit = graph.const(wide - 1)
            clamped = graph.sel(graph.ltu(limit, count), limit, count)
            return graph.sub(graph.shrv(graph.xor(a, sign), clamped), graph.shrv(sign, clamped))
        right = graph.shrv(a, count)
        if not negative:
            return right
        length = min(len(bits), WIDTH)
        ones = graph.const(low(length))
        opposite = self._clamped(graph.and_(
            graph.sub(graph.const(0), self._wires.extended(bits, length, False, what)), ones))
        return graph.sel(self._wires.bit(bits[-1]), graph.shlv(a, opposite), right)

    def _count(self, bits: Sequence[Bit], what: str) -> Node:
        """The shift distance on the connection ``bits``, as a number.

        A distance of 64 or more may be replaced by another such distance, since the shift's result
        is the same. ``what`` names the cell in messages.
        """
        graph = self._wires.graph
        if len(bits) <= WIDTH:
            return self._clamped(self._wires.number(bits, what))
        excess = self._wires.any(bits[WIDTH:], what)
        return graph.sel(excess, graph.const(WIDTH), self._count(bits[:WIDTH], what))

    def _clamped(self, count: Node) -> Node:
        """``count``, limited to 255 if it can need more than 16 bits, so that lanes stay narrow."""
        if count.bits < 1 << 16:
            return count
        graph = self._wires.graph
        return graph.sel(graph.test(count, ALL - 255), graph.const(255), count)

    def _mux(self, kind: str, cell: Mapping[str, Any], width: int, what: str) -> Node:
        graph = self._wires.graph
        connections = cell["connections"]
        a, s = connections["A"], connections["S"]
        full = len(connections["Y"])

        def part(bits: Sequence[Bit], index: int) -> Node:
            return self._wires.value(bits[full * index:full * index + width], what)

        def choose(bit: Node, x: Node, y: Node) -> Node:
            if x.is_bit and y.is_bit:
                return graph.selb(bit, x, y)
            return graph.sel(bit, self._wires.as_number(x), self._wires.as_number(y))

        if kind == "$bmux":
            values = [part(a, index) for index in range(1 << len(s))]
            for bit in s:
                values = [choose(self._wires.bit(bit), high, lower)
                          for lower, high in zip(values[::2], values[1::2], strict=True)]
            return values[0]
        result = part(a, 0)
        for index in reversed(range(len(s))):
            result = choose(self._wires.bit(s[index]), part(connections["B"], index), result)
        return result
