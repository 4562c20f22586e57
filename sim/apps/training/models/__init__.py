"""Models that can be trained on the chip."""
