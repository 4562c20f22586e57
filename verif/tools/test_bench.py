"""Assumptions of ``make bench`` that could be wrong without causing an error."""

import pathlib

import pytest

from hdl.sram import Sram
from tools.bench.cell import synthesise
from tools.bench.chip import count_cells


@pytest.mark.slow
@pytest.mark.parametrize(("width", "depth", "blocks", "lutram"), [(32, 256, 1, 0), (32, 4, 0, 8)])
def test_memories_become_those_of_the_fpga(tmp_path: pathlib.Path, width: int, depth: int,
                                           blocks: int, lutram: int) -> None:
    memory = Sram(width, depth)
    top = memory.module(width, depth)
    counts = count_cells(synthesise(tmp_path, top, {top: memory.verilog()},
                                    f"synth_ecp5 -nodsp -top {top}"))
    assert (counts["ebr"], counts["lutram"], counts["multipliers"]) == (blocks, lutram, 0)
    # Registers for the word read, and for a write, so that a read in the same cycle gives old data.
    assert width <= counts["ff"] <= 2 * width + 16
