"""Compiles programs in StableHLO and functions of JAX, and runs them on a device."""
