"""Decides whether a sum over all cores of a pod leads a program's last kernel.

If it does, the kernel computes vectors of its result as soon as the sum has completed those that it
reads, and stores them in HBM. Both cores of a chip must decide alike, because neither sends the
other complete pieces. They do: the decision follows from the operations, the tilings and the torus.
"""

from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.walks import completed
from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.elementwise import is_flat
from sim.compiler.kernels.lowering import Place
from sim.compiler.machine import VmemBuffer
from sim.compiler.program.context import Context
from sim.compiler.program.launch.kernel import KernelLowering

__all__ = ["is_led"]

_PARTS = 24
"""Maximum number of parts of a kernel that a sum leads."""


def is_led(context: Context, kernel: Operation, operation: Operation, shares: SumShares) -> bool:
    """Return whether a sum can lead a kernel.

    The kernel must compute each vector of its result from one vector of the sum, and its result
    must be one of which each core stores only a part. If so, each core can store the vectors of its
    own half of the sum instead.

    Parameters
    ----------
    context : Context
    kernel : Operation
        The program's last operation.
    operation : Operation
        The program's last sum; only the kernel uses its results.
    shares : SumShares
        How it is divided.
    """
    tilings, results = context.tilings, (*operation.results, *kernel.results)
    if len(results) != 2 or not context.alike or tilings[results[0]] != tilings[results[1]]:
        return False
    rows, (_, second) = context.ends.get(kernel.result), shares.quarters(1)
    return (rows is not None and rows.is_plain
            and shares.padded - shares.vectors < second.vectors
            and sum(map(len, completed(shares, 0, (0, 0)))) <= _PARTS
            and is_flat(kernel, KernelLowering(context.config, {
                value: Place(VmemBuffer("", 0, tilings[value].vectors), tilings[value])
                for value in (*kernel.operands, kernel.result)}, context.places.allocate,
                lambda buffer, words: None)))
