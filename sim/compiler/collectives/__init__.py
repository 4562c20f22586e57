"""Programs of whole cores that reduce arrays over all chips of a torus, and their common plan."""
