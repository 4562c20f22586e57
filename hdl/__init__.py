"""Systolith's hardware, described in Amaranth HDL.

Where a docstring explains a signal of one bit by a statement, the signal is 1 in those cycles in
which the statement is true. Arguments ``m`` and ``platform`` are the Amaranth module to which logic
is added, and the platform for which it is elaborated (`hdl.tiles`).
"""
