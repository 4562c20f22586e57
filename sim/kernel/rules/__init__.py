"""Rules that replace patterns of expressions by cheaper ones of equal value.

Hardware and vector code have different costs. For example, a shift by a variable distance is one
instruction in vector code. In hardware it takes many levels of multiplexers, so a normaliser shifts
in steps. Each rule has a module, whose docstring proves the rule; `sim.kernel.rules.rewrite`
applies all of them.
"""
