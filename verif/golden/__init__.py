"""Tests of the golden model against independent oracles."""
