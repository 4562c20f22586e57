"""Every cell type that kernels support occurs in a test, even those that Yosys seldom writes."""

import json
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np

from hdl import yosys
from hdl.tiles import Each, TileGrid
from sim.kernel.netlist.reader import CELL_TYPES, PASSES
from sim.verilated.model import Model
from verif.sim.kernel import test_cells as test_kernel_cells
from verif.sim.kernel import test_state as test_kernel_state
from verif.sim.kernel.lockstep import Lockstep, VerilogTile, random_words, tile_verilog

SEED = 79
COLS = 5
CYCLES = 2000

CLOCKED = "always @(posedge CLK) "

# For each cell: its type, its parameters, its ports, and what it does in Verilog. Only the last is
# what Verilator runs.
CELLS: dict[str, tuple[str, dict[str, int | str], str, str]] = {
    "bmux": ("$bmux", {"WIDTH": 8, "S_WIDTH": 2},
             "input [31:0] A, input [1:0] S, output [7:0] Y", "assign Y = A[8 * S +: 8];"),
    "bmux_bit": ("$bmux", {"WIDTH": 1, "S_WIDTH": 3},
                 "input [7:0] A, input [2:0] S, output Y", "assign Y = A[S];"),
    "buf": ("$buf", {"WIDTH": 8}, "input [7:0] A, output [7:0] Y", "assign Y = A;"),
    "pos": ("$pos", {"A_SIGNED": 1, "A_WIDTH": 5, "Y_WIDTH": 12},
            "input signed [4:0] A, output [11:0] Y", "assign Y = {{7{A[4]}}, A};"),
    "pos_unsigned": ("$pos", {"A_SIGNED": 0, "A_WIDTH": 5, "Y_WIDTH": 12},
                     "input [4:0] A, output [11:0] Y", "assign Y = {7'b0, A};"),
    "reduce_bool": ("$reduce_bool", {"A_SIGNED": 0, "A_WIDTH": 3, "Y_WIDTH": 1},
                    "input [2:0] A, output Y", "assign Y = A != 0;"),
    "shift": ("$shift", {"A_SIGNED": 0, "A_WIDTH": 16, "B_SIGNED": 0, "B_WIDTH": 5, "Y_WIDTH": 16},
              "input [15:0] A, input [4:0] B, output [15:0] Y", "assign Y = A >> B;"),
    "shift_both": ("$shift",
                   {"A_SIGNED": 0, "A_WIDTH": 16, "B_SIGNED": 1, "B_WIDTH": 5, "Y_WIDTH": 20},
                   "input [15:0] A, input [4:0] B, output [19:0] Y",
                   "wire [4:0] N = -B; wire [19:0] W = {4'b0, A};"
                   "assign Y = B[4] ? W << N : W >> B;"),
    "sdff": ("$sdff", {"WIDTH": 8, "CLK_POLARITY": 1, "SRST_POLARITY": 1, "SRST_VALUE": "8'h5a"},
             "input CLK, input SRST, input [7:0] D, output reg [7:0] Q",
             CLOCKED + "if (SRST) Q <= 8'h5a; else Q <= D;"),
    "sdff_low": ("$sdff", {"WIDTH": 1, "CLK_POLARITY": 1, "SRST_POLARITY": 0, "SRST_VALUE": "1'h1"},
                 "input CLK, input SRST, input D, output reg Q",
                 CLOCKED + "if (!SRST) Q <= 1; else Q <= D;"),
    "sdffce": ("$sdffce", {"WIDTH": 8, "CLK_POLARITY": 1, "EN_POLARITY": 1, "SRST_POLARITY": 1,
                           "SRST_VALUE": "8'hc3"},
               "input CLK, input EN, input SRST, input [7:0] D, output reg [7:0] Q",
               CLOCKED + "if (EN) begin if (SRST) Q <= 8'hc3; else Q <= D; end"),
    "sdffce_low": ("$sdffce", {"WIDTH": 24, "CLK_POLARITY": 1, "EN_POLARITY": 0, "SRST_POLARITY": 0,
                               "SRST_VALUE": "24'h123456"},
                   "input CLK, input EN, input SRST, input [23:0] D, output reg [23:0] Q",
                   CLOCKED + "if (!EN) begin if (!SRST) Q <= 24'h123456; else Q <= D; end"),
}
INPUTS = {"A": 32, "B": 5, "S": 3, "D": 24, "EN": 1, "SRST": 1}


