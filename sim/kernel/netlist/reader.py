"""Reads a tile's Verilog: Yosys makes a netlist, from which registers and expressions are rebuilt.

Yosys only parses and flattens the Verilog and merges equal cells. Its optimisations that would
split numbers into bits are left out, because vector instructions compute whole numbers. A netlist
lists the nets of single bits; `sim.kernel.netlist.connections` joins them to numbers again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hdl import yosys
from sim.kernel.ir import WIDTH, Graph, Node, low
from sim.kernel.netlist.cells import COMBINATIONAL, LOW_BITS, Cells, parameter
from sim.kernel.netlist.connections import Bit, Connections, Driver
from sim.kernel.netlist.tile import Memory, Read, Register, Tile, Write

__all__ = ["CELL_TYPES", "PASSES", "read_tile"]

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

def read_tile(verilog: str, module: str, *, clock: str = "clk", passes: str = PASSES) -> Tile:
    """Reads the module called ``module`` from Verilog text, and flattens it.

    ``clock`` is the name of its clock input. ``passes`` are the Yosys commands between reading the
    Verilog and writing the netlist.

    Raises
    ------
    RuntimeError
        If Yosys rejects the source.
    ValueError
        If the module contains something that kernels do not support; the message names it.
    """
    netlist = json.loads(yosys.netlist(verilog, module, passes))
    return _Reader(netlist["modules"][module], module, clock).tile()


_FLIP_FLOPS = ("$dff", "$dffe", "$sdff", "$sdffe", "$sdffce")
_MEMORY = "$mem_v2"
_READ_PORT = "$memrd"
"""Type of the combinational cell that the reader makes of each read port of a memory."""
CELL_TYPES = COMBINATIONAL | {*_FLIP_FLOPS, _MEMORY}
"""Types of cells that a netlist may contain."""


class _Reader:
    """Reads one module of a netlist.

    Inputs, registers and memories first become leaves of expressions. Then the outputs and the
    registers' next values are evaluated, and only those cells on which they depend.
    """

    def __init__(self, netlist: dict[str, Any], name: str, clock: str) -> None:
        self._netlist = netlist
        self._name = name
        self._clock = clock
        self._clock_bits: list[Bit] = []
        self._graph = Graph()
        self._cells: dict[str, dict[str, Any]] = netlist["cells"]
        self._drivers: dict[Bit, Driver] = {}
        self._values: dict[tuple[str | None, str], Node] = {}
        self._used: dict[tuple[str, str], int] = {}
        self._memories: dict[str, Memory] = {}
        self._write_cells: list[tuple[str, dict[str, list[Bit]]]] = []
        self._open: set[str] = set()
        self._wires = Connections(self._graph, name, self._drivers, self._driven)
        self._evaluator = Cells(self._wires)

    def tile(self) -> Tile:
        inputs = self._inputs()
        self._cells = self._without_memories()
        self._index_drivers()
        self._index_uses()
        registers = self._registers()
        outputs = {name: self._wires.value(bits, f"output {name}")
                   for name, bits in self._ports("output")}
        for register, cell in registers:
            register.next = self._next(register, cell)
        for memory_name, connections in self._write_cells:
            self._write_port(self._memories[memory_name], connections)
        widths = {name: len(bits) for name, bits in (*self._ports("input"), *self._ports("output"))
                  if name != self._clock}
        return Tile(self._name, self._graph, inputs, widths,
                    [register for register, _ in registers], list(self._memories.values()),
                    outputs)

    # Structure

    def _ports(self, direction: str) -> list[tuple[str, list[Bit]]]:
        return [(name, port["bits"]) for name, port in self._netlist["ports"].items()
                if port["direction"] == direction]

    def _inputs(self) -> dict[str, Node]:
        """Make an expression leaf for each input except the clock; return the leaves by name."""
        for name, _ in self._ports("inout"):
            raise ValueError(f"port {name} of module {self._name} must not be inout")
        inputs = {}
        for name, bits in self._ports("input"):
            for index, bit in enumerate(bits):
                self._drivers[bit] = Driver(None, name, index)
            if name == self._clock:
                self._clock_bits = bits
                continue
            if len(bits) > WIDTH:
                raise ValueError(f"input {name} of module {self._name} must have at most {WIDTH} "
                                 f"bits, not {len(bits)}")
            inputs[name] = self._values[None, name] = self._graph.leaf(("in", name), len(bits))
        return inputs

    def _index_drivers(self) -> None:
        """Finds the cell output that drives each net."""
        for name, cell in self._cells.items():
            kind = cell["type"]
            if kind not in (*COMBINATIONAL, *_FLIP_FLOPS, _READ_PORT):
                raise ValueError(f"cell type {kind} (cell {name} in module {self._name}) cannot be "
                                 "translated to a kernel")
            for port, direction in cell["port_directions"].items():
                if direction != "output":
                    continue
                for index, bit in enumerate(cell["connections"][port]):
                    if bit in self._drivers:
                        raise ValueError(f"cell {name} in module {self._name}: its output {port} "
                                         "has several drivers")
                    self._drivers[bit] = Driver(name, port, index)

    def _index_uses(self) -> None:
        """Counts the low bits of each cell output, up to the highest bit that is read."""
        readers = [bits for _, bits in self._ports("output")]
        readers += [bits for name in self._cells for bits in self._operands(name)]
        readers += [bits for _, ports in self._write_cells for bits in ports.values()]
        for bits in readers:
            for bit in bits:
                driver = self._drivers.get(bit)
                if driver is not None and driver.cell is not None:
                    key = driver.cell, driver.port
                    self._used[key] = max(self._used.get(key, 0), driver.index + 1)

    def _registers(self) -> list[tuple[Register, dict[str, Any]]]:
        """Make a register for each flip-flop cell; return pairs (register, cell).

        The register's next value is its own value until `_next` reads it from the cell.
        """
        init, names = self._nets()
        registers: list[tuple[Register, dict[str, Any]]] = []
        for name, cell in self._cells.items():
            if cell["type"] not in _FLIP_FLOPS:
                continue
            connections, parameters = cell["connections"], cell["parameters"]
            self._check_clock(name, connections["CLK"], parameters["CLK_POLARITY"])
            bits = connections["Q"]
            own_name = names.get(bits[0], name)
            if len(bits) > WIDTH:
                raise ValueError(f"register {own_name} of module {self._name} must have at most "
                                 f"{WIDTH} bits, not {len(bits)}")
            value = sum(int(init.get(bit, "0")) << index for index, bit in enumerate(bits))
            leaf = self._graph.leaf(("reg", len(registers)), len(bits))
            self._values[name, "Q"] = leaf
            registers.append((Register(own_name, len(bits), value, leaf, leaf), cell))
        return registers

    def _nets(self) -> tuple[dict[Bit, str], dict[Bit, str]]:
        """Initial values, as binary digits, of the nets that have one, and the names of nets."""
        init: dict[Bit, str] = {}
        names: dict[Bit, str] = {}
        for name, net in self._netlist["netnames"].items():
            for index, bit in enumerate(net["bits"]):
                if not net.get("hide_name") and (index == 0 or bit not in names):
                    names.setdefault(bit, name)
            digits = net["attributes"].get("init", "")[::-1]
            init |= {bit: digit for bit, digit in zip(net["bits"], digits, strict=False)
                     if digit in "01"}
        return init, names

    def _check_clock(self, name: str, bits: Sequence[Bit], polarity: str) -> None:
        if list(bits) != list(self._clock_bits) or not parameter(polarity):
            raise ValueError(f"cell {name} in module {self._name} must be clocked by the rising "
                             f"edge of {self._clock}")

    # Memories

    def _without_memories(self) -> dict[str, dict[str, Any]]:
        """All cells, with each memory replaced by one cell for each of its read ports."""
        cells = {}
        for name, cell in self._cells.items():
            if cell["type"] != _MEMORY:
                cells[name] = cell
                continue
            self._check_memory(name, cell)
            self._memories[name] = _memory(name, cell["parameters"])
            cells |= _read_cells(name, cell)
            self._write_cells += [(name, ports) for ports in _write_ports(cell)]
        return cells

    def _check_memory(self, name: str, cell: Mapping[str, Any]) -> None:
        parameters, connections = cell["parameters"], cell["connections"]
        where = f"memory {parameters.get('MEMID', name)} of module {self._name}"
        width = parameter(parameters["WIDTH"])
        if width > WIDTH:
            raise ValueError(f"{where} must have entries of at most {WIDTH} bits, not {width}")
        if parameter(parameters["OFFSET"]):
            raise ValueError(f"{where} must begin at address 0, not "
                             f"{parameter(parameters['OFFSET'])}")
        for side, unsupported in (("RD", "RD_CLK_ENABLE"), ("RD", "RD_WIDE_CONTINUATION"),
                                  ("WR", "WR_WIDE_CONTINUATION")):
            if parameter(parameters[f"{side}_PORTS"]) and parameter(parameters[unsupported]):
                raise ValueError(f"{where} must not use {unsupported}")
        writes = parameter(parameters["WR_PORTS"])
        enabled = parameter(parameters["WR_CLK_ENABLE"]) if writes else 0
        if enabled != low(writes):
            raise ValueError(f"{where} must have clocked write ports (WR_CLK_ENABLE)")
        for index in range(writes):
            polarity = str(parameter(parameters["WR_CLK_POLARITY"]) >> index & 1)
            self._check_clock(name, connections["WR_CLK"][index:index + 1], polarity)

    # Values

    def _driven(self, driver: Driver) -> Node:
        """Value of the whole cell output or module input to which ``driver`` refers."""
        key = driver.cell, driver.port
        if key not in self._values:
            if driver.cell is None:
                raise ValueError(f"the clock {self._clock} of module {self._name} must not be read "
                                 "as data")
            # Chains of cells can be longer than the interpreter's stack.
            self._evaluate(driver.cell)
        return self._values[key]

    def _evaluate(self, root: str) -> None:
        """Computes the output of the combinational cell ``root`` and of all cells it depends on."""
        pending = [root]
        while pending:
            name = pending[-1]
            if (name, self._output(name)) in self._values:
                pending.pop()
                self._open.discard(name)
                continue
            missing = self._missing(name)
            for cell in missing:
                if cell in self._open:
                    raise ValueError(f"cell {cell} in module {self._name} must not depend on its "
                                     "own output")
            if missing:
                self._open.add(name)
                pending += missing
            else:
                self._values[name, self._output(name)] = self._cell(name)

    def _missing(self, name: str) -> list[str]:
        """Cells that cell ``name`` reads and that have not been evaluated yet."""
        missing: dict[str, None] = {}
        for bits in self._operands(name):
            for bit in bits:
                driver = self._drivers.get(bit)
                if (driver is not None and driver.cell is not None
                        and (driver.cell, driver.port) not in self._values):
                    missing[driver.cell] = None
        return list(missing)

    def _output(self, name: str) -> str:
        """Name of the only output port of the combinational cell ``name``."""
        return "DATA" if self._cells[name]["type"] == _READ_PORT else "Y"

    def _operands(self, name: str) -> list[list[Bit]]:
        """Connections of the inputs of cell ``name``."""
        cell = self._cells[name]
        return [bits for port, bits in cell["connections"].items()
                if cell["port_directions"][port] == "input"]

    def _cell(self, name: str) -> Node:
        """Value of the output of the combinational cell ``name``."""
        cell = self._cells[name]
        if cell["type"] == _READ_PORT:
            return self._read_port(cell, f"cell {name} of type {cell['type']}")
        width = len(cell["connections"]["Y"])
        if cell["type"] in LOW_BITS:
            width = min(width, self._used.get((name, "Y"), 0))
        return self._evaluator.value(name, cell, width)

    # State

    def _address(self, memory: Memory, bits: Sequence[Bit], what: str) -> tuple[Node, Node]:
        """The address ``bits`` as a number, and whether that address lies in the memory.

        The number has as many bits as the memory's addresses. ``what`` names the cell or port in
        messages.
        """
        graph = self._graph
        inside = graph.bit(1)
        if len(bits) > memory.address_bits:
            inside = graph.not_(self._wires.any(bits[memory.address_bits:], what))
        address = self._wires.number(bits[:memory.address_bits], what)
        if memory.depth & (memory.depth - 1):
            inside = graph.andb(inside, graph.ltu(address, graph.const(memory.depth)))
        return address, inside

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
        data = self._wires.number(connections["DATA"], what)
        bits = connections["EN"]
        mask = None
        enable = self._wires.any(bits, what)
        if len(set(bits)) > 1:
            mask = self._wires.concatenation(bits, what)
            if mask.op == "sel" and [arg.attr for arg in mask.args[1:]] == [low(memory.width), 0]:
                # All bits have the same enable, which was joined to a mask.
                enable, mask = mask.args[0], None
        enable = graph.andb(enable, inside)
        memory.writes.append(Write(enable, address, data, mask))

    def _next(self, register: Register, cell: Mapping[str, Any]) -> Node:
        """The next value of ``register``, which consists of the flip-flops of ``cell``."""
        graph = self._graph
        kind, connections, parameters = cell["type"], cell["connections"], cell["parameters"]

        def choose(bit: Node, x: Node, y: Node) -> Node:
            return graph.selb(bit, x, y) if x.is_bit else graph.sel(bit, x, y)

        def control(port: str) -> Node:
            bit = self._wires.bit(connections[port][0])
            return bit if parameter(parameters[f"{port}_POLARITY"]) else graph.not_(bit)

        value = self._wires.value(connections["D"], f"register {register.name}")
        if kind == "$dff":
            return value
        hold = register.leaf
        if kind == "$dffe":
            return choose(control("EN"), value, hold)
        reset = parameter(parameters["SRST_VALUE"])
        cleared = graph.bit(reset) if hold.is_bit else graph.const(reset)
        if kind == "$sdffe":
            value = choose(control("EN"), value, hold)
        value = choose(control("SRST"), cleared, value)
        if kind == "$sdffce":
            value = choose(control("EN"), value, hold)
        return value


def _memory(name: str, parameters: Mapping[str, Any]) -> Memory:
    """The memory that cell ``name`` describes by its ``parameters``; its writes are added later."""
    width, size = parameter(parameters["WIDTH"]), parameter(parameters["SIZE"])
    digits = parameters["INIT"][::-1]
    init = [parameter(digits[width * index:width * (index + 1)][::-1])
            for index in range(size)] if set(digits) - set("x") else []
    return Memory(str(parameters.get("MEMID", name)).lstrip("\\"), width, size,
                  max(1, (size - 1).bit_length()), init)


def _read_cells(name: str, cell: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A combinational cell for each read port of the memory ``cell``, by new names."""
    parameters, connections = cell["parameters"], cell["connections"]
    width, address_bits = parameter(parameters["WIDTH"]), parameter(parameters["ABITS"])
    return {f"{name}.read{index}": {
        "type": _READ_PORT, "memory": name, "parameters": {},
        "port_directions": {"ADDR": "input", "DATA": "output"},
        "connections": {"ADDR": connections["RD_ADDR"][address_bits * index:][:address_bits],
                        "DATA": connections["RD_DATA"][width * index:][:width]}}
        for index in range(parameter(parameters["RD_PORTS"]))}


def _write_ports(cell: Mapping[str, Any]) -> list[dict[str, list[Bit]]]:
    """Connections of the write ports of the memory ``cell``: for each port, EN, ADDR and DATA."""
    parameters, connections = cell["parameters"], cell["connections"]
    width, address_bits = parameter(parameters["WIDTH"]), parameter(parameters["ABITS"])
    return [{"EN": connections["WR_EN"][width * index:][:width],
             "ADDR": connections["WR_ADDR"][address_bits * index:][:address_bits],
             "DATA": connections["WR_DATA"][width * index:][:width]}
            for index in range(parameter(parameters["WR_PORTS"]))]
