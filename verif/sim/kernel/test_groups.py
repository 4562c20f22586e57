"""Groups of a kernel against Verilator: registers in circles, conditions that all tiles share."""

from collections.abc import Callable

import numpy as np
import pytest

from hdl.tiles import Chain, Each, Shared, TileGrid
from sim.kernel import compile_grid
from sim.kernel.netlist.reader import read_tile
from sim.kernel.plan.plan import Plan
from sim.kernel.plan.planner import plan_grid
from sim.verilated.model import Model
from verif.sim.kernel.lockstep import (
    SECOND,
    Lockstep,
    VerilogTile,
    random_words,
    sparse,
    tile_verilog,
)

SEED = 91
CYCLES = 2000
ROWS = 2
WHOLE, PARTIAL = 64, 66
"""Columns of one whole chunk, and of one whole chunk and two more tiles."""
WIDTHS = (1, 20, 40)


def circle(w: int) -> str:
    """Three registers in a circle through a memory, each with its own enable."""
    index = 4 if w >= 4 else 1
    return f"""
module circle_{w}(input clk, input read, input compute, input write, input own, input [3:0] from,
                  input [3:0] to, input [39:0] d, output reg [{w - 1}:0] a,
                  output reg [{w - 1}:0] b, output reg [{w - 1}:0] c, output reg flag);
  reg [{w - 1}:0] words [0:15];
  integer i;
  initial begin
    for (i = 0; i < 16; i = i + 1) words[i] = i;
    a = 0; b = 0; c = 0; flag = 0;
  end
  always @(posedge clk) begin
    if (read) begin a <= words[from] ^ d[{w - 1}:0]; c <= b + {w}'d3; flag <= a == c; end
    if (compute) b <= (a ^ (c + a)) + d[{w - 1}:0];
    if (write) words[to] <= b;
    else if (own) words[a[{index - 1}:0]] <= c + flag;
  end
endmodule"""


def circles(module: str, cols: int) -> TileGrid:
    inputs = {"read": 1, "compute": 1, "write": 1, "own": 1, "from": 4, "to": 4, "d": 40}
    outputs = {f"{name}_{w}": (1 if name == "flag" else w) for w in WIDTHS
               for name in ("a", "b", "c", "flag")}
    body = "\n".join([
        *(f"  circle_{w} u_{w}(.clk(clk), {', '.join(f'.{name}({name})' for name in inputs)}, "
          f"{', '.join(f'.{name}({name}_{w})' for name in ('a', 'b', 'c', 'flag'))});"
          for w in WIDTHS), "endmodule", *map(circle, WIDTHS)]).removesuffix("endmodule")
    shared = ("read", "compute", "write", "from", "to")
    return TileGrid(module, "circles_tile",
                    lambda: VerilogTile("circles_tile", inputs, outputs, body), ROWS, cols,
                    [*(Shared(name) for name in shared), Each("own"), Each("d"),
                     *(Each(name) for name in outputs)])


CHOICE_INPUTS = {"en": 1, "op": 3, "sub": 1, "own": 1, "d": 32, "above": 32}
CHOICE_OUTPUTS = {"q": 32, "flag": 1, "down": 32}
CHOICES = """
  reg [31:0] x = 32'd5, y = 32'd0; reg z = 1'b0;
  assign q = x, down = y, flag = z;
  reg [31:0] r; reg f;
  always @* begin
    f = z;
    case (op)
      3'd0: r = (x * d) ^ ((x + 32'd77) * (d - 32'd3));
      3'd1: r = x + (sub ? ~d : d) + sub;
      3'd2: begin r = x >> d[4:0]; f = $signed(x) < $signed(d); end
      3'd3: r = x << d[4:0];
      3'd4: begin r = own ? x : above; f = x == d; end
      3'd5: r = $signed(x) >>> d[4:0];
      3'd6: r = x & d;
      default: r = {x[15:0], x[31:16]} * 32'd2654435761 + (x ^ (x >> 7)) * d;
    endcase
  end
  always @(posedge clk) begin
    if (en) begin x <= r; z <= f; end
    if (sub) y <= own ? x ^ above : y + x;
  end
"""


