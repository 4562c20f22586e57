"""Tests of the core and its sequencer."""
