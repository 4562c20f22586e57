"""Tests of tools/forecast/."""
