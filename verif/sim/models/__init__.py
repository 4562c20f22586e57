"""Tests of the simulated hardware."""
