"""The chip on an FPGA board: memory in block RAM, and a serial line to the host."""
