"""Code of loops, conditionals, streams, and transfers from HBM to HBM."""
