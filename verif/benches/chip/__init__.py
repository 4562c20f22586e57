"""Benches of the chip and of its control slave."""
