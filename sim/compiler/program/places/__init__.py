"""Places of values in vector memory, HBM and scalar memory, and transfers between them."""
