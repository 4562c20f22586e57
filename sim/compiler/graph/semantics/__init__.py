"""Reference semantics in numpy: the interpreter's rule for each kind of operation."""
