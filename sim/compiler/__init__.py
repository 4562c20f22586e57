"""Compiler: translates functions of arrays to programs for the cores.

- `importer`, `graph`, `passes`, `kernels`, `machine` and `program` are the stages that compile
  StableHLO (docs/compiler.md).
- `dense` writes the graphs of `Device.matmul` and `Device.dense`.
- `executable` is the result: buffers and programs, which `sim.driver` runs.
- `tiling` says how values lie in vectors.
"""
