"""Registers and memories of a tile against Verilator: enables, resets, initial values, ports."""

import re

import numpy as np
import pytest

from hdl.tiles import Each, Shared, TileGrid
from sim.kernel import compile_grid
from sim.kernel.netlist.reader import PASSES
from sim.verilated.model import Model
from verif.sim.kernel.lockstep import Lockstep, VerilogTile, packed, random_words, tile_verilog

SEED = 73
COLS = 5
CYCLES = 2000

STYLES = {
    "plain": "q <= d;",
    "enable_high": "if (e) q <= d;",
    "enable_low": "if (!e) q <= d;",
    "reset_high": "if (r) q <= RESET; else q <= d;",
    "reset_low": "if (!r) q <= RESET; else q <= d;",
    "reset_then_enable": "if (r) q <= RESET; else if (e) q <= d;",
    "reset_low_enable_low": "if (!r) q <= RESET; else if (!e) q <= d;",
    "enable_then_reset": "if (e) begin if (r) q <= RESET; else q <= d; end",
    "enable_low_reset_low": "if (!e) begin if (!r) q <= RESET; else q <= d; end",
    "enable_of_word": "if (d[W-1:0] == other) q <= d;",
    "enable_of_self": "if (q != RESET) q <= d; else if (e) q <= q + 1'b1;",
    "part": "if (e) q[0] <= d[0]; if (r) q[W-1:W/2] <= d[W-1:W/2];",
    "kept": "if (e) q <= d; else if (r) q <= q;",
    "swap": "if (e) begin q <= other; other <= q; end else if (r) other <= d;",
    "chain": "if (e) q <= d; if (r) other <= q;",
}
WIDTHS = (1, 8, 16, 24, 40)


def style_module(style: str, w: int) -> str:
    """A module with a register ``q`` in a style, and a second register."""
    text = STYLES[style]
    first, second = 0x123456789A % (1 << w), 0xFEDCBA9876 % (1 << w)
    other = "" if "other <=" in text else "always @(posedge clk) other <= ~d;"
    text = text.replace("RESET", f"{w}'d{0xA5A5A5A5A5 % (1 << w)}").replace("W", str(w))
    return f"""
module {style}_{w}_module(input clk, input [{w - 1}:0] d, input e, input r,
                          output reg [{w - 1}:0] q, output reg [{w - 1}:0] other);
  initial begin q = {w}'d{first}; other = {w}'d{second}; end
  always @(posedge clk) begin {text} end
  {other}
endmodule"""


def registers(module: str) -> TileGrid:
    names = [(style, w) for w in WIDTHS for style in STYLES]
    outputs = {f"{style}_{w}{suffix}": w for style, w in names for suffix in ("", "_other")}
    body = "\n".join([
        *(f"  {style}_{w}_module u_{style}_{w}(.clk(clk), .d(d[{w - 1}:0]), .e(e), .r(r), "
          f".q({style}_{w}), .other({style}_{w}_other));" for style, w in names),
        "endmodule", *(style_module(style, w) for style, w in names)])
    body = body.removesuffix("endmodule")
    inputs = {"d": 40, "e": 1, "r": 1}
    return TileGrid(module, "registers_tile",
                    lambda: VerilogTile("registers_tile", inputs, outputs, body), 1, COLS,
                    [*(Each(name) for name in inputs), *(Each(name) for name in outputs)])


@pytest.mark.parametrize("passes", [PASSES, f"{PASSES}opt_dff\nopt_clean\n"],
                         ids=["muxes", "dffe"])
def test_registers_match_verilator(passes: str) -> None:
    bench = Lockstep(f"kernel_registers{len(passes) - len(PASSES)}", {"reg": registers},
                     ["native", "portable16"], passes)
    rng = np.random.default_rng(SEED)
    with Model(bench.path) as model:
        seen = bench.run(model, {
            "reg_d": packed(rng.integers(0, 1 << 40, (CYCLES, COLS))
                            >> rng.choice([0, 30, 39], (CYCLES, COLS)), 40),
            "reg_e": random_words(rng, COLS, CYCLES),
            "reg_r": random_words(rng, COLS, CYCLES)}, CYCLES)
    assert seen.all()


