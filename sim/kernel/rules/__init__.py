"""Rules that replace patterns of expressions by cheaper ones of equal value.

Hardware and vector code have different costs. For example, a shift by a variable distance takes
many levels of multiplexers in hardware, where a normaliser therefore shifts in steps, but only one
instruction in vector code. Each rule has a module, whose docstring proves the rule;
`sim.kernel.rules.rewrite` applies all of them.
"""
