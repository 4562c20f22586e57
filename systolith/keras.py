"""What programs that use Keras 3 with its JAX backend may import; needs the package keras."""

from sim.pjrt.steps import OneProgram

__all__ = ["OneProgram"]
