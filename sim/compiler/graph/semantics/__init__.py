"""What each operation computes, in numpy: one rule for each kind."""
