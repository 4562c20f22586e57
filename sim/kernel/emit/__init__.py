"""Writer of a kernel: C++ that advances all tiles, and the Verilog shim that calls it."""
