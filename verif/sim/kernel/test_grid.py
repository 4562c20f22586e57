"""Links, edges, outputs and idle skipping of kernels, compared with the grids' Verilog."""


from collections.abc import Callable

import numpy as np
import pytest

from hdl.tiles import Chain, Each, Shared, TileGrid
from sim.kernel import compile_grid
from sim.verilated.model import Model
from verif.sim.kernel.lockstep import Lockstep, VerilogTile, random_words, sparse, tile_verilog

SEED = 74
CYCLES = 1500
SHAPES = ((1, 2), (1, 67), (9, 3), (3, 130), (20, 5))

LINKED = """
  reg [15:0] x = 5; reg xv = 0; reg [31:0] s = 1; reg sv = 0; reg [8:0] odd = 9; reg [39:0] big = 3;
  reg mark = 1;
  assign x_o = x; assign xv_o = xv; assign s_o = s; assign sv_o = sv; assign odd_o = odd;
  assign big_o = big; assign mark_o = mark;
  // Functions of registers.
  assign both_o = xv & sv; assign sum_o = x + s[15:0]; assign top_o = s[31];
  always @(posedge clk) begin
    xv <= xv_i & ~rst; sv <= sv_i & ~rst;
    if (xv_i) x <= x_i + gain;
    if (sv_i) s <= s_i + x + own_i;
    if (xv_i | sv_i) odd <= odd_i + own_bit_i;
    if (sv) big <= {big_i[7:0], big_i[39:8]} ^ s;
    if (xv) mark <= mark_i ^ x[0] ^ both_i ^ top_i;
    if (xv & both_i) x <= sum_i;
  end
"""
INPUTS = {"x_i": 16, "xv_i": 1, "s_i": 32, "sv_i": 1, "odd_i": 9, "big_i": 40, "mark_i": 1,
          "both_i": 1, "sum_i": 16, "top_i": 1, "own_i": 12, "own_bit_i": 1, "gain": 5}
OUTPUTS = {"x_o": 16, "xv_o": 1, "s_o": 32, "sv_o": 1, "odd_o": 9, "big_o": 40, "mark_o": 1,
           "both_o": 1, "sum_o": 16, "top_o": 1}
LINKS = (
    Chain("x_o", "x_i", "east", first="x", last="x_end"),
    Chain("xv_o", "xv_i", "east", first="xv", last="xv_end"),
    Chain("s_o", "s_i", "south", first="s", last="s_end"),
    Chain("sv_o", "sv_i", "south", first="sv", last="sv_end"),
    Chain("odd_o", "odd_i", "south", first="odd", last="odd_end"),
    Chain("big_o", "big_i", "east", first="big", last="big_end"),
    Chain("mark_o", "mark_i", "south", last="mark_end"),
    Chain("both_o", "both_i", "south", last="both_end"),
    Chain("sum_o", "sum_i", "east", first="sum", last="sum_end"),
    Chain("top_o", "top_i", "east", first="top"),
    Chain("s_o", None, "east", last="s_side"),
    Each("own_i"), Each("own_bit_i"), Each("x_o"), Each("sv_o"), Shared("gain"),
)


def linked(rows: int, cols: int) -> Callable[[str], TileGrid]:
    # A row of a grid has all its southward ports as `Each`, also the same output twice.
    links = [link for link in LINKS if rows == 1 or link != Each("sv_o")]
    return lambda module: TileGrid(
        module, "linked_tile", lambda: VerilogTile("linked_tile", INPUTS, OUTPUTS, LINKED),
        rows, cols, links)


@pytest.fixture(scope="module")
def lockstep() -> Lockstep:
    return Lockstep("kernel_links", {f"g{rows}x{cols}": linked(rows, cols)
                                     for rows, cols in SHAPES}, ["native", "portable16"])


@pytest.mark.parametrize("density", [0.5, 0.02])
def test_links_match_verilator(lockstep: Lockstep, density: float) -> None:
    rng = np.random.default_rng(SEED)
    with Model(lockstep.path) as model:
        inputs = {name: random_words(rng, width, CYCLES)
                  for name, width in lockstep.inputs.items()}
        for name, width in lockstep.inputs.items():
            if name.endswith(("_xv", "_sv", "_own_bit_i", "_top")):
                inputs[name] = sparse(rng, width, CYCLES, density)
        inputs["rst"] = (rng.random(CYCLES) < 0.01).astype(np.uint32)
        seen = lockstep.run(model, inputs, CYCLES)
    assert seen.mean() > 0.8


