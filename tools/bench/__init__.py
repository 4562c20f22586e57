"""Benchmarks: simulation speed, and area and clock frequency on FPGAs."""
