"""Programs of the user: StableHLO and functions that JAX traces, compiled and run on a device."""
