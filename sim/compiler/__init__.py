"""Compiler: arrays and their operations in, programs for the cores out.

- `importer`, `graph`, `passes`, `kernels`, `machine` and `program` compile StableHLO
  (docs/compiler.md).
- `dense` writes the graphs of `Device.matmul` and `Device.dense`.
- `executable` is the result: buffers and programs, which `sim.driver` runs.
- `tiling` says how values lie in vectors.
"""
