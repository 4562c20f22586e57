"""A program's code: encoding, the linear stream of bundles, and its split into segments."""
