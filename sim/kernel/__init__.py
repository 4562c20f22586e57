"""Tile kernels: grids of equal tiles, translated to C++ on vector types.

The stages, in order: `sim.kernel.netlist` reads a tile's Verilog (`sim.kernel.connections`,
`sim.kernel.cells`) as a `sim.kernel.tile` of expressions (`sim.kernel.ir`); `sim.kernel.planner`
makes a `sim.kernel.plan` of the clock edge (`sim.kernel.groups`, `sim.kernel.idle`);
`sim.kernel.emit` and `sim.kernel.shim` write C++ and Verilog. `sim.kernel.compile` runs them all.
"""

from sim.kernel.compile import Kernel, compile_grid

__all__ = ["Kernel", "compile_grid"]
