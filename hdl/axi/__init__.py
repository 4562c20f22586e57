"""The chip's bus interfaces: AXI4 masters for memory, and an AXI4-Lite slave for control."""
