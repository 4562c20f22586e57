"""Benchmarks: simulation speed, cycles of programs, and size and clock frequency on FPGAs."""
