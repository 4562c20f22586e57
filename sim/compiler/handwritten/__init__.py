"""Products, dense layers and softmax whose bundles are scheduled by hand.

Stages of a product or of dense layers, in order:

- `layers` checks the user's layers, and compiles them: the front end.
- `matmul` cuts a product into tiles; `plan` cuts it into blocks and shares it among the cores.
- `writer` writes the code of a core's share, on top of `transfers`, `frame` (addresses),
  `registers` and `code` (bundles, labels, loops).
- `chain` links the code of all products to one program for each core.

`softmax` is apart: a program with all data in vector memory.
"""
