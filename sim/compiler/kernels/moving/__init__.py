"""Copies of elements between tilings: the functions with which rules of movement are written."""

from sim.compiler.kernels.moving.copy import Axis, copy, relayout

__all__ = ["Axis", "copy", "relayout"]
