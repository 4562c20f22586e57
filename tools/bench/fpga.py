"""Size and clock frequency of the system of ``make fpga``, after place and route."""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from hdl.config import Config
from hdl.fpga.board import CRYSTAL_HZ, Board
from tools.fpga.board import HBM_BYTES
from tools.fpga.report import figures

__all__ = ["fpga_figures", "placed_figures"]

_BAUD = 1_000_000
_SEED = 1
_CELLS = {"comb": "TRELLIS_COMB", "ff": "TRELLIS_FF", "ebr": "DP16KD", "dsp": "MULT18X18D"}


def fpga_figures() -> dict[str, float]:
    """Place and route the system of ``make fpga`` on an LFE5U-85F, with nextpnr's seed 1.

    Returns
    -------
    dict of str to float
        See `placed_figures`.

    Raises
    ------
    ImportError
        If nextpnr or amaranth-boards is not installed.
    RuntimeError
        If a tool fails.
    """
    # It imports amaranth-boards, which is not a requirement of the other benchmarks.
    from tools.fpga import flow

    board = Board(Config.preset("fpga", hbm_bytes=HBM_BYTES), CRYSTAL_HZ, _BAUD)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        flow.synthesise(folder, flow.write(board, folder))
        return placed_figures(figures(flow.place_and_route(folder, _SEED), CRYSTAL_HZ))


def placed_figures(found: Mapping[str, Any]) -> dict[str, float]:
    """Pick the figures of a benchmark from ``found``, the result of `tools.fpga.report.figures`.

    Returns
    -------
    dict of str to float
        ``fpga_comb``, combinational cells; ``fpga_comb_percent``, their share of all those of the
        FPGA; ``fpga_ff``, registers; ``fpga_ebr``, block RAMs of 18 Kbit; ``fpga_dsp``, multipliers
        of 18 x 18 bits; ``fpga_fmax_mhz``, the highest clock frequency.
    """
    used = found["utilisation"]
    return {**{f"fpga_{name}": used.get(cell, {"used": 0})["used"]
               for name, cell in _CELLS.items()},
            "fpga_comb_percent": used["TRELLIS_COMB"]["percent"],
            "fpga_fmax_mhz": found["achieved_mhz"]}
