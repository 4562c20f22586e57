"""The vector unit: lanes and what they compute with."""
