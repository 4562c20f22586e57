"""Simulation: Verilator builds, tile kernels, and the host driver."""

from .device import Buffer, CoreFaultError, Device, DeviceTimeoutError

__all__ = ["Buffer", "CoreFaultError", "Device", "DeviceTimeoutError"]
