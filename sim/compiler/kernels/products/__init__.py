"""Products and convolutions on the array."""
