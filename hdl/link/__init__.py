"""Links between chips, and the router that joins them to a torus."""
