"""Whole programs as plain JAX functions: what the compiler is tried on.

Each module has functions that make a `Program` of given sizes; `catalogue.PROGRAMS` has all at
small sizes. They need JAX.
"""
