"""A PJRT plugin: JAX runs unchanged programs on the simulated chip, whose cores are its devices.

JAX finds this package through the entry point group ``jax_plugins``, and calls `initialize`.
"""

__all__ = ["initialize"]

PLATFORM = "systolith"


def initialize() -> None:
    """Let JAX know the platform, if the user has chosen it.

    JAX opens all platforms that it knows when it is used first, so without ``JAX_PLATFORMS`` (or
    ``jax.config.jax_platforms``) this does nothing: the CPU stays the only one, and no simulation
    is built. The order of that list says which platform is the default.
    """
    import jax

    if PLATFORM not in (jax.config.jax_platforms or "").split(","):
        return
    from sim.pjrt.platform import register

    register(PLATFORM)
