"""Rewriting of expressions: replaces nodes, and removes parts on which no used bit depends."""

from collections.abc import Callable, Mapping, Sequence

from sim.kernel.ir import Graph, Node, demands, low, topological

__all__ = ["narrow", "substitute"]

_BUILDERS: dict[str, Callable[..., Node]] = {
    "and": Graph.and_, "or": Graph.or_, "xor": Graph.xor, "add": Graph.add, "sub": Graph.sub,
    "mul": Graph.mul, "shlv": Graph.shlv, "shrv": Graph.shrv, "sel": Graph.sel,
    "andb": Graph.andb, "orb": Graph.orb, "xorb": Graph.xorb, "notb": Graph.not_,
    "selb": Graph.selb, "eq": Graph.eq, "ltu": Graph.ltu,
}


def substitute(graph: Graph, roots: Sequence[Node], values: Mapping[Node, Node]) -> list[Node]:
    """The ``roots``, rebuilt and simplified with each node in ``values`` replaced by its value."""
    done = dict(values)
    for node in topological(roots):
        if node not in done:
            done[node] = _rebuild(graph, node, [done[arg] for arg in node.args])
    return [done[root] for root in roots]


def narrow(graph: Graph, roots: Sequence[tuple[Node, int]]) -> list[Node]:
    """The ``roots`` without parts on which no used bit depends; unused bits may change.

    Parameters
    ----------
    graph : Graph
        Receives the new nodes.
    roots : sequence of (Node, int)
        Values, each with a mask of its bits that are used.
    """
    while True:
        needed = demands(roots)
        done: dict[Node, Node] = {}
        for node in topological([root for root, _ in roots]):
            rebuilt = _rebuild(graph, node, [done[arg] for arg in node.args])
            done[node] = _demanded(graph, rebuilt, needed[node])
        changed = [done[root] for root, _ in roots]
        if all(new is old for new, (old, _) in zip(changed, roots, strict=True)):
            return changed
        roots = [(new, mask) for new, (_, mask) in zip(changed, roots, strict=True)]


def _rebuild(graph: Graph, node: Node, args: Sequence[Node]) -> Node:
    """The operation of ``node`` applied to the operands ``args``, simplified."""
    if not args:
        return node
    if tuple(args) == node.args:
        return node
    if node.op in ("shl", "shr", "test"):
        return getattr(graph, node.op)(args[0], node.attr)
    if node.op == "clz":
        return graph.clz(args[0], *node.counted)
    if node.op == "read":
        return graph.read(node.attr, args[0], node.bits.bit_length())
    return _BUILDERS[node.op](graph, *args)


def _demanded(graph: Graph, node: Node, mask: int) -> Node:
    """A node, as simple as possible, whose bits under ``mask`` equal those of ``node``."""
    if node.is_bit:
        return node
    if not node.bits & mask:
        return graph.const(0)
    if node.op in ("and", "or", "xor") and node.args[1].op == "const":
        constant = node.args[1].number
        visible = mask & node.args[0].bits
        if node.op == "and" and not visible & ~constant:
            return node.args[0]
        if node.op in ("or", "xor") and not mask & constant:
            return node.args[0]
    if node.op in ("or", "add", "xor"):
        for one, other in (node.args, node.args[::-1]):
            seen = mask if node.op != "add" else low(mask.bit_length())
            if not other.bits & seen:
                return one
    return node
