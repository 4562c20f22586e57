"""Tests of the programs of collectives."""