MEMORIES = """
  // Written and read by all instances at one address, and by each at its own.
  reg [15:0] shared [0:7];
  reg [31:0] own [0:15];
  reg [4:0] narrow [0:3];
  reg flags [0:7];
  reg [47:0] wide [0:5];
  reg [31:0] bytes [0:3];
  reg [7:0] table_ [0:15];
  reg [31:0] sines [0:31];
  reg [39:0] broad [0:5];
  reg [15:0] two [0:7];
  integer i;
  initial begin
    for (i = 0; i < 8; i = i + 1) begin shared[i] = 3 * i + 1; flags[i] = i[1]; two[i] = ~i; end
    for (i = 0; i < 16; i = i + 1) begin own[i] = 77777 * i; table_[i] = 11 * i + 3; end
    for (i = 0; i < 4; i = i + 1) begin narrow[i] = i; bytes[i] = 32'h01020304 * i; end
    for (i = 0; i < 6; i = i + 1) wide[i] = 48'h123456789ab * i;
    for (i = 0; i < 6; i = i + 1) broad[i] = 40'h9876543210 * (i + 1);
    for (i = 0; i < 32; i = i + 1) sines[i] = 32'd2654435769 * i;
  end
  reg [15:0] q_shared = 0, q_two = 0, q_two_again = 0;
  reg [31:0] q_own = 0, q_own_at_shared = 0, q_bytes = 0, q_moved = 0;
  reg [4:0] q_narrow = 0;
  reg q_flag = 0;
  reg [47:0] q_wide = 0;
  reg [7:0] q_table = 0, q_indirect = 0;
  reg [31:0] q_sines = 0, q_shared_sine = 0;
  reg [39:0] q_both = 0;
  reg [4:0] q_short = 0;
  always @(posedge clk) begin
    if (we) shared[sa] <= d[15:0];
    if (re) q_shared <= shared[sb];
    if (own_we) own[a] <= d;
    if (re) q_own <= own[b];
    q_own_at_shared <= own[{1'b0, sb}];
    if (own_we & d[0]) narrow[a[1:0]] <= d[4:0];
    q_narrow <= narrow[b[1:0]];
    if (own_we) flags[a[2:0]] <= d[0];
    q_flag <= flags[b[2:0]];
    if (own_we && a[2:0] < 6) wide[a[2:0]] <= {d, d[31:16]};
    if (b[2:0] < 6) q_wide <= wide[b[2:0]];
    if (d[0]) bytes[a[1:0]][7:0] <= d[7:0];
    if (d[1]) bytes[a[1:0]][23:8] <= d[23:8];
    if (d[2]) bytes[sa[1:0]][31:24] <= d[31:24];
    q_bytes <= bytes[b[1:0]];
    q_table <= table_[b];
    q_indirect <= table_[own[b][3:0]];
    q_sines <= sines[d[4:0]] ^ d;
    q_shared_sine <= sines[{sb, 2'd1}];
    q_both <= {sines[{1'b0, b}], table_[b]} + broad[d[3:1]];
    q_short <= table_[a][4:0];
    // The later port wins.
    if (own_we) two[a[2:0]] <= d[15:0];
    if (we) two[sa] <= d[31:16];
    q_two <= two[b[2:0]];
    q_two_again <= two[sb];
    q_moved <= q_own;
    if (own_we && !re) own[q_moved[3:0]] <= q_bytes;
  end
"""
MEMORY_OUTPUTS = {"shared": 16, "two": 16, "two_again": 16, "own": 32, "own_at_shared": 32,
                  "bytes": 32, "moved": 32, "narrow": 5, "flag": 1, "wide": 48, "table": 8,
                  "indirect": 8, "sines": 32, "shared_sine": 32, "both": 40, "short": 5}


def memories(module: str) -> TileGrid:
    inputs = {"we": 1, "re": 1, "sa": 3, "sb": 3, "own_we": 1, "a": 4, "b": 4, "d": 32}
    body = MEMORIES + "".join(f"  assign o_{name} = q_{name};\n" for name in MEMORY_OUTPUTS)
    outputs = {f"o_{name}": width for name, width in MEMORY_OUTPUTS.items()}
    return TileGrid(module, "memories_tile",
                    lambda: VerilogTile("memories_tile", inputs, outputs, body), 1, COLS,
                    [*(Shared(name) for name in ("we", "re", "sa", "sb")),
                     *(Each(name) for name in ("own_we", "a", "b", "d")),
                     *(Each(name) for name in outputs)])


def test_memories_match_verilator() -> None:
    bench = Lockstep("kernel_memories", {"mem": memories}, ["native", "portable32"])
    rng = np.random.default_rng(SEED)
    with Model(bench.path) as model:
        seen = bench.run(model, {name: random_words(rng, width, CYCLES)
                                 for name, width in bench.inputs.items()}, CYCLES)
    assert seen.all()


