"""Compiler: products, dense layers and softmax as programs for the cores.

Stages of a product or of dense layers, in order:

- `layers` checks the user's layers, and compiles them: the front end.
- `matmul` cuts a product into tiles; `plan` cuts it into blocks and shares it among the cores.
- `layout` places the host's arrays in rows of HBM.
- `matmul_code` writes the code of a core's share, on top of `matmul_transfers`,
  `matmul_frame` (addresses), `matmul_registers` and `code` (bundles, labels, loops).
- `chain` links the code of all products to one program for each core.
- `executable` is the result: buffers and programs, which `sim.driver` runs.

`softmax` is a program written by hand, with all data in vector memory.
"""
