"""Two sticky shifts in series become one, by the sum of their distances.

**Pattern.** S(S(x, a), b), where S(x, n) is `sticky_shift`, and a and b have no bits in common.

**Replacement.** S(x, a | b), which is S(x, a + b).

**Proof.** Let y = S(x, a) = ``x >> a``, with bit 0 set if x mod 2**a is not zero. If b = 0, both
sides are y. If b > 0, bit 0 of y does not reach ``y >> b``, which is ``x >> (a + b)``; and y mod
2**b is not zero if and only if ``(x >> a)`` mod 2**b or x mod 2**a is not zero, that is, if
x mod 2**(a + b) is not zero. Both sides set bit 0 in that case and only then. (For distances of 64
or more, x mod 2**n is x, and ``x >> n`` is zero.)
"""

from collections.abc import Sequence

from sim.kernel.ir import Graph, Node
from sim.kernel.rules.sticky import sticky_shift

__all__ = ["operands", "series"]


def series(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Node]:
    """Replacements for all pairs of sticky shifts in series among ``nodes``.

    ``nodes`` lists each node after its operands.
    """
    found = {}
    for node in nodes:
        if (outer := operands(graph, node)) is not None \
                and (inner := operands(graph, outer[0])) is not None \
                and not inner[1].bits & outer[1].bits:
            found[node] = sticky_shift(graph, inner[0], graph.or_(inner[1], outer[1]))
    return found


def operands(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """The number and the distance of a sticky shift; None if the node is not a sticky shift."""
    if node.op == "or":
        for arg in node.args:
            if arg.op == "shrv" and sticky_shift(graph, *arg.args) is node:
                x, distance = arg.args
                return x, distance
    return None
