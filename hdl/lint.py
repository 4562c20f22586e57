"""Waivers for the Verilator warnings that the exported Verilog raises."""

__all__ = ["LINT_WAIVERS"]

LINT_WAIVERS = """\
// Amaranth gives every register an initial value, even without a reset. FPGAs load it. An ASIC flow
// ignores it: no result depends on it (the first activations wait for a swap).
lint_off -rule PROCASSINIT
// An addition keeps its carry bit although the register behind it drops it, and a memory has the
// reset port of every clocked module but no use for it.
lint_off -rule UNUSEDSIGNAL
// Yosys relies on Verilog to extend the operands of an arithmetic operator to the result.
lint_off -rule WIDTHEXPAND
// Yosys writes "word equals zero" as the logical negation of the word.
lint_off -rule WIDTHTRUNC -file "*" -match "*LOGNOT*"
// Yosys writes a one-hot multiplexer as a function of a, b and s, with a case whose patterns test
// one bit each.
lint_off -rule CASEOVERLAP
lint_off -rule VARHIDDEN
// A port may have the name of a C++ keyword.
lint_off -rule SYMRSVDWORD
"""
"""Verilator warnings that the exported Verilog raises, each with the reason why it is harmless."""
