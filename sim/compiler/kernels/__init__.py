"""Kernels: how each operation of a graph becomes machine code."""
