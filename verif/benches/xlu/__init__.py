"""Benches of the cross-lane unit."""
