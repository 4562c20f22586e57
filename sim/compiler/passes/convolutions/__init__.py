"""Convolutions in terms of those that the kernels take."""
