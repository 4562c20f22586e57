"""Registers: physical ones for virtual ones, and vectors of which there are too many."""
