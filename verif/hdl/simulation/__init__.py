"""Amaranth's simulator for benches in Python, and its test."""
