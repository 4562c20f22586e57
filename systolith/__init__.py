"""Systolith: an open bfloat16 tensor processor in RTL, and its driver.

    from systolith import Device

    with Device.open("v2") as device:
        product = device.matmul(a, b)
"""

from hdl.config import Config
from sim.driver.device import Buffer, Dense, Device
from sim.errors import CoreFaultError, CoreStoppedError, DeviceTimeoutError
from sim.models.hbm import HbmOptions

__all__ = ["Buffer", "Config", "CoreFaultError", "CoreStoppedError", "Dense", "Device",
           "DeviceTimeoutError", "HbmOptions"]
