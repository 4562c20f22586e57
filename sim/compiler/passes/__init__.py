"""Passes: they transform a graph into an equal one."""
