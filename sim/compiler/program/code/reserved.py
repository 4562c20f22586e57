"""Scalar registers and semaphores that belong to the program around the kernels."""

from hdl import isa
from sim.asm.operands import s
from sim.compiler.machine.registers import RESERVED_SCALARS

__all__ = ["BLOCK_READ", "BLOCK_WRITTEN", "EXCHANGED", "FREE", "LOADED", "MOVED", "PAIR",
           "SCALAR_READ", "STAMP", "TARGET", "WORK"]

PAIR, TARGET, WORK, STAMP = (
    s[number] for number in range(isa.SCALAR_REGISTERS - RESERVED_SCALARS, isa.SCALAR_REGISTERS))
"""Registers.

``PAIR`` and ``TARGET`` tell the loader of segments the address of the first of a pair of
descriptors, and where to go then. ``WORK`` holds conditions, counters and indices for as long as
control flow needs them. ``STAMP`` holds the number of the kernel before which a program stops that
is being profiled, from 1; 0 at the end of the program.
"""

SCALAR_READ = 7
"""Semaphore of transfers to the window of scalar memory; kernels start such transfers too."""
MOVED = 8
"""Semaphore that counts transfers of values."""
FREE, EXCHANGED = 9, 10
"""Semaphores of exchanges: the other core's vectors are free; one of the two transfers is complete.
"""
BLOCK_READ, BLOCK_WRITTEN = 11, 12
"""Semaphores of streams and gathers: blocks of operands that have been read, and of results that
have been written."""
LOADED = 15
"""Semaphore that counts segments loaded."""
