"""Tests of the serial host of a chip on an FPGA."""
