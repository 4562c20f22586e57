"""Whole programs as plain JAX functions, with which the compiler is tested.

Each module has functions that make a `Program` of given sizes; `catalogue.PROGRAMS` lists all of
them at small sizes. They need JAX.
"""
