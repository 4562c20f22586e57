"""Machine code on virtual registers, and its way to bundles.

Stages, in order:

- `builder` is what kernels call: operations, loops and branches on virtual registers (`ir`).
- `addresses` turns affine indexes into scalar registers and offsets.
- `emit` orders the operations in bundles, and yields `Code`.
- `registers` assigns physical registers.
"""

from sim.compiler.machine.builder import Builder
from sim.compiler.machine.emit import Code, emit
from sim.compiler.machine.ir import (
    Index,
    LoopVariable,
    MachineCode,
    MReg,
    SReg,
    VmemBuffer,
    VReg,
)

__all__ = ["Builder", "Code", "Index", "LoopVariable", "MReg", "MachineCode", "SReg", "VReg",
           "VmemBuffer", "emit"]
