"""Benches of the hardware around the chip on an FPGA: serial host and SDRAM controller."""
