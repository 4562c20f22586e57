"""Systolith's hardware, described in Amaranth HDL."""

from . import yosys  # noqa: F401  (makes Amaranth use the pinned Yosys)
