"""Tests of the hardware that surrounds the chip on an FPGA."""
