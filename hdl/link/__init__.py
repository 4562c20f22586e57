"""Links between chips, and the router that joins them into a torus."""
