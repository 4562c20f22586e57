"""Sticky shift: whether a shift to the right drops ones is tested by shifting back.

**Pattern.** ``test(x & (M ^ (K & ((2**w - 1) << n))), mask)``, where the constants M, K, ``mask``
and 2**w - 1 have all bits that x can have; K may be absent.

**Replacement.** ``(x >> n) << n != x``.

**Proof.** Let i < w be a bit that x can have. Bit i of ``(2**w - 1) << n`` is one if and only if
i >= n: for n >= 64 the shift yields zero. M has bit i, so bit i of the exclusive or with M is one
if and only if i < n. The test therefore asks for ones of x below bit n. Shifting x by n to the
right and back clears exactly these, so the result differs from x if and only if there are any. The
shift back loses no other bits, because it moves each one to a place that it had in x.
"""

from collections.abc import Sequence

from sim.kernel.ir import Graph, Node

__all__ = ["shifted_out", "stickies", "sticky_shift"]


def stickies(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Node]:
    """Replacements for all tests of dropped bits among ``nodes``.

    ``nodes`` lists each node after its operands.
    """
    found = {}
    for node in nodes:
        if node.op == "test" and node.args[0].op == "and":
            for x, dropped in (node.args[0].args, node.args[0].args[::-1]):
                distance = _distance(dropped, x)
                if distance is not None and not x.bits & ~node.number:
                    found[node] = shifted_out(graph, x, distance)
    return found


def shifted_out(graph: Graph, x: Node, distance: Node) -> Node:
    """Whether a shift of ``x`` to the right by ``distance`` bits drops ones."""
    kept = graph.shlv(graph.shrv(x, distance), distance)
    return graph.not_(graph.eq(kept, x))


def sticky_shift(graph: Graph, x: Node, distance: Node) -> Node:
    """``x`` shifted right by ``distance`` bits, with the lowest bit set if the shift drops ones."""
    return graph.or_(graph.shrv(x, distance), graph.from_bit(shifted_out(graph, x, distance)))


def _is_low_mask(value: int) -> bool:
    """Whether the ones of a number are its lowest bits."""
    return not value & (value + 1)


def _distance(dropped: Node, x: Node) -> Node | None:
    """The distance n of a shift of x to the right, given the mask of the bits that it drops.

    None if ``dropped`` is no mask of the form ``M ^ ((2**w - 1) << n)``, with a constant M.
    """
    if dropped.op != "xor" or dropped.args[1].op != "const":
        return None
    kept, mask = dropped.args
    visible = mask.number
    if kept.op == "and" and kept.args[1].op == "const":
        visible &= kept.args[1].number
        kept = kept.args[0]
    if kept.op != "shlv" or kept.args[0].op != "const":
        return None
    ones = kept.args[0].number
    if not _is_low_mask(ones) or x.bits & ~(ones & visible):
        return None
    return kept.args[1]
