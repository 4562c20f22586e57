"""The host's end of the serial line to a chip on an FPGA board."""
