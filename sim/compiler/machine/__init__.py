"""Machine code on virtual registers, and its translation to bundles.

Here, a *register* is a vector, mask or scalar register, and a *block* is a list of operations,
loops and branches that are executed in order.

Stages, in order:

- `builder` and `flow` are the interface for kernels: operations, loops and branches on virtual
  registers (`ir`).
- `addresses` turns affine indexes into scalar registers and offsets.
- `layout` places the blocks one after the other, each scheduled by `schedule`; `overlap` chooses
  how the iterations of innermost loops overlap.
- `registers` assigns physical registers; if there are too few, `spill` keeps some vectors in vector
  memory.
- `emit` runs the stages and returns `Code`; by `reuse`, it does so once for code that differs only
  in addresses.
"""

from sim.compiler.machine.builder import Builder
from sim.compiler.machine.emit import Code, emit
from sim.compiler.machine.ir import (
    Index,
    LoopVariable,
    MachineCode,
    MReg,
    RangeAt,
    SReg,
    VmemBuffer,
    VReg,
)

__all__ = ["Builder", "Code", "Index", "LoopVariable", "MReg", "MachineCode", "RangeAt", "SReg",
           "VReg", "VmemBuffer", "emit"]
