"""Simulation: Verilator builds, tile kernels, and the host driver."""
