"""Runs machine code on the golden core."""

import numpy as np

from golden.core import GoldenCore
from hdl.isa import Fault
from sim.asm.assembler import Assembler
from sim.compiler.machine.emit import Code

SEED = 20261122


def stimulus(core: GoldenCore, seed: int = SEED) -> None:
    """Fill vector memory with random integers of -1000 to 999, and scalar memory with 0 to 7."""
    rng = np.random.default_rng(seed)
    core.vmem[:] = rng.integers(-1000, 1000, core.vmem.shape).astype(np.int32).view(np.uint32)
    core.smem[:] = rng.integers(0, 8, core.smem.shape)


def run(code: Code, core: GoldenCore | None = None, limit: int = 100_000) -> GoldenCore:
    """Execute code until it halts, on the given core or on a new one filled by `stimulus`."""
    if core is None:
        core = GoldenCore(code.config)
        stimulus(core)
    asm = Assembler(code.config)
    code.write(asm, "k_")
    with asm.bundle() as bundle:
        bundle.s1.halt()
    core.load_program(asm.assemble().bundles)
    core.start()
    executed = core.run(limit)
    core.forget_bundles()
    assert not core.running, f"still running after {executed} bundles"
    assert core.fault is Fault.NONE, core.fault
    return core
