"""Applications: `make sim` and `make softmax`."""
