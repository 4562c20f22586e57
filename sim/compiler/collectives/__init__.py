"""Programs of whole cores that reduce arrays over all chips of a torus, and what they agree on."""
