"""The simulated hardware, the compiler for the hardware, and the host's driver."""
