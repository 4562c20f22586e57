"""Whole programs as plain JAX functions, for tests of the compiler.

Each module has functions that make a `Program` of given sizes. `catalogue.PROGRAMS` lists all of
them at small sizes. The modules need JAX.
"""