def test_outputs_show_initial_values_before_the_first_edge(lockstep: Lockstep) -> None:
    with Model(lockstep.path) as model:
        assert model.peek("bad") == 0
        assert model.peek("seen") != 0


def test_models_of_one_library_have_states_of_their_own(lockstep: Lockstep) -> None:
    rng = np.random.default_rng(SEED)
    with Model(lockstep.path) as one, Model(lockstep.path) as other:
        for model in (one, other, one):
            lockstep.run(model, {name: random_words(rng, width, 50)
                                 for name, width in lockstep.inputs.items()}, 50)


def pipeline(body: str, rows: int = 2, cols: int = 3, links: tuple[()] = ()) -> TileGrid:
    """A tile with a data word that moves east with its valid bit."""
    return TileGrid("grid", "tile", lambda: VerilogTile(
        "tile", {"d": 16, "v": 1, "mode": 1}, {"d_o": 16, "v_o": 1, "unlinked": 4}, f"""
  reg [15:0] data = 0; reg valid = 0; reg [3:0] extra = 0;
  assign d_o = data; assign v_o = valid; assign unlinked = extra;
  always @(posedge clk) begin {body} end"""), rows, cols, links or [
        Chain("d_o", "d", "east", first="d", last="d_end"),
        Chain("v_o", "v", "east", first="v", last="v_end"), Shared("mode")])


HOLDS = "valid <= v & ~rst; if (v) data <= d;"


@pytest.mark.parametrize(("body", "proven"), [
    (HOLDS, True),
    (HOLDS + " if (rst) data <= 0;", True),
    (HOLDS + " if (valid) extra <= extra + 1;", True),
    (HOLDS + " if (mode) extra <= extra + 1;", True),
    # An empty shift register stays empty.
    (HOLDS + " extra <= {extra[2:0], v};", True),
    (HOLDS + " extra <= extra + 1;", False),
    (HOLDS + " if (!mode) extra <= d[3:0];", False),
    ("valid <= v & ~rst; data <= d;", False),
    ("valid <= ~v; if (v) data <= d;", False),
    ("if (mode) valid <= v; if (v) data <= d + data;", True),
    ("if (d[0]) valid <= v; if (v) data <= d + data;", True),
    ("if (d[0]) valid <= d[1]; if (v) data <= d + data;", False),
])
def test_idle_tiles_are_skipped_only_if_they_provably_hold(body: str, proven: bool) -> None:
    grid = pipeline(body)
    assert compile_grid(grid, tile_verilog(grid)).can_skip == proven


def test_tile_whose_memory_is_written_while_idle_is_not_skipped() -> None:
    write = HOLDS + " store[extra] <= data;"
    grid = pipeline(write.replace("store", "m"))
    text = tile_verilog(grid).replace("reg valid = 0;", "reg valid = 0; reg [15:0] m [0:15];")
    text = text.replace("data <= d;", "data <= d ^ m[d[3:0]];")
    assert not compile_grid(grid, text).can_skip
    gated = text.replace("m[extra] <= data;", "if (v) m[extra] <= data;")
    assert compile_grid(grid, gated).can_skip


def test_chains_of_one_output_with_different_beginnings_are_refused() -> None:
    grid = TileGrid("grid", "tile", lambda: VerilogTile(
        "tile", {"a": 8, "b": 8}, {"q": 8},
        "reg [7:0] r; assign q = r; always @(posedge clk) r <= a + b;"), 2, 2,
        [Chain("q", "a", "east", first="a"), Chain("q", "b", "east", first="b")])
    with pytest.raises(ValueError, match="chains a and b of grid grid must begin at the same port"):
        compile_grid(grid, tile_verilog(grid))


def test_unlinked_output_need_not_be_registered() -> None:
    grid = TileGrid("grid", "tile", lambda: VerilogTile(
        "tile", {"d": 8}, {"q": 8, "unused": 8},
        "reg [7:0] r; assign q = r; assign unused = d; always @(posedge clk) r <= d;"), 1, 2,
        [Each("d"), Each("q")])
    assert "grid_step" in compile_grid(grid, tile_verilog(grid)).cpp


def test_grids_of_the_lockstep_are_skipped(lockstep: Lockstep) -> None:
    # Without it, nothing above would test skipping.
    assert all(kernel.can_skip for kernel in lockstep.kernels.values())
