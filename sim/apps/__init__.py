"""Applications that run on the simulated chip, such as `make sim` and `make softmax`."""
