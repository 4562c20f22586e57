"""Generators: docs/isa.md, docs/registers.md, timing diagrams, and sim/asm/slots.py."""
