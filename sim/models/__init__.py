"""Simulated hardware, run in this process: matrix unit, core, and chip with its memory."""
