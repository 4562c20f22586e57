"""Rewrites operations whose values do not fit vector memory as streams of blocks."""

from sim.compiler.passes.streaming.stream_large import stream_large

__all__ = ["stream_large"]
