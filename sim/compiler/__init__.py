"""Compiler: arrays and their operations in, programs for the cores out.

- `importer`, `graph`, `passes`, `kernels`, `machine` and `program` compile StableHLO
  (docs/compiler.md).
- `handwritten` writes the programs of `Device.matmul`, `Device.dense` and ``make softmax``.
- `executable` is the result of both: buffers and programs, which `sim.driver` runs.
- `layout` and `tiling` say how arrays lie in rows of HBM and in vectors.
"""
