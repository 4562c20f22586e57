"""What `make sim` and `make softmax` run."""
