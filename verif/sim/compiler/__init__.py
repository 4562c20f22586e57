"""Tests of compiled programs."""
