"""Golden models of the system on an FPGA board: the bridge to its serial line, and its SDRAM."""
