"""The user's programs: StableHLO and functions of JAX, compiled and run on a device."""
