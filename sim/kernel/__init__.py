"""Tile kernels: grids of equal tiles, translated to C++ on vector types."""

from sim.kernel.compile import Kernel, compile_grid

__all__ = ["Kernel", "compile_grid"]
