"""Tile kernels: a tile's netlist compiled to SIMD C++, one vector lane per instance."""
