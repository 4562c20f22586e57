"""Matrix products and dense layers: what `Device.matmul` and `Device.dense` compile.

- `layers`: the user's layers, checked.
- `graph`: their graph, for one core or for both.
- `program`: how the cores share the work; the executable, and its arrays.
"""
