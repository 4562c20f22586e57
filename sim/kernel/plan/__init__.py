"""Plan of a clock edge: what is computed together, in which order, and which tiles are idle."""
