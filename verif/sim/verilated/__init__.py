"""Tests of Verilator builds and their cache."""
