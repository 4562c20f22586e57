"""Matrix products and dense layers: the programs of `Device.matmul` and `Device.dense`.

- `layers`: the layers that the user passes, and their checks.
- `graph`: the graph of the layers, for one core or for both.
- `program`: how the cores share the work; the executable and its arrays.
"""
