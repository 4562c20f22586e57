"""Kernels: rules that write the machine code of a graph's operations."""
