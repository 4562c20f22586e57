"""Systolith's hardware, described in Amaranth HDL."""
