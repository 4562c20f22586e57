"""Tests of the elaboration."""
