"""A tile's Verilog as expressions: what each register, memory and output takes next.

Yosys only parses, flattens and merges: its optimisations that would split words into bits are left
out, because words are what vector instructions work on. Words are rebuilt from the netlist's bit
numbers here.
"""

import json
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hdl import yosys
from sim.kernel.ir import ALL, WORD, Graph, Node, low

__all__ = ["CELL_TYPES", "PASSES", "Memory", "Read", "Register", "Tile", "Write", "read_tile"]

PASSES = """\
proc
flatten -noscopeinfo
opt_expr
opt_merge
opt_clean
memory_collect
opt_clean
"""
"""Yosys passes between reading Verilog and writing the netlist."""

Bit = int | str


@dataclass(eq=False)
class Register:
    """A register: holds ``leaf``, starts as ``init``, takes ``next`` at the clock edge."""

    name: str
    width: int
    init: int
    leaf: Node
    next: Node


@dataclass(eq=False)
class Write:
    """A write port: where ``enable`` is set, the bits of ``data`` under ``mask`` are stored."""

    enable: Node
    address: Node
    data: Node
    mask: Node | None


@dataclass(eq=False)
class Memory:
    """A memory of ``depth`` words; ``address_bits`` of an address count.

    ``writes`` happen at the clock edge, in order.
    """

    name: str
    width: int
    depth: int
    address_bits: int
    init: list[int]
    writes: list[Write] = field(default_factory=list)


@dataclass(frozen=True)
class Read:
    """What the attribute of a ``read`` node is."""

    memory: Memory


@dataclass
class Tile:
    """A module: one clock, inputs as leaves, registers, memories, and outputs as expressions."""

    name: str
    graph: Graph
    inputs: dict[str, Node]
    widths: dict[str, int]
    registers: list[Register]
    memories: list[Memory]
    outputs: dict[str, Node]


