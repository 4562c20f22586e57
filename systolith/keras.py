"""Public names for programs that use Keras 3 with its JAX backend; needs the package keras."""

from sim.pjrt.steps import OneProgram

__all__ = ["OneProgram"]
