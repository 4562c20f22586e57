"""Where values and scalars are in the memories, and the transfers between them."""
