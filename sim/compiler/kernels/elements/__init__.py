"""Elementwise operations as sequences of the vector unit's operations.

`expression` records such sequences. Each function of the other modules records one sequence;
`table` finds the function for an operation of a graph.
"""
