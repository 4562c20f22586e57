"""Writes operations that vector memory does not hold as streams of blocks."""

from sim.compiler.passes.streaming.stream_large import stream_large

__all__ = ["stream_large"]
