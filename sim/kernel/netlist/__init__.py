"""Reader of a tile's netlist: from Yosys's cells to expressions on words."""
