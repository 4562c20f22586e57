"""The rounding at the array's edge against the golden model."""

import numpy as np

from golden.numerics import bits, from_bits, to_bf16
from hdl.bf16 import RoundToBf16
from hdl.lint import LINT_WAIVERS
from hdl.tiles import VerilogLibrary
from sim.verilated.build import build_model
from sim.verilated.model import Model

SEED = 1


def test_rounding_matches_golden_for_every_upper_half() -> None:
    rng = np.random.default_rng(SEED)
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    around_ties = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    lower = [*np.broadcast_to(around_ties[:, None], (len(around_ties), len(upper))),
             *rng.integers(0, 1 << 16, (8, len(upper)), dtype=np.uint32)]
    words = np.concatenate([upper | low for low in lower])

    # A combinational module, clocked by a register around it.
    sources = VerilogLibrary().write("round_to_bf16", RoundToBf16)
    sources["round_registered"] = (
        "module round_registered(input clk, input [31:0] i, output reg [15:0] o);\n"
        "  wire [15:0] rounded;\n"
        "  round_to_bf16 round (.i(i), .o(rounded));\n"
        "  always @(posedge clk) o <= rounded;\n"
        "endmodule\n")
    library = build_model("round_registered", sources, waivers=LINT_WAIVERS, optimise=None)
    with Model(library) as model:
        got = model.run({"i": words}, ["o"])["o"][:, 0]
    want = bits(to_bf16(from_bits(words)))
    bad = np.flatnonzero(got != want)
    assert not bad.size, [f"{words[i]:08x}: {got[i]:04x}, not {want[i]:04x}" for i in bad[:5]]
