"""Which values the vector code computes as part of their only user, in one instruction."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from sim.kernel.ir import Node

__all__ = ["COMPARES", "Fusion", "is_zero"]

COMPARES = {"test": ("test", "testn"), "eq": ("eq", "ne"), "ltu": ("ltu", "geu")}
"""Comparisons: by operation, the vector function and the one of the opposite result."""

_LOGIC = ("and", "or", "xor")


def is_zero(node: Node) -> bool:
    """Whether a value is the constant number 0."""
    return node.op == "const" and not node.attr


class Fusion:
    """Fused nodes among the nodes of a group.

    Parameters
    ----------
    nodes : mapping of Node to int
        All nodes of the group, operands first.
    roots : sequence of Node
        Values that the group stores.
    outside : callable
        Whether a node is computed outside vectors.

    Attributes
    ----------
    merged : set of Node
        Nodes that are computed only as part of their user.
    logic : dict of Node to list of Node
        For a bitwise operation, its operands, at most three, once its merged operands are opened.
    conditional : dict of Node to Node
        For a sum or an or, the choice between a value and zero that it adds under a mask.
    masked : dict of Node to Node
        For a conjunction, the comparison that is evaluated under the other operand.
    flipped : dict of Node to Node
        For a choice between a value and its exclusive or with a constant, the latter.
    inverted : set of Node
        Comparisons whose opposite is computed.
    """

    def __init__(self, nodes: Mapping[Node, int], roots: Iterable[Node],
                 outside: Callable[[Node], bool]) -> None:
        self._outside = outside
        roots = list(roots)
        self._uses = Counter(roots)
        for node in nodes:
            if not outside(node):
                self._uses.update(node.args)
        self.merged: set[Node] = set()
        self.logic: dict[Node, list[Node]] = {}
        self.conditional: dict[Node, Node] = {}
        self.masked: dict[Node, Node] = {}
        self.flipped: dict[Node, Node] = {}
        self.inverted = self._inverted(nodes, roots)
        for node in nodes:
            if not outside(node):
                self._fuse(node)

    def arms(self, node: Node) -> tuple[Node, Node]:
        """Results of a choice if the variable of its bit is set, and if it is clear."""
        bit, x, y = node.args
        return (y, x) if bit in self.inverted else (x, y)

    def is_plain(self, choice: Node) -> bool:
        """Whether a choice between two numbers is a statement of its own."""
        return choice not in self.merged and choice not in self.flipped \
            and not any(map(is_zero, choice.args[1:]))

    def _single(self, node: Node) -> bool:
        """Whether a node has one user and belongs to the vector code."""
        return self._uses[node] == 1 and not self._outside(node)

    def _inverted(self, nodes: Iterable[Node], roots: Iterable[Node]) -> set[Node]:
        """Comparisons to be inverted: those that only select values to be added if false."""
        added: set[Node] = set()
        otherwise: set[Node] = set()
        for node in nodes:
            for arg in node.args:
                if (node.op in ("or", "add") and arg.op == "sel" and self._single(arg)
                        and is_zero(arg.args[1])):
                    added.add(arg.args[0])
            if node.op == "sel":
                if is_zero(node.args[2]):
                    otherwise.add(node.args[0])
            else:
                otherwise.update(arg for arg in node.args if arg.is_bit)
        return {node for node in added - otherwise - set(roots) if node.op in COMPARES}

    def _fuse(self, node: Node) -> None:
        """Merges operands of a node into it. Its operands have been considered before."""
        if node.op == "notb" and self._single(node.args[0]) and node.args[0].op in COMPARES:
            self.merged.add(node.args[0])
        elif node.op == "andb":
            self._fuse_conjunction(node)
        elif node.op == "sel":
            self._fuse_choice(node)
        elif node.op in ("or", "add"):
            for arg in node.args:
                if arg.op == "sel" and self._single(arg) and is_zero(self.arms(arg)[1]):
                    self.conditional[node] = arg
                    self.merged.add(arg)
                    break
        if node.op in _LOGIC and node not in self.conditional:
            self._fuse_logic(node)

    def _fuse_choice(self, node: Node) -> None:
        """Makes a choice that only inverts bits an exclusive or under a mask."""
        _, x, y = node.args
        for one, other in ((x, y), (y, x)):
            if (one.op == "xor" and one.args[0] is other and one.args[1].op == "const"
                    and self._single(one)):
                self.flipped[node] = one
                self.merged.add(one)

    def _fuse_conjunction(self, node: Node) -> None:
        """Makes a conjunction a comparison under a mask, or else an and-not."""
        for arg in node.args:
            inner = arg.args[0] if arg.op == "notb" and arg.args[0] in self.merged else arg
            if inner.op in COMPARES and self._single(arg):
                self.masked[node] = arg
                self.merged |= {arg, inner}
                return
        for arg in node.args:
            if arg.op == "notb" and self._single(arg) and arg.args[0] not in self.merged:
                self.merged.add(arg)
                return

    def _fuse_logic(self, node: Node) -> None:
        """Opens bitwise operands of a bitwise operation while three operands remain."""
        leaves = list(dict.fromkeys(node.args))
        for arg in node.args:
            if arg in self.logic and self._single(arg):
                wider = list(dict.fromkeys(
                    leaf for one in leaves
                    for leaf in (self.logic[arg] if one is arg else [one])))
                if len(wider) <= 3:
                    leaves = wider
                    self.merged.add(arg)
        self.logic[node] = leaves
