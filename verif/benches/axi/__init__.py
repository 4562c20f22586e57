"""Benches of the AXI masters, and the checker on the pins of any AXI port."""
