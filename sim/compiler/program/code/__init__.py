"""A program's code: operations are encoded, collected in one line, and cut into overlays."""
