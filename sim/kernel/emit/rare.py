"""Rare bits: a SIMD vector in which all of them are 0 needs fewer operations.

The vector code has two versions of a group's values: a general one, and a simplified one that
assumes that the group's rare bits are 0. A vector uses the simplified version unless a rare bit is
set in one of its lanes; then it computes both, and uses the general one. The result is exact for
every choice of rare bits, and the code is faster if they are seldom set. Rare bits are chosen among
comparisons with a number whose bits are all ones, which is how infinities and NaNs are recognised.
"""

from collections.abc import Callable, Sequence

from sim.kernel.ir import Graph, Node, topological
from sim.kernel.transform import substitute

__all__ = ["rare_bits", "without"]

_LEAST_SAVING = 3
"""Minimum number of operations that a bit must save to be chosen as a rare bit."""


def rare_bits(graph: Graph, values: Sequence[Node], outside: Callable[[Node], bool]) -> list[Node]:
    """Chooses the rare bits of a group: those that save the most operations where they are 0.

    Parameters
    ----------
    graph : Graph
        Builds the simplified values.
    values : sequence of Node
        Values of a group.
    outside : callable
        Tells whether a node is computed outside the vector code, and so costs nothing here.
    """
    chosen: list[Node] = []
    cost = _cost(values, outside)
    candidates = [node for node in topological(values, outside)
                  if _is_rare(node) and not outside(node)]
    while candidates:
        # The cost of the rare bits themselves is included: they are always computed.
        costs = {node: _cost([*without(graph, values, [*chosen, node]), *chosen, node], outside)
                 for node in candidates}
        best = min(candidates, key=lambda node: (costs[node], node.index))
        if cost - costs[best] < _LEAST_SAVING:
            break
        cost = costs[best]
        chosen.append(best)
        candidates.remove(best)
    return chosen


def without(graph: Graph, values: Sequence[Node], bits: Sequence[Node]) -> list[Node]:
    """The ``values``, simplified under the assumption that all ``bits`` are 0."""
    return substitute(graph, values, dict.fromkeys(bits, graph.bit(0)))


def _is_rare(node: Node) -> bool:
    return (node.op == "eq" and node.args[1].op == "const"
            and node.args[1].number.bit_count() >= 8
            and node.args[1].number == node.args[0].bits)


def _cost(values: Sequence[Node], outside: Callable[[Node], bool]) -> int:
    return sum(node.op not in ("const", "leaf") and not outside(node)
               for node in topological(values, outside))
