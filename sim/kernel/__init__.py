"""Tile kernels: grids of equal tiles, translated to C++ on vector types.

The stages, in order:

1. `sim.kernel.netlist` reads a tile's Verilog as registers and expressions (`sim.kernel.ir`).
2. `sim.kernel.plan` decides what a clock edge computes, in which order, and which tiles are idle.
3. `sim.kernel.emit` writes C++, and a Verilog shim that calls it.

`sim.kernel.compile` runs them all.

In this package, a *register* is one or several flip-flops of a tile. A *vector* is a SIMD vector of
the processor that runs the simulation; it has one *lane* for each of several adjacent tiles.
*Vector code* is C++ that computes on such vectors. To *step* a tile is to compute its state after
the next clock edge.
"""

from sim.kernel.compile import Kernel, compile_grid

__all__ = ["Kernel", "compile_grid"]
