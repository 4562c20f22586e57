"""Tile kernels: a grid of equal tiles as a C++ function that steps all of them."""

import pathlib
from dataclasses import dataclass

from hdl.tiles import TileGrid
from sim.kernel.emit.layout import can_skip
from sim.kernel.emit.shim import verilog_shim
from sim.kernel.emit.source import cpp_source
from sim.kernel.netlist.reader import PASSES, read_tile
from sim.kernel.plan.planner import plan_grid

__all__ = ["Kernel", "compile_grid"]

_HEADER = "vec.hpp"


@dataclass(frozen=True)
class Kernel:
    """A compiled grid.

    Attributes
    ----------
    module : str
        Name of the grid's module, with which the names of the kernel's C functions begin.
    cpp : str
        C++ source of the functions ``{module}_new``, ``{module}_delete``, ``{module}_outputs`` and
        ``{module}_step``. A parallel kernel has ``{module}_post``, ``{module}_posted`` and
        ``{module}_finish`` in place of ``{module}_step``. The source includes ``vec.hpp``.
    shim : str
        Verilog module that has the grid's name and ports, and calls these functions.
    can_skip : bool
        Whether idle tiles are skipped (`sim.kernel.plan.idle`).
    """

    module: str
    cpp: str
    shim: str
    can_skip: bool

    @property
    def sources(self) -> dict[str, str]:
        """C++ texts by file name, as `sim.verilated.build.build_model` accepts them."""
        header = pathlib.Path(__file__).with_name(_HEADER)
        return {f"{self.module}.cpp": self.cpp, _HEADER: header.read_text()}


def compile_grid(grid: TileGrid, tile_verilog: str, *, passes: str = PASSES,
                 parallel: bool = False) -> Kernel:
    """Compiles a grid of tiles to a kernel.

    Equal arguments give equal text, byte for byte.

    Parameters
    ----------
    grid : TileGrid
        The grid's size and links.
    tile_verilog : str
        Verilog of the tile's module and all that it instantiates.
    passes : str
        Yosys commands between reading the Verilog and writing the netlist.
    parallel : bool
        Let other threads of the model (`sim.verilated.model.Model.use_threads`) run the kernel's
        steps. The shim then passes the inputs at the falling edge of the clock, so no input may
        change between the falling and the rising edge.

    Returns
    -------
    Kernel

    Raises
    ------
    RuntimeError
        If Yosys rejects the Verilog.
    ValueError
        If the tile contains something that kernels do not support, such as an unknown cell type, a
        number of more than 64 bits, a second clock, or an output that is not registered; the
        message names it.
    """
    tile = read_tile(tile_verilog, grid.tile_module, passes=passes)
    plan = plan_grid(grid, tile)
    return Kernel(grid.module, cpp_source(grid, plan, parallel=parallel),
                  verilog_shim(grid, plan, parallel=parallel), can_skip(grid, plan))
