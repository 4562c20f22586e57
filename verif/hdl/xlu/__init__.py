"""Tests of the cross-lane unit."""
