"""Comparison of a shifted number: shifts the other number instead, where that costs nothing.

**Pattern.** ``(x >> k) < y``, or ``((x >> k) & (2**m - 1)) < y``, where ``y << k`` loses no bits
and is computed anyway.

**Replacement.** ``x < y << k``; with the mask, ``(x & (2**(m + k) - 1)) < y << k``.

**Proof.** ``x >> k`` is the quotient of x by 2**k, rounded down. As y is an integer, the quotient
is less than y if and only if x is less than y * 2**k, which is ``y << k``. With the mask, the same
holds for x mod 2**(m + k), whose shift is ``(x >> k)`` mod 2**m.
"""

from collections.abc import Sequence

from sim.kernel.ir import ALL, Graph, Node

__all__ = ["comparisons"]


def comparisons(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Node]:
    """Replacements for all comparisons of shifted numbers among ``nodes``.

    ``nodes`` lists each node after its operands.
    """
    found = {}
    known = set(nodes)
    for node in nodes:
        if node.op == "ltu" and (shifted := _shifted(node.args[0])) is not None:
            x, distance, mask = shifted
            y = node.args[1]
            if y.bits << distance > ALL:
                continue
            limit = _shl(graph, y, distance)
            if limit in known:
                found[node] = graph.ltu(graph.and_(x, graph.const(mask)), limit)
    return found


def _shifted(node: Node) -> tuple[Node, int, int] | None:
    """Splits a right shift by a constant: the number x, the distance k, and the mask of x.

    The mask has the bits of x that matter to the node: all (`ALL`) for ``x >> k``, and
    ``2**(m + k) - 1`` for ``(x >> k) & (2**m - 1)``. None for other nodes.
    """
    mask = ALL
    if node.op == "and" and node.args[1].op == "const":
        mask = node.args[1].number
        node = node.args[0]
    if node.op != "shr" or mask & (mask + 1):
        return None
    distance = node.number
    return node.args[0], distance, (mask << distance | ((1 << distance) - 1)) & ALL


def _shl(graph: Graph, y: Node, distance: int) -> Node:
    """``y`` shifted to the left by ``distance`` bits.

    If ``y`` is the bitwise OR of two nodes, each of these is shifted instead. The netlist does the
    same, so the graph already has the resulting node.
    """
    if y.op == "or":
        return graph.or_(*(_shl(graph, arg, distance) for arg in y.args))
    return graph.shl(y, distance)
