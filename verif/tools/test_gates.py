"""A netlist of ECP5 cells, as Verilog of its functions, does what the design does."""

import json
import re
from itertools import product

import numpy as np
import pytest

from hdl import yosys
from sim.verilated.build import build_model
from sim.verilated.model import Model
from tools.fpga.flow import open_carries
from tools.fpga.gates import CELLS, WAIVERS, expression, gate_level
from tools.fpga.synthesis import passes

PORTS = {"rst": 1, "a": 16, "b": 16, "write": 1, "read": 1, "to": 9, "at": 9}
OUTPUTS = ("product", "sum", "count", "word", "wide", "few")
DESIGN = """\
module subject(input clk, input rst, input [15:0] a, input [15:0] b, input write, input read,
              input [8:0] to, input [8:0] at, output reg [31:0] product, output reg [16:0] sum,
              output reg [7:0] count, output reg [15:0] word, output reg [31:0] wide,
              output [3:0] few);
  reg [15:0] words [0:511];
  reg [31:0] wides [0:511];
  reg [3:0] fews [0:15];
  reg [15:0] rom [0:511];
  reg [15:0] constant;
  integer i;
  initial for (i = 0; i < 512; i = i + 1) begin
    words[i] = 0; wides[i] = 0; rom[i] = 40503 * i;
  end
  initial for (i = 0; i < 16; i = i + 1) fews[i] = 0;
  initial begin product = 0; sum = 0; count = 8'h5a; word = 0; wide = 0; constant = 0; end
  always @(posedge clk) begin
    product <= $signed(a) * $signed(b);
    sum <= read ? a - b : a + b + constant;
    constant <= rom[at];
    if (rst) count <= 8'h5a; else if (write) count <= count + a[7:0];
    if (write) begin words[to] <= a; wides[to] <= {b, a}; fews[to[3:0]] <= b[3:0]; end
    if (read) begin word <= words[at]; wide <= wides[at]; end
  end
  assign few = fews[at[3:0]];
endmodule
"""


@pytest.mark.parametrize("width", [1, 2, 3])
def test_an_expression_is_its_table(width: int) -> None:
    for table in range(1 << (1 << width)):
        names = [f"i{index}" for index in range(width)]
        text = re.sub(r"~(\w+)", r"(1 - \1)", expression(table, names)).replace("1'b", "")
        for values in product((0, 1), repeat=width):
            number = sum(value << index for index, value in enumerate(values))
            assert eval(text, dict(zip(names, values, strict=True))) == table >> number & 1, text
            constants = expression(table, [f"1'b{value}" for value in values])
            assert constants == f"1'b{table >> number & 1}"


def test_gates_do_what_the_design_does() -> None:
    netlist = json.loads(yosys.netlist(DESIGN, "subject", passes("subject") + "\n"))
    gates = netlist["modules"]["subject"]
    open_carries(gates)
    used = {cell["type"] for cell in gates["cells"].values()}
    assert used >= {"LUT4", "CCU2C", "TRELLIS_FF", "TRELLIS_DPR16X4", "MULT18X18D", "DP16KD"}
    assert {int(cell["parameters"]["DATA_WIDTH_B"], 2) for cell in gates["cells"].values()
            if cell["type"] == "DP16KD"} == {18, 36}
    rng = np.random.default_rng(20261122)
    inputs = {name: rng.integers(0, 1 << width, 2000, dtype=np.uint32)
              for name, width in PORTS.items()}
    inputs["at"][::3] = inputs["to"][::3]  # reads in the cycle of a write
    found = []
    for sources in ({"subject": DESIGN},
                    {"subject": gate_level(gates, "subject"), "cells": CELLS.read_text()}):
        model = Model(build_model("subject", sources, waivers=WAIVERS, optimise=None))
        found.append(model.run(inputs, OUTPUTS))
    for name in OUTPUTS:
        assert np.array_equal(found[0][name], found[1][name]), name


def test_a_cell_without_a_model_is_refused() -> None:
    cell = {"type": "EHXPLLL", "parameters": {}, "connections": {}}
    with pytest.raises(ValueError, match="cell must be of a known type, not 'EHXPLLL': pll"):
        gate_level({"ports": {}, "cells": {"pll": cell}}, "top")


MODELLED = {
    "TRELLIS_FF": {"CLKMUX": "CLK", "LSRMUX": "LSR", "CEMUX": "CE", "REGSET": "SET",
                   "GSR": "DISABLED"},
    "TRELLIS_DPR16X4": {"WCKMUX": "WCK", "WREMUX": "WRE"},
    "CCU2C": {"INJECT1_0": "NO", "INJECT1_1": "NO"},
    "DP16KD": {"REGMODE_A": "NOREG", "REGMODE_B": "NOREG", "CSDECODE_A": "0b000",
               "CSDECODE_B": "0b000", "CLKAMUX": "CLKA", "CLKBMUX": "CLKB", "GSR": "DISABLED"},
}


@pytest.mark.parametrize(("kind", "parameter", "value", "wanted"), [
    ("TRELLIS_FF", "CLKMUX", "INV", "'CLK'"),
    ("TRELLIS_FF", "CEMUX", "0", "'1' or 'CE' or 'INV'"),
    ("TRELLIS_FF", "CEMUX", None, "'1' or 'CE' or 'INV'"),
    ("TRELLIS_FF", "REGSET", None, "'RESET' or 'SET'"),
    ("TRELLIS_FF", "SRMODE", "ASYNC", "'LSR_OVER_CE'"),
    ("TRELLIS_FF", "GSR", "ENABLED", "'DISABLED'"),
    ("TRELLIS_FF", "GSR", None, "'DISABLED'"),
    ("TRELLIS_DPR16X4", "WREMUX", "INV", "'WRE'"),
    ("CCU2C", "INJECT1_1", "YES", "'NO'"),
    ("DP16KD", "REGMODE_A", "OUTREG", "'NOREG'"),
    ("DP16KD", "CLKBMUX", "INV", "'CLKB'"),
    ("DP16KD", "GSR", None, "'DISABLED'"),
])
def test_a_parameter_without_a_model_is_refused(kind: str, parameter: str, value: str | None,
                                                wanted: str) -> None:
    """In this test, the value None stands for a missing parameter."""
    parameters = MODELLED[kind] | {parameter: value}
    cell = {"type": kind, "connections": {},
            "parameters": {name: given for name, given in parameters.items() if given is not None}}
    with pytest.raises(ValueError, match=f"^{parameter} must be {wanted}, not {value!r}: cell$"):
        gate_level({"ports": {}, "cells": {"cell": cell}}, "top")
