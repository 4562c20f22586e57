"""Mutants of the RTL: draws faults, lets the tests judge them, and proves which change nothing."""
