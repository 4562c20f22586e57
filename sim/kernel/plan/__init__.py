"""Plan of a clock edge: what is computed when, which cells share state, which tiles are idle."""
