"""The chip: cores with DMA engines and memory ports, and the host's control of them."""
