"""Applies the rules to the expressions of a tile."""

from collections.abc import Callable, Mapping, Sequence

from sim.kernel.ir import Graph, Node, topological
from sim.kernel.rules.clamp import clamps
from sim.kernel.rules.compare import comparisons
from sim.kernel.rules.normaliser import normalisers
from sim.kernel.rules.sticky import stickies
from sim.kernel.rules.sticky_series import series
from sim.kernel.transform import substitute

__all__ = ["RULES", "Rule", "rewrite"]

Rule = Callable[[Graph, Sequence[Node]], dict[Node, Node]]
"""A rule: takes nodes, each after its operands; returns replacements, by the node replaced."""

RULES: Mapping[str, Rule] = {"normaliser": normalisers, "sticky": stickies,
                             "sticky_series": series, "clamp": clamps, "compare": comparisons}
"""All rules by the names of their modules, in the order in which they are applied."""


def rewrite(graph: Graph, roots: Sequence[Node]) -> list[Node]:
    """Replace the patterns of all rules in ``roots``; return expressions of equal values."""
    roots = list(roots)
    for rule in RULES.values():
        while found := rule(graph, topological(roots)):
            roots = substitute(graph, roots, found)
    return roots
