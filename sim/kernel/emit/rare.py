"""Rare bits: vectors of tiles in which they are all zero need fewer operations.

The values of a group are also simplified under the assumption that some of its bits are 0, and the
vector code takes the simpler ones unless such a bit is set in some lane. This is exact for every
choice of bits; it saves time if they are seldom set, and a vector with one of them costs both
computations. The choice: comparisons with a number all of whose bits are ones, which is how
infinities and NaNs are recognised.
"""

from collections.abc import Callable, Sequence

from sim.kernel.ir import Graph, Node, topological
from sim.kernel.transform import substitute

__all__ = ["rare_bits", "without"]

_LEAST_SAVING = 3
"""Operations that a bit must save."""


def rare_bits(graph: Graph, values: Sequence[Node], outside: Callable[[Node], bool]) -> list[Node]:
    """Bits whose absence saves operations.

    Parameters
    ----------
    graph : Graph
        Builds the simplified values.
    values : sequence of Node
        Values of a group.
    outside : callable
        Whether a node is computed outside vectors, at no cost here.
    """
    chosen: list[Node] = []
    cost = _cost(values, outside)
    candidates = [node for node in topological(values, outside)
                  if _is_rare(node) and not outside(node)]
    while candidates:
        # The bits themselves are computed in any case.
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
    """The values where all ``bits`` are 0."""
    return substitute(graph, values, dict.fromkeys(bits, graph.bit(0)))


def _is_rare(node: Node) -> bool:
    return (node.op == "eq" and node.args[1].op == "const"
            and node.args[1].number.bit_count() >= 8
            and node.args[1].number == node.args[0].bits)


def _cost(values: Sequence[Node], outside: Callable[[Node], bool]) -> int:
    return sum(node.op not in ("const", "leaf") and not outside(node)
               for node in topological(values, outside))
