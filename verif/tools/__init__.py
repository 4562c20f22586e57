"""Tests of the generators, benches and the Verilog export."""
