"""Tests of the golden model of an FPGA's serial bridge."""
