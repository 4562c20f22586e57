"""Benches of the MAC cell and of the matrix unit."""
