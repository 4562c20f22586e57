"""``make fpga``: the bitstream of the system on an FPGA board, and a report."""
