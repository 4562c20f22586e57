"""Code of kernels and exchanges: allocation of their vectors, transfers, and lowering."""
