"""The chip: cores with their ways to memory, and the host's control of them."""
