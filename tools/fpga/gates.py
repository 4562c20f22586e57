"""Verilog of a netlist of ECP5 cells, for simulation: each cell is replaced by its function."""

import pathlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

__all__ = ["CELLS", "WAIVERS", "expression", "gate_level"]

CELLS = pathlib.Path(__file__).with_name("cells.v")
"""Verilog of the modules that the result of `gate_level` instantiates."""

WAIVERS = "".join(f"lint_off -rule {rule}\n" for rule in (
    "DECLFILENAME", "PROCASSINIT", "UNUSED", "WIDTH"))
"""Waivers of the Verilator warnings that this Verilog causes. The causes: one file holds all
models; registers have initial values; outputs of cells may drive nothing; the model of a block RAM
always has its maximum data width."""

Bit = int | str
"""A bit of a netlist: the number of a net, or a constant "0", "1" or "x"."""
_LOW_BITS = {1: 0, 2: 1, 4: 2, 9: 3, 18: 4, 36: 5}
"""Number of low address bits of a block RAM that do not select an entry, by data width in bits."""
_OFF = {"DP16KD": ("WEB", "RSTA", "RSTB", *(f"CS{port}{bit}" for port in "AB" for bit in range(3))),
        "MULT18X18D": ("SOURCEA", "SOURCEB", *(f"C{bit}" for bit in range(18)))}
"""Pins that must be constant 0, by type of cell."""
_FIXED: dict[str, dict[str, tuple[str, ...]]] = {
    "DP16KD": {"REGMODE_A": ("NOREG",), "REGMODE_B": ("NOREG",), "CSDECODE_A": ("0b000",),
               "CSDECODE_B": ("0b000",), "CLKAMUX": ("CLKA",), "CLKBMUX": ("CLKB",),
               "GSR": ("DISABLED",)},
    "CCU2C": {"INJECT1_0": ("NO",), "INJECT1_1": ("NO",)},
    "TRELLIS_FF": {"CLKMUX": ("CLK",), "LSRMUX": ("LSR",), "SRMODE": ("LSR_OVER_CE",),
                   "CEMUX": ("1", "CE", "INV"), "REGSET": ("RESET", "SET"),
                   "GSR": ("DISABLED",)},
    "TRELLIS_DPR16X4": {"WCKMUX": ("WCK",), "WREMUX": ("WRE",)},
}
"""Values of a parameter that the model of a cell allows, by type of cell and name of parameter."""
_DEFAULTS = {"SRMODE": "LSR_OVER_CE"}
"""The values that Yosys assumes for parameters that a cell does not have."""


def expression(table: int, inputs: Sequence[str]) -> str:
    """Verilog expression of a lookup table.

    Parameters
    ----------
    table : int
        Bit i is the output if the inputs encode the number i; the first input is the lowest bit.
    inputs : sequence of str
        Verilog expressions of one bit: names, or the constants ``1'b0`` and ``1'b1``.
    """
    full = (1 << (1 << len(inputs))) - 1
    if table in (0, full):
        return "1'b1" if table else "1'b0"
    *rest, last = inputs
    half = 1 << len(rest)
    low, high = table & ((1 << half) - 1), table >> half
    if last == "1'b0" or low == high:
        return expression(low, rest)
    if last == "1'b1":
        return expression(high, rest)
    ones = (1 << half) - 1
    if low == high ^ ones:
        return last if not low else (f"~{last}" if not high else
                                     f"({last} ^ {expression(low, rest)})")
    if high == 0:
        return f"(~{last} & {expression(low, rest)})"
    if low == 0:
        return f"({last} & {expression(high, rest)})"
    if high == ones:
        return f"({last} | {expression(low, rest)})"
    if low == ones:
        return f"(~{last} | {expression(high, rest)})"
    return f"(({last} & {expression(high, rest)}) | (~{last} & {expression(low, rest)}))"


def gate_level(netlist: Mapping[str, Any], name: str) -> str:
    """Verilog of a netlist of ECP5 cells, with the ports of the module from which it was made.

    Parameters
    ----------
    netlist : mapping
        The module of Yosys' JSON after `tools.fpga.synthesis.passes`.
    name : str
        Name of the module to write. It instantiates the modules in `CELLS`.

    Raises
    ------
    ValueError
        If there is no model for the type of a cell, or none for the values of its parameters.
    """
    return _Writer(netlist).module(name)


