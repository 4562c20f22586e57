"""Simulated hardware in process: the matrix unit, a core, the chip with its memory."""
