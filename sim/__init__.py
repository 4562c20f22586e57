"""Simulation of the hardware, the compiler of programs for it, and the host's driver."""
