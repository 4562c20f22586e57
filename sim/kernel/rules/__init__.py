"""Rules that replace patterns of expressions by cheaper ones of equal value.

Hardware and vector code have different costs: a shift by a variable distance is many levels of
multiplexers in hardware, which is why a normaliser there shifts in steps, and one instruction here.
Each rule is a module that proves it; `sim.kernel.rules.rewrite` applies them all.
"""
