"""Tests of the hardware, unit by unit."""
