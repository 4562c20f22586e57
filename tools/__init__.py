"""Generators of docs and pictures, benchmarks, and the Verilog export."""
