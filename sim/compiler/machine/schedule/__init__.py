"""Scheduling: the order of operations, and which share a bundle.

- `resources`: what an operation occupies, and its latency.
- `dependences`: what must come before what, also across iterations of a loop.
- `straight`: list scheduling of operations without control flow.
- `modulo`: software pipelining of innermost loops; `pipeline` writes the result as bundles.
"""
