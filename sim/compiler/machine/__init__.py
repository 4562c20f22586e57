"""Machine code on virtual registers, and its way to bundles.

Stages, in order:

- `builder` and `flow` are what kernels call: operations, loops and branches on virtual registers
  (`ir`).
- `addresses` turns affine indexes into scalar registers and offsets.
- `layout` puts blocks one after the other, scheduled by `schedule`; `overlap` chooses how the
  iterations of innermost loops overlap.
- `registers` assigns physical registers.
- `emit` runs the stages, and yields `Code`.
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
