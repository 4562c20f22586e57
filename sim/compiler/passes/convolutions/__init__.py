"""Passes that rewrite convolutions in the forms that have kernels."""
