"""Chooses the carried values that a loop still loads while its first iteration runs."""

from collections.abc import Set

from sim.compiler.graph.counted import Counted
from sim.compiler.graph.ir import Operation
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.context import Context
from sim.compiler.program.tilings import CONTROL

__all__ = ["late_values"]

_LONG = frozenset({"dot_general", "convolution", "line_convolution", "phase_convolution"})
"""Kinds of operations during which values are loaded."""
_LARGE = 8
"""Least number of vectors of a value that is loaded late. Kernels that read smaller values may be
joined with kernels before them, which a wait would prevent."""
_WAIT = 64
"""Estimated cycles that a wait for such values costs in each iteration: with it, kernels may be
separate that are joined without it."""


def late_values(context: Context, operation: Operation, numbers: Set[int], loop: Counted
                ) -> dict[int, Rows]:
    """Return the carried values that a loop's first iteration waits for, and their HBM rows.

    They are large, and the loop's body reads them only after its last product or convolution. If
    the body branches, or if waits in all iterations would take longer than a wait for these values
    before the loop, there are none.

    Parameters
    ----------
    context : Context
        Shared state.
    operation : Operation
        The ``while``.
    numbers : set of int
        Numbers of the carried values that are to be loaded.
    loop : Counted
        The loop.

    Returns
    -------
    dict of int to Rows
        The rows, which are plain (`Rows.is_plain`), by number of the carried value.
    """
    body, places, tilings = operation.regions[1], context.places, context.tilings
    kinds = [made.kind for made in body.operations]
    if _LONG.isdisjoint(kinds) or not CONTROL.isdisjoint(kinds):
        return {}
    last = max(index for index, kind in enumerate(kinds) if kind in _LONG) + 1
    early = {value for made in body.operations[:last] for value in made.operands}
    read = {value for made in body.operations[last:] for value in made.operands} - early
    found, vectors = dict[int, Rows](), 0
    for number in numbers:
        value, initial = body.inputs[number], operation.operands[number]
        home, size = places.homes.get(initial), tilings[value].vectors
        if (value in read and size >= _LARGE and isinstance(home, Rows) and home.is_plain
                and places.buffer(initial) is None):
            found[number] = home
            vectors += size
    saved = vectors * context.config.sublanes // (loop.limit - loop.first)
    return found if saved > _WAIT else {}