@pytest.mark.parametrize(("bits", "address", "enable", "requests"), [
    (12, "a", "re", 1), (11, "a", "re", 0), (12, "own", "re", 0), (12, "a", "own[0]", 0),
], ids=["large", "small", "address of each tile", "enable of each tile"])
def test_shared_entries_of_a_large_memory_are_requested_before_the_first_row(
        bits: int, address: str, enable: str, requests: int) -> None:
    body = f"""
  reg [31:0] words [0:{(1 << bits) - 1}];
  reg [31:0] r = 0;
  assign q = r;
  always @(posedge clk) begin
    if (we) words[a] <= d;
    if ({enable}) r <= words[{address}];
  end
"""
    inputs = {"re": 1, "we": 1, "a": bits, "own": bits, "d": 32}
    rows, cols = 4, 16
    assert (1 << 12) * rows * cols * 4 == 1 << 20
    grid = TileGrid("large", "large_tile",
                    lambda: VerilogTile("large_tile", inputs, {"q": 32}, body), rows, cols,
                    [*map(Shared, ("re", "we", "a")), *map(Each, ("own", "d", "q"))])
    code = compile_grid(grid, tile_verilog(grid)).cpp
    pattern = (r"if \(u\.\w+\) for \(int row = 0; row < ROWS; \+\+row\) "
               r"prefetch\(g\.m0\[row\]\[u\.\w+\], 64\);")
    assert len(re.findall(pattern, code)) == code.count("prefetch(") == requests


def tile(body: str, inputs: tuple[tuple[str, int]] = (("d", 8),),
         outputs: tuple[tuple[str, int]] = (("q", 8),)) -> TileGrid:
    return TileGrid("grid", "tile", lambda: VerilogTile("tile", dict(inputs), dict(outputs), body),
                    1, 2, [Each(name) for name, _ in (*inputs, *outputs)])


REGISTER = "reg [7:0] r; assign q = r; always @(posedge clk) r <= "


@pytest.mark.parametrize(("body", "message"), [
    ("reg [7:0] r; assign q = r; always @(posedge clk or posedge rst) if (rst) r <= 0; "
     "else r <= d;", r"cell type \$adff \(cell .* in module tile\)"),
    (REGISTER + "d / 3;", r"cell type \$div \(cell .* in module tile\)"),
    (REGISTER + "d % 3;", r"cell type \$mod \(cell .* in module tile\)"),
    ("reg [7:0] r; assign q = r; always @* if (d[0]) r = d;", r"cell type \$dlatch \(cell"),
    ("reg [7:0] r; assign q = r; always @(negedge clk) r <= d;", "rising edge of clk"),
    ("reg [7:0] r; assign q = r; always @(posedge d[0]) r <= d;", "rising edge of clk"),
    (REGISTER + "d + clk;", "clock clk of module tile must not be read"),
    ("reg [69:0] r; assign q = r[69:62] ^ r[7:0]; always @(posedge clk) r <= {r, d};",
     "register r of module tile must have at most 64 bits, not 70"),
    ("reg [69:0] m [0:3]; reg [7:0] r; assign q = r; always @(posedge clk) begin "
     "m[d[1:0]] <= {9{d}}; r <= m[d[3:2]][69:62]; end", "entries of at most 64 bits, not 70"),
    ("reg [7:0] m [4:7]; reg [7:0] r; assign q = r; always @(posedge clk) begin "
     "m[{1'b1, d[1:0]}] <= d; r <= m[{1'b1, d[3:2]}]; end", "begin at address 0, not 4"),
    ("assign q = d;", "output q of module tile must be registered, but .* input d"),
    ("reg [7:0] r; assign q = r ^ {8{d[0]}}; always @(posedge clk) r <= d;",
     "output q of module tile must be registered, but .* input d"),
    ("reg [7:0] m [0:3]; reg [1:0] r; assign q = m[r]; always @(posedge clk) begin r <= d[1:0]; "
     "m[d[3:2]] <= d; end", "output q of module tile must be registered, but .* memory"),
    ("wire [7:0] x = ~x ^ d; reg [7:0] r; assign q = r; always @(posedge clk) r <= x;",
     "must not depend on its own output"),
], ids=str)
def test_unsupported_tile_is_refused_by_name(body: str, message: str) -> None:
    grid = tile(body)
    with pytest.raises(ValueError, match=message):
        compile_grid(grid, tile_verilog(grid))


def test_result_wider_than_a_word_is_refused_by_width() -> None:
    grid = tile("reg [7:0] r; assign q = r; always @(posedge clk) r <= ({72'd5, d} * d) >> 70;")
    with pytest.raises(ValueError, match=r"cell .* of type \$\w+ in module tile must have at most "
                                         r"64 bits, not \d+"):
        compile_grid(grid, tile_verilog(grid))


def test_clocked_read_port_is_refused_by_name() -> None:
    grid = tile("reg [7:0] m [0:3]; reg [7:0] r; assign q = r; always @(posedge clk) begin "
                "m[d[1:0]] <= d; r <= m[d[3:2]]; end")
    passes = PASSES.replace("memory_collect", "memory_dff\nmemory_collect")
    with pytest.raises(ValueError, match=r"memory .*m of module tile must not use RD_CLK_ENABLE"):
        compile_grid(grid, tile_verilog(grid), passes=passes)


def test_syntax_error_is_reported() -> None:
    grid = tile("assign q = ;")
    with pytest.raises(RuntimeError, match="syntax error"):
        compile_grid(grid, tile_verilog(grid))
