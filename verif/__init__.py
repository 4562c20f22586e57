"""Tests: unit tests, golden equivalence, lockstep runs and cocotb benches."""
