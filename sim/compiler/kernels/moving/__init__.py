"""Copies of elements from one tiling to another: what the rules of movement are written with."""

from sim.compiler.kernels.moving.copy import Axis, copy, relayout

__all__ = ["Axis", "copy", "relayout"]