def read_tile(verilog: str, module: str, *, clock: str = "clk", passes: str = PASSES) -> Tile:
    """The module ``module`` of some Verilog, flattened.

    Raises
    ------
    RuntimeError
        If Yosys rejects the source.
    ValueError
        If the module has something that kernels cannot have; the message names the cell.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "tile.v").write_text(verilog)
        run_yosys(f"read_verilog -sv tile.v\nhierarchy -check -top {module}\n{passes}"
                  "write_json tile.json\n", path)
        netlist = json.loads((path / "tile.json").read_text())
    return _Reader(netlist["modules"][module], module, clock).tile()


def run_yosys(script: str, folder: pathlib.Path) -> None:
    """Runs Yosys commands in a folder."""
    yosys.run(script, cwd=folder)


@dataclass(frozen=True)
class _Driver:
    """What drives a bit: bit ``index`` of output ``port`` of a cell, or of an input."""

    cell: str | None
    port: str
    index: int


_FLIP_FLOPS = ("$dff", "$dffe", "$sdff", "$sdffe", "$sdffce")
_CLOSED = ("$not", "$neg", "$pos", "$buf", "$and", "$or", "$xor", "$xnor", "$add", "$sub", "$mul",
           "$mux", "$pmux", "$bmux", "$shl", "$sshl")
"""Cells a low bit of whose output depends on no higher bit of their (data) operands."""
_COMPARES = ("$eq", "$ne", "$eqx", "$nex", "$lt", "$le", "$gt", "$ge")
_SHIFTS = ("$shl", "$sshl", "$shr", "$sshr", "$shift", "$shiftx")
_REDUCTIONS = ("$reduce_and", "$reduce_or", "$reduce_xor", "$reduce_xnor", "$reduce_bool",
               "$logic_not", "$logic_and", "$logic_or")
_READ_PORT = "$memrd"
"""What each read port of a memory becomes: a combinational cell of its own."""
_COMBINATIONAL = frozenset((*_CLOSED, *_COMPARES, *_SHIFTS, *_REDUCTIONS))
_MEMORY = "$mem_v2"
CELL_TYPES = _COMBINATIONAL | {*_FLIP_FLOPS, _MEMORY}
"""Types of cells that a netlist can have."""


def _number(text: str | int) -> int:
    """A parameter: binary digits, of which x and z count as 0."""
    if isinstance(text, int):
        return text
    return int("".join("1" if digit == "1" else "0" for digit in text) or "0", 2)


class _Reader:
    def __init__(self, netlist: dict[str, Any], name: str, clock: str) -> None:
        self._netlist = netlist
        self._name = name
        self._clock = clock
        self._graph = Graph()
        self._cells: dict[str, dict[str, Any]] = netlist["cells"]
        self._drivers: dict[Bit, _Driver] = {}
        self._values: dict[tuple[str | None, str], Node] = {}
        self._used: dict[tuple[str, str], int] = {}
        self._memories: dict[str, Memory] = {}
        self._write_cells: list[tuple[str, dict[str, list[Bit]]]] = []
        self._open: set[str] = set()

    def tile(self) -> Tile:
        clock_bits: list[Bit] = []
        inputs: dict[str, Node] = {}
        widths: dict[str, int] = {}
        for name, port in self._netlist["ports"].items():
            if port["direction"] == "input":
                for index, bit in enumerate(port["bits"]):
                    self._drivers[bit] = _Driver(None, name, index)
                if name == self._clock:
                    clock_bits = port["bits"]
                    continue
                width = len(port["bits"])
                if width > WORD:
                    raise ValueError(f"input {name} of module {self._name} must have at most "
                                     f"{WORD} bits, not {width}")
                inputs[name] = self._graph.leaf(("in", name), width)
                widths[name] = width
                self._values[None, name] = inputs[name]
            elif port["direction"] == "inout":
                raise ValueError(f"port {name} of module {self._name} must not be inout")
        self._read_memories(clock_bits)
        self._index_cells()
        registers = self._registers(clock_bits)
        outputs: dict[str, Node] = {}
        for name, port in self._netlist["ports"].items():
            if port["direction"] == "output":
                widths[name] = len(port["bits"])
                outputs[name] = self._value(port["bits"], f"output {name}")
        for register, cell in registers:
            register.next = self._next(register, cell)
        for memory_name, connections in self._write_cells:
            self._write_port(self._memories[memory_name], connections)
        return Tile(self._name, self._graph, inputs, widths,
                    [register for register, _ in registers], list(self._memories.values()),
                    outputs)

    # Structure

    def _index_cells(self) -> None:
        for name, cell in self._cells.items():
            kind = cell["type"]
            if kind not in (*_COMBINATIONAL, *_FLIP_FLOPS, _READ_PORT):
                raise ValueError(f"cell type {kind} (cell {name} in module {self._name}) cannot be "
                                 "translated to a kernel")
            for port, direction in cell["port_directions"].items():
                for index, bit in enumerate(cell["connections"][port]):
                    if direction == "output":
                        if bit in self._drivers:
                            raise ValueError(f"cell {name} in module {self._name}: its output "
                                             f"{port} has several drivers")
                        self._drivers[bit] = _Driver(name, port, index)
        readers = [port["bits"] for port in self._netlist["ports"].values()
                   if port["direction"] == "output"]
        readers += [bits for cell in self._cells.values()
                    for port, bits in cell["connections"].items()
                    if cell["port_directions"][port] == "input"]
        readers += [bits for _, ports in self._write_cells for bits in ports.values()]
        for bits in readers:
            for bit in bits:
                driver = self._drivers.get(bit)
                if driver is not None and driver.cell is not None:
                    key = driver.cell, driver.port
                    self._used[key] = max(self._used.get(key, 0), driver.index + 1)

    def _registers(self, clock_bits: Sequence[Bit]) -> list[tuple[Register, dict[str, Any]]]:
        init: dict[Bit, str] = {}
        names: dict[Bit, str] = {}
        for name, net in self._netlist["netnames"].items():
            for index, bit in enumerate(net["bits"]):
                if not net.get("hide_name") and (index == 0 or bit not in names):
                    names.setdefault(bit, name)
            if "init" in net["attributes"]:
                digits = net["attributes"]["init"][::-1]
                for index, bit in enumerate(net["bits"]):
                    if index < len(digits) and digits[index] in "01":
                        init[bit] = digits[index]
        registers: list[tuple[Register, dict[str, Any]]] = []
        for name, cell in self._cells.items():
            if cell["type"] not in _FLIP_FLOPS:
                continue
            connections, parameters = cell["connections"], cell["parameters"]
            self._check_clock(name, connections["CLK"], parameters["CLK_POLARITY"], clock_bits)
            bits = connections["Q"]
            if len(bits) > WORD:
                raise ValueError(f"register {names.get(bits[0], name)} of module {self._name} must "
                                 f"have at most {WORD} bits, not {len(bits)}")
            value = sum(int(init.get(bit, "0")) << index for index, bit in enumerate(bits))
            leaf = self._graph.leaf(("reg", len(registers)), len(bits))
            self._values[name, "Q"] = leaf
            registers.append((Register(names.get(bits[0], name), len(bits), value, leaf, leaf),
                              cell))
        return registers

    def _check_clock(self, name: str, bits: Sequence[Bit], polarity: str,
                     clock_bits: Sequence[Bit]) -> None:
        if list(bits) != list(clock_bits) or not _number(polarity):
            raise ValueError(f"cell {name} in module {self._name} must be clocked by the rising "
                             f"edge of {self._clock}")

    def _read_memories(self, clock_bits: Sequence[Bit]) -> None:
        cells = {}
        for name, cell in self._cells.items():
            if cell["type"] != _MEMORY:
                cells[name] = cell
                continue
            parameters, connections = cell["parameters"], cell["connections"]
            where = f"memory {parameters.get('MEMID', name)} of module {self._name}"
            width, size = _number(parameters["WIDTH"]), _number(parameters["SIZE"])
            if width > WORD:
                raise ValueError(f"{where} must have words of at most {WORD} bits, not {width}")
            if _number(parameters["OFFSET"]):
                raise ValueError(f"{where} must begin at address 0, not "
                                 f"{_number(parameters['OFFSET'])}")
            for side, unsupported in (("RD", "RD_CLK_ENABLE"), ("RD", "RD_WIDE_CONTINUATION"),
                                      ("WR", "WR_WIDE_CONTINUATION")):
                if _number(parameters[f"{side}_PORTS"]) and _number(parameters[unsupported]):
                    raise ValueError(f"{where} must not use {unsupported}")
            writes = _number(parameters["WR_PORTS"])
            enabled = _number(parameters["WR_CLK_ENABLE"]) if writes else 0
            if enabled != low(writes):
                raise ValueError(f"{where} must have clocked write ports (WR_CLK_ENABLE)")
            for index in range(writes):
                polarity = str(_number(parameters["WR_CLK_POLARITY"]) >> index & 1)
                self._check_clock(name, connections["WR_CLK"][index:index + 1], polarity,
                                  clock_bits)
            digits = parameters["INIT"][::-1]
            init = [_number(digits[width * index:width * (index + 1)][::-1])
                    for index in range(size)] if set(digits) - set("x") else []
            self._memories[name] = Memory(
                str(parameters.get("MEMID", name)).lstrip("\\"), width, size,
                max(1, (size - 1).bit_length()), init)
            address_bits = _number(parameters["ABITS"])
            for index in range(_number(parameters["RD_PORTS"])):
                cells[f"{name}.read{index}"] = {
                    "type": _READ_PORT, "memory": name, "parameters": {},
                    "port_directions": {"ADDR": "input", "DATA": "output"},
                    "connections": {
                        "ADDR": connections["RD_ADDR"][address_bits * index:][:address_bits],
                        "DATA": connections["RD_DATA"][width * index:][:width]}}
            for index in range(writes):
                self._write_cells.append((name, {
                    "EN": connections["WR_EN"][width * index:][:width],
                    "ADDR": connections["WR_ADDR"][address_bits * index:][:address_bits],
                    "DATA": connections["WR_DATA"][width * index:][:width]}))
        self._cells = cells

    # Values

    def _pieces(self, bits: Sequence[Bit]) -> list[tuple[int, int, int, Node | int]]:
        """Runs of consecutive bits: (position, length, lowest bit in the source, source)."""
        pieces: list[tuple[int, int, int, Node | int]] = []
        position = 0
        while position < len(bits):
            bit = bits[position]
            length = 1
            if isinstance(bit, str):
                pieces.append((position, 1, 0, int(bit == "1")))
            else:
                driver = self._drivers.get(bit)
                if driver is None:
                    pieces.append((position, 1, 0, 0))
                else:
                    while position + length < len(bits) and self._drivers.get(
                            bits[position + length]) == _Driver(driver.cell, driver.port,
                                                                driver.index + length):
                        length += 1
                    pieces.append((position, length, driver.index, self._driven(driver)))
            position += length
        return pieces

    def _driven(self, driver: _Driver) -> Node:
        """Value of a cell's output or of an input."""
        key = driver.cell, driver.port
        if key not in self._values:
            if driver.cell is None:
                raise ValueError(f"the clock {self._clock} of module {self._name} must not be read "
                                 "as data")
            # Chains of cells can be longer than the interpreter's stack.
            self._evaluate(driver.cell)
        return self._values[key]

    def _evaluate(self, root: str) -> None:
        """Computes the outputs of a combinational cell, operands first."""
        pending = [root]
        while pending:
            name = pending[-1]
            if (name, self._output(name)) in self._values:
                pending.pop()
                self._open.discard(name)
                continue
            missing = []
            for bits in self._operands(name):
                for bit in bits:
                    driver = self._drivers.get(bit)
                    if (driver is not None and driver.cell is not None
                            and (driver.cell, driver.port) not in self._values
                            and driver.cell not in missing):
                        missing.append(driver.cell)
            if missing:
                for cell in missing:
                    if cell in self._open:
                        raise ValueError(f"cell {cell} in module {self._name} must not depend on "
                                         "its own output")
                self._open.add(name)
                pending += missing
                continue
            self._values[name, self._output(name)] = self._cell(name, self._cells[name])
            pending.pop()
            self._open.discard(name)

    @staticmethod
    def _output_port(cell: Mapping[str, Any]) -> str:
        return "DATA" if cell["type"] == _READ_PORT else "Y"

    def _output(self, name: str) -> str:
        return self._output_port(self._cells[name])

    def _result_width(self, name: str, cell: Mapping[str, Any]) -> int:
        """Bits of a cell's output that are to be computed."""
        width = len(cell["connections"]["Y"])
        if cell["type"] in _CLOSED:
            width = min(width, self._used.get((name, "Y"), 0))
        return width

    def _operands(self, name: str) -> list[Sequence[Bit]]:
        """What a cell reads."""
        cell = self._cells[name]
        operands = []
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "input":
                operands.append(bits)
        return operands

    def _value(self, bits: Sequence[Bit], what: str) -> Node:
        """A connection as a word, or as a bit if it is one bit wide."""
        if len(bits) == 1:
            return self._bit(bits[0])
        return self._word(bits, what)

    def _bit(self, bit: Bit) -> Node:
        graph = self._graph
        (_, _, index, source), = self._pieces([bit])
        if isinstance(source, int):
            return graph.bit(source)
        return source if source.is_bit else graph.test(source, 1 << index)

    def _word(self, bits: Sequence[Bit], what: str) -> Node:
        """A connection as a word: fields of words and bits, moved into place."""
        graph = self._graph
        fields: dict[tuple[Node, int], int] = {}
        result = graph.const(0)
        for position, length, index, source in self._pieces(bits):
            if isinstance(source, int) and not source:
                continue
            if position + length > WORD:
                raise ValueError(f"{what} in module {self._name} must have at most {WORD} bits, "
                                 f"not {len(bits)}")
            if isinstance(source, int):
                result = graph.or_(result, graph.const(1 << position))
            elif source.is_bit:
                result = graph.or_(result, graph.shl(graph.word(source), position))
            else:
                # Fields that move by the same distance move together.
                key = source, position - index
                fields[key] = fields.get(key, 0) | low(length) << position
        for (source, distance), mask in fields.items():
            moved = graph.and_(graph.shift(source, distance), graph.const(mask))
            result = graph.or_(moved, result)
        return result

    def _extended(self, bits: Sequence[Bit], width: int, signed: bool, what: str) -> Node:
        """A connection as a word, extended or cut to ``width`` bits."""
        graph = self._graph
        if len(bits) >= width:
            return self._to_word(self._value(bits[:width], what) if width else graph.const(0))
        word = self._to_word(self._value(bits, what))
        if not signed:
            return word
        if width > WORD:
            raise ValueError(f"{what} in module {self._name} must have at most {WORD} bits, not "
                             f"{width}")
        sign = graph.const(1 << len(bits) - 1)
        return graph.and_(graph.sub(graph.xor(word, sign), sign), graph.const(low(width)))

    def _to_word(self, value: Node) -> Node:
        return self._graph.word(value) if value.is_bit else value

    # Cells

    def _cell(self, name: str, cell: Mapping[str, Any]) -> Node:
        """Value of a combinational cell's output."""
        graph = self._graph
        kind, connections = cell["type"], cell["connections"]
        what = f"cell {name} of type {kind}"
        if kind == _READ_PORT:
            return self._read_port(cell, what)
        width = self._result_width(name, cell)
        if width == 0:
            return graph.const(0)
        if width > WORD and kind not in (*_COMPARES, *_REDUCTIONS):
            raise ValueError(f"{what} in module {self._name} must have at most {WORD} bits, not "
                             f"{width}")
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
        return graph.and_(self._to_word(result), graph.const(low(width)))

    def _signed(self, cell: Mapping[str, Any], port: str) -> bool:
        return bool(_number(cell["parameters"].get(f"{port}_SIGNED", "0")))

    def _arithmetic(self, kind: str, cell: Mapping[str, Any], width: int, what: str) -> Node:
        graph = self._graph
        connections = cell["connections"]
        a = self._extended(connections["A"], width, self._signed(cell, "A"), what)
        ones = graph.const(low(width))
        if kind in ("$pos", "$buf"):
            return a
        if kind == "$not":
            return graph.not_(graph.test(a, 1)) if width == 1 else graph.xor(a, ones)
        if kind == "$neg":
            return graph.sub(graph.const(0), a)
        b = self._extended(connections["B"], width, self._signed(cell, "B"), what)
        if width == 1:
            x, y = graph.test(a, 1), graph.test(b, 1)
            match kind:
                case "$and" | "$mul":
                    return graph.andb(x, y)
                case "$or":
                    return graph.orb(x, y)
                case "$xnor":
                    return graph.not_(graph.xorb(x, y))
                case _:
                    return graph.xorb(x, y)
        match kind:
            case "$and":
                return graph.and_(a, b)
            case "$or":
                return graph.or_(a, b)
            case "$xor":
                return graph.xor(a, b)
            case "$xnor":
                return graph.xor(graph.xor(a, b), ones)
            case "$add":
                return graph.add(a, b)
            case "$sub":
                return graph.sub(a, b)
            case _:
                return graph.mul(a, b)

    def _compare(self, kind: str, cell: Mapping[str, Any], what: str) -> Node:
        graph = self._graph
        connections = cell["connections"]
        signed = self._signed(cell, "A") and self._signed(cell, "B")
        width = max(len(connections["A"]), len(connections["B"]))
        if kind in ("$eq", "$ne", "$eqx", "$nex"):
            equal = graph.bit(1)
            if signed and width > WORD:
                raise ValueError(f"{what} in module {self._name} must have at most {WORD} bits, "
                                 f"not {width}")
            for begin in range(0, width, WORD):
                part = [self._extended(connections[port][begin:begin + WORD] or ["0"],
                                       min(WORD, width - begin), signed, what) for port in "AB"]
                equal = graph.andb(equal, graph.eq(*part))
            return equal if kind in ("$eq", "$eqx") else graph.not_(equal)
        a, b = (self._extended(connections[port], width, signed, what) for port in "AB")
        if signed:
            # Inverted sign bits order signed numbers like unsigned ones.
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

    def _any(self, bits: Sequence[Bit], what: str) -> Node:
        graph = self._graph
        result = graph.bit(0)
        for begin in range(0, len(bits), WORD):
            value = self._value(bits[begin:begin + WORD], what)
            result = graph.orb(result, value if value.is_bit else graph.test(value))
        return result

    def _reduce(self, kind: str, connections: Mapping[str, Sequence[Bit]], what: str) -> Node:
        graph = self._graph
        a = connections["A"]
        match kind:
            case "$reduce_or" | "$reduce_bool":
                return self._any(a, what)
            case "$logic_not":
                return graph.not_(self._any(a, what))
            case "$logic_and":
                return graph.andb(self._any(a, what), self._any(connections["B"], what))
            case "$logic_or":
                return graph.orb(self._any(a, what), self._any(connections["B"], what))
        result = graph.bit(kind in ("$reduce_and", "$reduce_xnor"))
        for begin in range(0, len(a), WORD):
            value = self._value(a[begin:begin + WORD], what)
            length = len(a[begin:begin + WORD])
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
        graph = self._graph
        connections = cell["connections"]
        signed = self._signed(cell, "A")
        wide = width if kind in _CLOSED else max(width, len(connections["A"]))
        if wide > WORD:
            raise ValueError(f"{what} in module {self._name} must have at most {WORD} bits, not "
                             f"{wide}")
        a = self._extended(connections["A"], wide, signed and kind not in ("$shift", "$shiftx"),
                           what)
        bits = connections["B"]
        negative = self._signed(cell, "B") and kind in ("$shift", "$shiftx")
        count = self._count(bits, what)
        if kind in _CLOSED:
            return graph.shlv(a, count)
        if kind == "$sshr" and signed:
            # Shifting an inverted sign bit along and taking it off again copies the sign.
            sign = graph.const(1 << wide - 1)
            limit = graph.const(wide - 1)
            clamped = graph.sel(graph.ltu(limit, count), limit, count)
            return graph.sub(graph.shrv(graph.xor(a, sign), clamped), graph.shrv(sign, clamped))
        right = graph.shrv(a, count)
        if not negative:
            return right
        ones = graph.const(low(min(len(bits), WORD)))
        opposite = self._count_word(graph.and_(
            graph.sub(graph.const(0), self._extended(bits, min(len(bits), WORD), False, what)),
            ones))
        return graph.sel(self._bit(bits[-1]), graph.shlv(a, opposite), right)

    def _count(self, bits: Sequence[Bit], what: str) -> Node:
        """A shift count, such that whatever shifts everything out is at most 127."""
        graph = self._graph
        if len(bits) <= WORD:
            return self._count_word(self._to_word(self._value(bits, what)))
        excess = self._any(bits[WORD:], what)
        return graph.sel(excess, graph.const(WORD), self._count(bits[:WORD], what))

    def _count_word(self, count: Node) -> Node:
        # Lanes of 16 bits still hold this much.
        if count.bits < 1 << 16:
            return count
        graph = self._graph
        return graph.sel(graph.test(count, ALL - 255), graph.const(255), count)

    def _mux(self, kind: str, cell: Mapping[str, Any], width: int, what: str) -> Node:
        graph = self._graph
        connections = cell["connections"]
        a, s = connections["A"], connections["S"]
        full = len(connections["Y"])

        def part(bits: Sequence[Bit], index: int) -> Node:
            return self._value(bits[full * index:full * index + width], what)

        def choose(bit: Node, x: Node, y: Node) -> Node:
            if x.is_bit and y.is_bit:
                return graph.selb(bit, x, y)
            return graph.sel(bit, self._to_word(x), self._to_word(y))

        if kind == "$bmux":
            values = [part(a, index) for index in range(1 << len(s))]
            for bit in s:
                values = [choose(self._bit(bit), high, lower)
                          for lower, high in zip(values[::2], values[1::2], strict=True)]
            return values[0]
        result = part(a, 0)
        for index in reversed(range(len(s))):
            result = choose(self._bit(s[index]), part(connections["B"], index), result)
        return result

    # State

    def _address(self, memory: Memory, bits: Sequence[Bit], what: str) -> tuple[Node, Node]:
        """A word of an address that lies in the memory, and whether it was so before."""
        graph = self._graph
        inside = graph.bit(1)
        if len(bits) > memory.address_bits:
            inside = graph.not_(self._any(bits[memory.address_bits:], what))
        word = self._to_word(self._value(bits[:memory.address_bits], what))
        if memory.depth & (memory.depth - 1):
            inside = graph.andb(inside, graph.ltu(word, graph.const(memory.depth)))
        return word, inside

    def _read_port(self, cell: Mapping[str, Any], what: str) -> Node:
        graph = self._graph
        memory = self._memories[cell["memory"]]
        address, inside = self._address(memory, cell["connections"]["ADDR"], what)
        data = graph.sel(inside, graph.read(Read(memory), address, memory.width), graph.const(0))
        return graph.test(data, 1) if memory.width == 1 else data

    def _write_port(self, memory: Memory, connections: Mapping[str, Sequence[Bit]]) -> None:
        graph = self._graph
        what = f"write port of memory {memory.name}"
        address, inside = self._address(memory, connections["ADDR"], what)
        data = self._to_word(self._value(connections["DATA"], what))
        bits = connections["EN"]
        mask = None
        enable = self._any(bits, what)
        if len(set(bits)) > 1:
            mask = self._word(bits, what)
            if mask.op == "sel" and [arg.attr for arg in mask.args[1:]] == [low(memory.width), 0]:
                # One enable, spelt out for each bit.
                enable, mask = mask.args[0], None
        enable = graph.andb(enable, inside)
        memory.writes.append(Write(enable, address, data, mask))

    def _next(self, register: Register, cell: Mapping[str, Any]) -> Node:
        """What a register takes at the clock edge."""
        graph = self._graph
        kind, connections, parameters = cell["type"], cell["connections"], cell["parameters"]

        def choose(bit: Node, x: Node, y: Node) -> Node:
            return graph.selb(bit, x, y) if x.is_bit else graph.sel(bit, x, y)

        def control(port: str) -> Node:
            bit = self._bit(connections[port][0])
            return bit if _number(parameters[f"{port}_POLARITY"]) else graph.not_(bit)

        value = self._value(connections["D"], f"register {register.name}")
        if kind == "$dff":
            return value
        hold = register.leaf
        if kind == "$dffe":
            return choose(control("EN"), value, hold)
        reset = _number(parameters["SRST_VALUE"])
        cleared = graph.bit(reset) if hold.is_bit else graph.const(reset)
        if kind == "$sdffe":
            value = choose(control("EN"), value, hold)
        value = choose(control("SRST"), cleared, value)
        if kind == "$sdffce":
            value = choose(control("EN"), value, hold)
        return value