class _Writer:
    """Writes the Verilog of a netlist."""

    def __init__(self, netlist: Mapping[str, Any]) -> None:
        self._netlist = netlist
        self._open = cycle("01")
        self._lines: list[str] = []
        self._driven: set[int] = set()
        self._registers: dict[int, str] = {}
        self._clocked: dict[tuple[str, str, str], list[tuple[str, str, str]]] = defaultdict(list)

    def module(self, name: str) -> str:
        ports = []
        for port, entry in self._netlist["ports"].items():
            size = len(entry["bits"])
            ports.append(f"  {entry['direction']} {f'[{size - 1}:0] ' if size > 1 else ''}{port}")
            if entry["direction"] == "input":
                self._drive(entry["bits"], port)
        for label, (cell, entry) in enumerate(sorted(self._netlist["cells"].items())):
            if entry["type"] != "$scopeinfo":  # what is left of a flattened module
                self._cell(label, cell, entry)
        for port, entry in self._netlist["ports"].items():
            if entry["direction"] == "output":
                self._lines.append(f"assign {port} = {self._vector(entry['bits'])};")
        return "\n".join([f"module {name}(", ",\n".join(ports), ");", *self._declarations(),
                          *self._lines, *self._processes(), "endmodule", ""])

    def _declarations(self) -> Iterator[str]:
        for net in sorted(self._driven - self._registers.keys()):
            yield f"wire n{net};"
        for net, value in sorted(self._registers.items()):
            yield f"reg n{net} = {value};"

    def _processes(self) -> Iterator[str]:
        """Yield one process for each set of flip-flops that share clock, reset and enable."""
        for (clock, reset, enable), flops in self._clocked.items():
            loads = " ".join(f"{q} <= {d};" for q, d, _ in flops)
            clears = " ".join(f"{q} <= {value};" for q, _, value in flops)
            body = f"begin {loads} end"
            if enable != "1'b1":
                body = f"if ({enable}) {body}"
            if reset != "1'b0":
                body = f"if ({reset}) begin {clears} end else {body}"
            yield f"always @(posedge {clock}) {body}"

    def _bit(self, bit: Bit) -> str:
        """Verilog of a bit; undefined bits (x) become 0 and 1 alternately."""
        if isinstance(bit, int):
            return f"n{bit}"
        return f"1'b{next(self._open) if bit not in '01' else bit}"

    def _vector(self, bits: Sequence[Bit]) -> str:
        return "{" + ", ".join(map(self._bit, reversed(bits))) + "}"

    def _drive(self, bits: Sequence[Bit], value: str) -> None:
        """Assign the Verilog vector ``value`` to the nets in ``bits``, lowest bit first.

        ``bits`` are connected to the output of a cell; those that are not nets are left open.
        """
        for index, bit in enumerate(bits):
            if isinstance(bit, int):
                self._assign(bit, f"{value}[{index}]" if len(bits) > 1 else value)

    def _cell(self, label: int, name: str, entry: Mapping[str, Any]) -> None:
        write = {"LUT4": self._lut, "CCU2C": self._carry, "TRELLIS_FF": self._flop,
                 "TRELLIS_DPR16X4": self._lut_ram, "MULT18X18D": self._multiplier,
                 "DP16KD": self._block_ram}.get(entry["type"])
        pins, parameters = entry["connections"], entry["parameters"]
        if write is None:
            raise ValueError(f"cell must be of a known type, not {entry['type']!r}: {name}")
        for parameter, values in _FIXED.get(entry["type"], {}).items():
            value = parameters.get(parameter, _DEFAULTS.get(parameter))
            if value is None or value.strip() not in values:
                raise ValueError(f"{parameter} must be {' or '.join(map(repr, values))}, not "
                                 f"{value!r}: {name}")
        for pin in _OFF.get(entry["type"], ()):
            if pins.get(pin, ["0"]) != ["0"]:
                raise ValueError(f"{pin} must be 0, not {pins[pin]!r}: {name}")
        write(label, pins, parameters)

    def _table(self, table: int, pins: Mapping[str, list[Bit]], names: Sequence[str]) -> str:
        return expression(table, [self._bit(pins[name][0]) for name in names])

    def _assign(self, bit: Bit, value: str) -> None:
        if isinstance(bit, int):
            self._driven.add(bit)
            self._lines.append(f"assign n{bit} = {value};")

    def _lut(self, label: int, pins: Mapping[str, list[Bit]], parameters: Mapping[str, str]
             ) -> None:
        self._assign(pins["Z"][0], self._table(int(parameters["INIT"], 2), pins, "ABCD"))

    def _carry(self, label: int, pins: Mapping[str, list[Bit]], parameters: Mapping[str, str]
               ) -> None:
        carry = self._bit(pins["CIN"][0])
        for half in "01":
            table = int(parameters[f"INIT{half}"], 2)
            names = [f"{name}{half}" for name in "ABCD"]
            passes, makes, leaves = (f"{what}{label}_{half}" for what in ("p", "g", "c"))
            self._lines += [
                f"wire {passes} = {self._table(table, pins, names)};",
                f"wire {makes} = {self._table(table & 15, pins, names[:2])};",
                f"wire {leaves} = {passes} ? {carry} : {makes};",
            ]
            self._assign(pins[f"S{half}"][0], f"{passes} ^ {carry}")
            carry = leaves
        self._assign(pins["COUT"][0], carry)

    def _flop(self, label: int, pins: Mapping[str, list[Bit]], parameters: Mapping[str, str]
              ) -> None:
        net = pins["Q"][0]
        if not isinstance(net, int):
            return
        value = "1'b1" if parameters["REGSET"] == "SET" else "1'b0"
        mode = parameters["CEMUX"].strip()
        enable = self._bit(pins["CE"][0]) if mode != "1" else "1'b1"
        if mode == "INV":
            enable = f"~{enable}"
        self._driven.add(net)
        self._registers[net] = value
        key = (self._bit(pins["CLK"][0]), self._bit(pins.get("LSR", ["0"])[0]), enable)
        self._clocked[key].append((f"n{net}", self._bit(pins["DI"][0]), value))

    def _instance(self, label: int, module: str, output: str, bits: Sequence[Bit],
                  pins: Mapping[str, str], **parameters: str) -> None:
        result = f"o{label}"
        given = ", ".join(f".{name}({value})" for name, value in parameters.items())
        connected = ", ".join(f".{name}({value})" for name, value in pins.items())
        self._lines += [f"wire [{len(bits) - 1}:0] {result};",
                        f"{module} {f'#({given}) ' if given else ''}i{label}({connected}, "
                        f".{output}({result}));"]
        self._drive(bits, result)

    def _lut_ram(self, label: int, pins: Mapping[str, list[Bit]], parameters: Mapping[str, str]
                 ) -> None:
        self._instance(label, "lut_ram", "read_data", pins["DO"], {
            "clk": self._bit(pins["WCK"][0]), "write": self._bit(pins["WRE"][0]),
            "write_address": self._vector(pins["WAD"]), "write_data": self._vector(pins["DI"]),
            "read_address": self._vector(pins["RAD"]),
        }, INIT=f"64'h{int(parameters['INITVAL'].replace('x', '0'), 2):x}")

    def _pins(self, pins: Mapping[str, list[Bit]], name: str, size: int) -> list[Bit]:
        return [pins.get(f"{name}{index}", ["x"])[0] for index in range(size)]

    def _multiplier(self, label: int, pins: Mapping[str, list[Bit]],
                    parameters: Mapping[str, str]) -> None:
        if any("CLK" in name and value != "NONE" for name, value in parameters.items()):
            raise ValueError(f"multiplier must have no registers, not {parameters!r}")
        self._instance(label, "multiplier", "product", self._pins(pins, "P", 36), {
            "a": self._vector(self._pins(pins, "A", 18)),
            "b": self._vector(self._pins(pins, "B", 18)),
            "signed_a": self._bit(pins["SIGNEDA"][0]), "signed_b": self._bit(pins["SIGNEDB"][0])})

    def _block_ram(self, label: int, pins: Mapping[str, list[Bit]], parameters: Mapping[str, str]
                   ) -> None:
        width, other = (int(parameters[f"DATA_WIDTH_{port}"], 2) for port in "AB")
        # Port A of a read-only memory reads, and port B has no clock. Otherwise, port A writes.
        reads = "A" if pins["CLKB"] == ["0"] and pins["WEA"] == ["0"] else "B"
        if width != other or pins["CLKA"] != pins[f"CLK{reads}"]:
            raise ValueError("ports of a block RAM must share one width and one clock, not "
                             f"{width} and {other}, {pins['CLKA']} and {pins['CLKB']}")
        contents = sum(int(parameters[f"INITVAL_{row:02X}"][-20 * (word + 1):][:20], 2)
                       << 18 * (16 * row + word) for row in range(64) for word in range(16))
        if contents and width < 18:
            raise ValueError(f"width of a block RAM with contents must be 18 or 36, not {width}")
        # A word of 36 bits is read through both ports' pins, the low half through those of A.
        low = self._pins(pins, "DOA", 18) if width == 36 else []
        high = self._pins(pins, f"DO{reads}", 18)
        self._instance(label, "block_ram", "read_data", [*low, *high, *["x"] * (18 - len(low))], {
            "clk": self._bit(pins["CLKA"][0]),
            "write": f"{self._bit(pins['CEA'][0])} & {self._bit(pins['WEA'][0])}",
            "write_address": self._vector(self._pins(pins, "ADA", 14)),
            "write_data": self._vector([*self._pins(pins, "DIA", 18),
                                        *self._pins(pins, "DIB", 18)]),
            "read": self._bit(pins[f"CE{reads}"][0]),
            "read_address": self._vector(self._pins(pins, f"AD{reads}", 14)),
        }, WIDTH=f"{width}", LOW=f"{_LOW_BITS[width]}", INIT=f"18432'h{contents:x}")
