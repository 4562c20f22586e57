"""Scheduling: the order of operations, and which of them share a bundle.

- `resources`: the slots, units and ports that an operation occupies, and its latency.
- `dependences`: which operations must precede which, also across iterations of a loop.
- `pattern`: what the schedule of operations depends on, so that it is made only once.
- `straight`: list scheduling of operations without control flow.
- `modulo`: software pipelining of innermost loops; `pipeline` writes the result as bundles.
"""
