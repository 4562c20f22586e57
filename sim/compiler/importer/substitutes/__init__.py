"""Functions of JAX that take the place of operations for which there are no kernels."""
