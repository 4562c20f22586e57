"""Tests of the import of StableHLO. They need JAX."""
