"""Tests of the DMA engine."""
