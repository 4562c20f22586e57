"""Tests of JAX on the chip."""
