"""Benches in cocotb on the exported Verilog; ``python -m verif.benches`` runs all of them."""
