"""Systolith: an open bfloat16 tensor processor in RTL, and its driver.

    from systolith import Device

    with Device.open("v2") as device:
        product = device.matmul(a, b)
"""

from hdl.config import Config
from sim.driver.device import (
    Buffer,
    CoreFaultError,
    CoreHaltedError,
    Dense,
    Device,
    DeviceTimeoutError,
)
from sim.models.hbm import HbmOptions

__all__ = ["Buffer", "Config", "CoreFaultError", "CoreHaltedError", "Dense", "Device",
           "DeviceTimeoutError", "HbmOptions"]
