"""Tests of compiled functions and programs."""
