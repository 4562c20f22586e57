"""Simulation: Verilator builds, tile kernels, and the host driver."""

from .device import Device

__all__ = ["Device"]
