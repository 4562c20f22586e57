"""The host's side of the serial line to a chip on an FPGA board."""
