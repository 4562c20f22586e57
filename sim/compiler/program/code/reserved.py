"""Scalar registers and semaphores that are reserved for the code around the kernels."""

from hdl import isa
from sim.asm.operands import s
from sim.compiler.machine.registers.coloring import RESERVED_SCALARS

__all__ = ["BLOCK_READ", "BLOCK_WRITTEN", "EXCHANGED", "EXCHANGED_ALONE", "EXCHANGED_PARTS", "FED",
           "FREE", "LINKS", "LOADED", "MOVED", "PAIR", "SCALAR_READ", "SENT", "SHARED",
           "SLICES_READ", "STAMP", "TARGET", "WORK"]

PAIR, TARGET, WORK, STAMP = (
    s[number] for number in range(isa.SCALAR_REGISTERS - RESERVED_SCALARS, isa.SCALAR_REGISTERS))
"""Reserved scalar registers.

``PAIR`` and ``TARGET`` are arguments of the segment loader: the address of the first of a pair of
descriptors, and the bundle to which the loader jumps after the load. ``WORK`` holds conditions,
counters and indices while control flow needs them. ``STAMP`` is for the profiler: the number, from
1, of the kernel before which the program has halted, or 0 at the end of the program.
"""

LINKS = {("x", 1): 5, ("x", -1): 2, ("y", 1): 6, ("y", -1): 10}
"""Semaphores of exchanges along rings of chips, by the kind of ring and the way round it. Each
counts what arrives from the next chip in that direction: data, and signals that the destination
vectors on that chip are free."""
SCALAR_READ = 7
"""Semaphore that counts complete transfers to the window of scalar memory; kernels start such
transfers too."""
MOVED = 8
"""Semaphore that counts complete transfers of `VectorMemory.issue`, which move values."""
FREE, EXCHANGED, EXCHANGED_PARTS = 9, 3, (3, 4)
"""Semaphores of exchanges that are not along rings of chips. ``FREE`` counts signals of the other
core: each says that its destination vectors are free. ``EXCHANGED`` counts complete transfers; each
exchange has two, the one sent and the one received. Exchanges in two parts have a semaphore for
each part."""
EXCHANGED_ALONE = LINKS["y", -1]
"""Semaphore of a link that replaces ``EXCHANGED`` in programs for one chip, which use no links.
So code that waits for an exchange in one part need not wait for the first parts of exchanges in two
parts, which ``EXCHANGED`` counts."""
SHARED = LINKS["x", -1]
"""Semaphore that counts the transfers of values that the cores share ahead of a loop's next
iteration (`sim.compiler.program.control.halves`); only programs for one chip have them."""
SENT = EXCHANGED_PARTS[1]
"""Semaphore that counts the values that have left along rings of chips. It also counts the second
parts of exchanges, so code that waits for these parts waits for the values, too."""
BLOCK_READ, BLOCK_WRITTEN = 11, 12
"""Semaphores of streams and gathers: they count the complete transfers that read blocks of
operands, and those that write blocks of results."""
SLICES_READ = 13, 14
"""Semaphores that count complete transfers of slices which a loop loads for its next iteration: one
semaphore for each of two nested loops. In a loop around which no loop uses one, the first counts
the loads of values that its first iteration waits for (`sim.compiler.program.control.late`)."""
FED = SLICES_READ[1]
"""Semaphore that counts the batches that the host has written to the infeed; in a program with an
infeed, it has no other purpose."""
LOADED = 15
"""Semaphore that counts loaded segments."""
