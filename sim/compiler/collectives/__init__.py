"""The all-reduce over all chips of a torus: the plan, and the program that each core runs."""
