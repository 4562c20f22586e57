"""Systolith: an open bfloat16 tensor processor in RTL, and its driver.

    from systolith import Device

    with Device.open("v2") as device:
        product = device.matmul(a, b)

`jit` compiles functions that JAX traces, and `compile` StableHLO programs, for a device:

    with Device.open("v2") as device:
        y = systolith.jit(f)(x, device=device)

`load` reads a program that `CompiledProgram.save` wrote. `UnsupportedError` lists the parts of a
program that the compiler does not support. `profile` records all programs that run, with their
cycles. An `Infeed` is an argument of a jitted function that the host writes batch by batch during
the run. `Device` runs matrix products, dense layers (`Dense`) and compiled programs (`Executable`),
on the simulated hardware, on the golden model or on a board; a `Pod` is a torus of devices, and
`AllReduce` adds arrays over all its chips.
`BoardError` means that a board cannot be used. `Config` holds the parameters of a chip,
`HbmOptions` those of the simulated memory. A `Buffer` is a contiguous part of the device's memory.
The other errors end a run: a core's fault, a stop by another thread, a timeout. `Fault` lists the
faults, and `CoreState` describes the state of a core.

This package only re-exports names, and users should import them from here: the modules that define
them may move.
"""

from hdl.config import Config
from hdl.isa import Fault
from sim.compiler.dense.layers import Dense
from sim.compiler.executable import Executable
from sim.driver.collectives.reduce import AllReduce
from sim.driver.device import Device
from sim.driver.heap import Buffer
from sim.driver.pod import Pod
from sim.errors import (
    BoardError,
    CoreFaultError,
    CoreState,
    CoreStoppedError,
    DeviceTimeoutError,
    Unsupported,
    UnsupportedError,
)
from sim.jit.function import JitFunction, jit
from sim.jit.infeed import Infeed
from sim.jit.profile import Profile, ProgramRuns, profile
from sim.jit.program import CompiledProgram, compile, load
from sim.models.hbm import HbmOptions

__all__ = ["AllReduce", "BoardError", "Buffer", "CompiledProgram", "Config", "CoreFaultError",
           "CoreState", "CoreStoppedError", "Dense", "Device", "DeviceTimeoutError", "Executable",
           "Fault", "HbmOptions", "Infeed", "JitFunction", "Pod", "Profile", "ProgramRuns",
           "Unsupported", "UnsupportedError", "compile", "jit", "load", "profile"]
