"""Reader of a tile's netlist: from Yosys's cells to expressions of numbers and bits."""
