"""Tests of the host's side of the serial line."""
