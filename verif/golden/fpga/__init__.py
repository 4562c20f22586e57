"""Tests of the golden torus."""
