"""The chip's edges: AXI4 masters to memory, an AXI4-Lite slave for control."""
