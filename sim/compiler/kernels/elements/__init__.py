"""Elementwise operations as sequences of the vector unit's operations.

`expression` records such sequences. The functions of the other modules, grouped by purpose, each
record one sequence, and `table` finds the function for an operation of a graph.
"""
