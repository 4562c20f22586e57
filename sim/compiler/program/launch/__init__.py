"""Code of kernels and exchanges, and what surrounds a kernel."""
