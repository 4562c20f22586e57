"""Elementwise operations as sequences of the vector unit's operations.

`expression` records such sequences. The other modules hold the sequences, grouped by function,
and `table` finds the sequence for an operation of a graph.
"""
