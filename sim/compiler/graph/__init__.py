"""The compiler's graph of a program: typed values in static single assignment form."""
