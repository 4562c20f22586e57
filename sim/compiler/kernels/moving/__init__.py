"""Copies of elements between tilings, and the lowering rules of operations that move elements."""

from sim.compiler.kernels.moving.copy import Axis, copy, relayout

__all__ = ["Axis", "copy", "relayout"]
