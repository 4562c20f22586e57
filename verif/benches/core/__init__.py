"""Benches of the core and of the sequencer."""
