"""Code generation: C++ that advances all tiles of a grid, and the Verilog shim that calls it."""
