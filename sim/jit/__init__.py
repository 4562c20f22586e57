"""Compiles the user's programs, StableHLO and functions of JAX, and runs them on a device."""
