"""Generators of docs/isa.md, docs/registers.md and sim/asm/slots.py."""
