"""Training on the chip: `make sim`."""
