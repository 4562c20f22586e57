"""Sources of a simulated model whose tile grids are replaced by kernels."""

from collections.abc import Callable, Sequence
from typing import TypedDict

from amaranth.lib import wiring

from hdl.config import Config
from hdl.tiles import TileGrid, VerilogLibrary
from sim.kernel import compile_grid

__all__ = ["BLOCK_WAIVERS", "ModelSources", "with_kernels", "worth_optimising"]

BLOCK_WAIVERS = """\
// An output of a separately verilated block counts as a function of all inputs of the block.
lint_off -rule UNOPTFLAT
"""
"""Waivers for a model with hierarchical blocks, for `sim.verilated.build.build_model`."""


_LARGE = 64
"""Minimum array size of the configurations whose simulations usually run for long."""


def worth_optimising(config: Config, kernels: bool) -> bool:
    """Returns whether to optimise the C++ code of a model.

    ``kernels`` tells whether the model has kernels. With optimisation, they take twice as long to
    build, and the rest takes three times as long. The model then runs a quarter faster, which pays
    only for models that run for long. Tests that compare single grids, single units and pairs of
    cores with Verilog use optimised kernels of small configurations.
    """
    return kernels and config.array >= _LARGE


class ModelSources(TypedDict):
    """Source texts by file or module name, for `sim.verilated.build.build_model`."""

    verilog: dict[str, str]
    cpp: dict[str, str]


def with_kernels(top: str, make: Callable[[], wiring.Component], grids: Sequence[TileGrid] = (),
                 *, parallel: bool = False) -> ModelSources:
    """Writes a design as Verilog, with a tile kernel in place of each of ``grids``.

    Parameters
    ----------
    top : str
        Name of the top module. It may be the module of a grid.
    make : callable returning a Component
        Builds the design.
    grids : sequence of TileGrid
        Grids of the design to compile to kernels. Everything else is pure Verilog.
    parallel : bool
        Whether several threads may divide the kernels' steps (`Model.use_threads`). If so, no input
        of a grid may change between the falling and the rising edge of the clock.

    Returns
    -------
    ModelSources
        Verilog by module name, where a grid's module is its shim; C++ by file name.
    """
    verilog = VerilogLibrary().write(top, make, leave_out=[grid.module for grid in grids])
    files: dict[str, str] = {}
    for grid in grids:
        tile = VerilogLibrary().write(grid.tile_module, grid.make_tile)
        kernel = compile_grid(grid, "\n".join(tile.values()), parallel=parallel)
        verilog[grid.module] = kernel.shim
        files |= kernel.sources
    return {"verilog": verilog, "cpp": files}
