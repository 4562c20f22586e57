"""Clamp of a sticky shift's distance: dropped where the number has few bits.

**Pattern.** S(x, n), where S is `sticky_shift` and x < 2**w. For a number d and constants C, H and
L, n is ``C & L`` if any bit of d under the mask H is one, and ``d & L`` if none is. ``C & L`` and
the lowest bit of H are both at least w.

**Replacement.** S(x, d & (H | L)).

**Proof.** If no bit of d under H is one, ``d & (H | L)`` is ``d & L``, which is n. Otherwise it is
at least the lowest bit of H. Then both distances are at least w, and S(x, n) is the same for all
n >= w: ``x >> n`` is zero, and bit 0 is set if and only if x is not zero.
"""

from collections.abc import Sequence

from sim.kernel.ir import ALL, Graph, Node
from sim.kernel.rules.sticky import sticky_shift
from sim.kernel.rules.sticky_series import operands

__all__ = ["clamps"]


def clamps(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Node]:
    """Return a replacement for each node of ``nodes`` that is a sticky shift by a clamped distance.

    ``nodes`` lists each node after its operands.
    """
    found = {}
    for node in nodes:
        if (shift := operands(graph, node)) is not None:
            x, clamped = shift
            distance = _unclamped(graph, clamped, x.bits.bit_length())
            if distance is not None:
                found[node] = sticky_shift(graph, x, distance)
    return found


def _unclamped(graph: Graph, clamped: Node, width: int) -> Node | None:
    """Return a shift distance without the clamp; None if ``clamped`` does not match the pattern.

    For numbers of ``width`` bits, a sticky shift by this distance gives the same result as one by
    ``clamped``.
    """
    kept = ALL
    if clamped.op == "and" and clamped.args[1].op == "const":
        clamped, mask = clamped.args
        kept = mask.number
    if clamped.op != "sel" or clamped.args[0].op != "test" or clamped.args[1].op != "const":
        return None
    far, most, near = clamped.args
    if near.op == "and" and near.args[1].op == "const":
        kept &= near.args[1].number
        near = near.args[0]
    if graph.test(near, far.number) is not far:
        return None
    if most.number & kept < width or far.number & -far.number < width \
            or most.number & ~kept & ALL:
        return None
    return graph.and_(near, graph.const(far.number | kept))
