"""Generators of docs and pictures, benches, and the Verilog export."""
