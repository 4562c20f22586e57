"""Simulation: Verilator builds, tile kernels, and the host driver."""

from .device import (
    Buffer,
    CoreFaultError,
    CoreHaltedError,
    Dense,
    Device,
    DeviceTimeoutError,
)

__all__ = ["Buffer", "CoreFaultError", "CoreHaltedError", "Dense", "Device",
           "DeviceTimeoutError"]
