"""Tests of the matrix unit: cell, array, lanes."""
