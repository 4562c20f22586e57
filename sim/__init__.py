"""Simulation of the hardware, the compiler for it, and the host's driver."""
