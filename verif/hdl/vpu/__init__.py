"""Tests of the vector unit and its datapaths."""
