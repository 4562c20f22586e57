"""The reference semantics in numpy: one rule for each kind of operation."""