def choices(module: str, cols: int) -> TileGrid:
    return TileGrid(module, "choices_tile",
                    lambda: VerilogTile("choices_tile", CHOICE_INPUTS, CHOICE_OUTPUTS, CHOICES),
                    ROWS, cols, [*(Shared(name) for name in ("en", "op", "sub")),
                                 Each("own"), Each("d"), Each("q"), Each("flag"),
                                 Chain("down", "above", "south", first="north", last="bottom")])


LOOKUP_INPUTS = {"we": 1, "re": 1, "own": 1, "a": 12, "d": 16}
LOOKUPS = """
  // A large memory, and two registers in a group that all tiles share: one or the other changes.
  reg [15:0] words [0:4095];
  integer i;
  initial for (i = 0; i < 4096; i = i + 1) words[i] = 0;
  reg [15:0] r = 0, x = 1, y = 2;
  assign word = r, one = x, other = y;
  always @(posedge clk) begin
    if (we) words[a] <= d;
    if (re) r <= words[a];
    if (own) x <= y + d; else y <= x ^ d;
  end
"""


def lookups(module: str, cols: int) -> TileGrid:
    outputs = {"word": 16, "one": 16, "other": 16}
    return TileGrid(module, "lookups_tile",
                    lambda: VerilogTile("lookups_tile", LOOKUP_INPUTS, outputs, LOOKUPS),
                    ROWS, cols, [*map(Shared, ("we", "re", "a")),
                                 *map(Each, ("own", "d", *outputs))])


GRIDS = {"circles": circles, "choices": choices, "lookups": lookups}


def grid(name: str, cols: int) -> Callable[[str], TileGrid]:
    return lambda module: GRIDS[name](module, cols)


@pytest.fixture(scope="module", params=[PARTIAL, WHOLE])
def lockstep(request: pytest.FixtureRequest) -> Lockstep:
    return Lockstep(f"groups_{request.param}", {name: grid(name, request.param) for name in GRIDS},
                    ("native", *SECOND, "portable32"))


@pytest.mark.parametrize("density", [0.5, 0.1])
def test_groups_match_verilator(lockstep: Lockstep, density: float) -> None:
    rng = np.random.default_rng([SEED, int(100 * density)])
    inputs = {name: sparse(rng, width, CYCLES, density) if width == 1 or name.endswith("own")
              else random_words(rng, width, CYCLES) for name, width in lockstep.inputs.items()}
    with Model(lockstep.path) as model:
        assert lockstep.run(model, inputs, CYCLES).all()


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_groups_with_a_shared_enable_need_no_masks_in_whole_chunks(name: str) -> None:
    plan = plan_of(name)
    shared = sum(map(plan.uniform, (group.enable for group in plan.groups)))
    assert shared
    for cols, unmasked in ((WHOLE, shared), (PARTIAL, 0)):
        code = compile_grid(grid(name, cols)("masks"), tile_verilog(grid(name, cols)("masks"))).cpp
        assert code.count("constexpr uint64_t present = FULL<") == unmasked
        assert code.count("present = part<32>(enable, s)") + code.count(
            "present = part<16>(enable, s)") + code.count(
            "present = part<64>(enable, s)") == len(plan.groups) - unmasked


def test_alternatives_are_one_group_that_is_always_enabled() -> None:
    """Its tasks have enables of their own, which need masks although the group's does not."""
    (group,) = [group for group in plan_of("lookups").groups if len(group.tasks) == 2]
    assert group.enable.op == "bit"
    assert all(task.enable is not group.enable for task in group.tasks)


def plan_of(name: str) -> Plan:
    planned = grid(name, PARTIAL)("planned")
    return plan_grid(planned, read_tile(tile_verilog(planned), planned.tile_module))


def test_groups_in_a_circle_stay_apart() -> None:
    plan = plan_of("circles")
    assert any(group.late for group in plan.groups)
    for group in plan.groups:
        assert all(task.enable is group.enable for task in group.tasks)


def test_shared_choice_becomes_groups_of_their_own() -> None:
    plan = plan_of("choices")
    q = next(i for i, register in enumerate(plan.registers) if register.name in ("x", "q"))
    parts = [update for group in plan.groups for update in group.updates if update.register == q]
    assert len(parts) > 4
    assert len({update.enable for update in parts}) == len(parts)
