"""Tests of collectives over whole pods."""
