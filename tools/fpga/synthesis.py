"""Synthesis for a Lattice ECP5, by Yosys."""

import pathlib
from collections.abc import Mapping

__all__ = ["CARRY", "SELECT", "SHIFT", "comb", "passes"]

_WEIGHTS = {"LUT4": 1, "CCU2C": 2, "TRELLIS_DPR16X4": 6}
"""Number of combinational cells that place and route uses for each cell of the netlist, by type.
A CCU2C, two bits of a carry chain, needs two. A TRELLIS_DPR16X4, a memory of 16 x 4 bits, needs
four for its bits and two for its write port."""

CARRY = pathlib.Path(__file__).with_name("carry.v")
"""Map of Yosys' ``techmap`` for adders with a constant carry input."""
SELECT = pathlib.Path(__file__).with_name("select.v")
"""Map of Yosys' ``techmap`` for `hdl.vpu.registers.WordSelect`."""
SHIFT = pathlib.Path(__file__).with_name("shift.v")
"""Map of Yosys' ``techmap`` for shifters of 32 bits."""


def passes(top: str) -> str:
    """Yosys commands that flatten a design and map it to an ECP5, with its multipliers.

    These are the steps of ``synth_ecp5 -nowidelut``, with two changes. First, ``share`` and ``fsm``
    are left out; ``share`` would merge read ports of register files through the fault logic, which
    makes long paths. Second, ``shift.v`` maps shifters, ``carry.v`` maps some adders, and
    ``select.v`` the choice of a word in large register files.
    """
    return f"""\
design -push
read_verilog -icells <<END_OF_FILE
{SELECT.read_text()}
END_OF_FILE
design -save select
design -reset
read_verilog -icells <<END_OF_FILE
{SHIFT.read_text()}
END_OF_FILE
design -save shift
design -reset
read_verilog -icells <<END_OF_FILE
{CARRY.read_text()}
END_OF_FILE
design -save carry
design -pop
synth_ecp5 -run begin:coarse -top {top}
proc
techmap -map %select
flatten
opt_expr
opt_clean
opt -nodffe -nosdff
opt
wreduce
peepopt
opt_clean
techmap -map %shift
opt_clean
techmap -map +/cmp2lut.v -D LUT_WIDTH=4
opt_expr
opt_clean
techmap -map +/mul2dsp.v -map +/lattice/dsp_map_18x18.v -D DSP_A_MAXWIDTH=18 \
-D DSP_B_MAXWIDTH=18 -D DSP_A_MINWIDTH=2 -D DSP_B_MINWIDTH=2 -D DSP_NAME=$__MUL18X18
chtype -set $mul t:$__soft_mul
alumacc
opt
memory -nomap
opt_clean
synth_ecp5 -nowidelut -run map_ram:map_gates -top {top}
techmap -map +/techmap.v -map +/lattice/arith_map_ccu2c.v -map %carry
synth_ecp5 -nowidelut -run map_gates: -top {top}"""


def comb(cells: Mapping[str, int]) -> int:
    """Number of combinational cells of an ECP5 that a netlist needs.

    ``cells`` has the number of cells of each type in the netlist.
    """
    return sum(weight * cells.get(name, 0) for name, weight in _WEIGHTS.items())
