"""Generators of docs and pictures, benchmarks, the Verilog export, and ``make fpga``."""
