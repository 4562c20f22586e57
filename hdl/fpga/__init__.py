"""The chip on an FPGA board: memory in block RAM or SDRAM, and a serial line to the host."""
