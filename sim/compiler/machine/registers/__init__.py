"""Assigns physical registers to virtual ones, and spills vectors if there are too few registers."""
