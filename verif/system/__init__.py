"""Whole-system verification: random programs, random products, exhaustive runs."""
