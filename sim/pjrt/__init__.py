"""PJRT plugin: JAX runs unchanged programs on the simulated chip; JAX's devices are its cores.

JAX finds this package through the entry point group ``jax_plugins``, and calls `initialize`.
"""

__all__ = ["initialize"]

PLATFORM = "systolith"


def initialize() -> None:
    """Register the platform with JAX, if the user has selected it.

    The user selects it in ``JAX_PLATFORMS`` or ``jax.config.jax_platforms``. The first platform in
    that list is JAX's default. If the platform is not selected, this function does nothing. The
    reason: JAX opens all registered platforms at first use, and would then build a simulation.
    """
    import jax

    if PLATFORM not in (jax.config.jax_platforms or "").split(","):
        return
    from sim.pjrt.platform import register

    register(PLATFORM)