def port_list(name: str) -> Iterator[tuple[str, int, str]]:
    """Direction, width and name of each port of a cell."""
    for port in CELLS[name][2].split(", "):
        direction, *middle, port_name = port.split()
        size = [word for word in middle if word.startswith("[")]
        yield direction, int(size[0][1:].split(":")[0]) + 1 if size else 1, port_name


def rare_cells(module: str) -> TileGrid:
    """A grid of all of CELLS, each an instance of its own module."""
    outputs = {}
    body = []
    modules = []
    for name, (kind, _, ports, text) in CELLS.items():
        actual = []
        for direction, width, port in port_list(name):
            if direction == "output":
                outputs[f"o_{name}"] = width
                target = f"o_{name}" if port == "Q" else f"y_{name}"
                actual.append(f".{port}({target})")
            elif port == "CLK":
                actual.append(".CLK(clk)")
            else:
                actual.append(f".{port}({port}[{width - 1}:0])")
        width = outputs[f"o_{name}"]
        if not kind.startswith("$sdff"):
            body.append(f"  wire [{width - 1}:0] y_{name};\n  reg [{width - 1}:0] q_{name} = 0;\n"
                        f"  assign o_{name} = q_{name};\n"
                        f"  always @(posedge clk) q_{name} <= y_{name};")
        body.append(f"  cell_{name} u_{name}({', '.join(actual)});")
        begin = "initial Q = 0; " if kind.startswith("$sdff") else ""
        modules.append(f"(* keep_hierarchy *)\nmodule cell_{name}({ports});\n  {begin}{text}\n"
                       "endmodule")
    text = "\n".join([*body, "endmodule", *modules]).removesuffix("endmodule")
    return TileGrid(module, "rare_tile", lambda: VerilogTile("rare_tile", INPUTS, outputs, text),
                    1, COLS, [*(Each(port) for port in INPUTS), *(Each(port) for port in outputs)])


def rare_passes() -> str:
    """Yosys passes, the last of which turn each instance into the cell that it describes."""
    lines = []
    for name, (kind, parameters, _, _) in CELLS.items():
        values = " ".join(f"-set {key} {value}" for key, value in parameters.items())
        lines += [f"setparam {values} rare_tile/t:cell_{name}",
                  f"chtype -set {kind} rare_tile/t:cell_{name}"]
    return PASSES + "\n".join(lines) + "\n"


def test_cells_that_yosys_seldom_writes_match_verilator() -> None:
    bench = Lockstep("kernel_rare_cells", {"rare": rare_cells}, ["native", "portable16"],
                     rare_passes())
    rng = np.random.default_rng(SEED)
    with Model(bench.path) as model:
        seen = bench.run(model, {port: random_words(rng, width, CYCLES)
                                 for port, width in bench.inputs.items()}, CYCLES)
    assert seen.all()


def cell_types(grid: TileGrid, passes: str) -> set[str]:
    """Types of the cells of a grid's tile, once the passes have run."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "tile.v").write_text(tile_verilog(grid))
        yosys.run(f"read_verilog -sv tile.v\nhierarchy -check -top {grid.tile_module}\n{passes}"
                  "write_json tile.json\n", cwd=path)
        netlist = json.loads((path / "tile.json").read_text())
    return {cell["type"] for cell in netlist["modules"][grid.tile_module]["cells"].values()}


def test_every_type_of_cell_occurs_in_a_test() -> None:
    seen = cell_types(rare_cells("rare"), rare_passes())
    assert seen >= {kind for kind, *_ in CELLS.values()}
    seen |= cell_types(test_kernel_cells.grid(test_kernel_cells.QUICK_WIDTHS)("cells"), PASSES)
    for make in (test_kernel_state.registers, test_kernel_state.memories):
        for passes in (PASSES, f"{PASSES}opt_dff\nopt_clean\n"):
            seen |= cell_types(make("state"), passes)
    assert seen == CELL_TYPES
