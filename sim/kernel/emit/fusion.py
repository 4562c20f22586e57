"""Fusion in a tile kernel: values that are computed in the same instruction as their only user."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from sim.kernel.ir import Node

__all__ = ["COMPARES", "Fusion", "is_zero"]

COMPARES = {"test": ("test", "testn"), "eq": ("eq", "ne"), "ltu": ("ltu", "geu")}
"""For each comparison, the ``vec.hpp`` function that computes it, and that of its opposite."""

_LOGIC = ("and", "or", "xor")


def is_zero(node: Node) -> bool:
    """Whether a value is the constant number 0."""
    return node.op == "const" and not node.attr


class Fusion:
    """Finds nodes of a group that are computed by the same instruction as their only user.

    Parameters
    ----------
    nodes : mapping of Node to int
        All nodes of the group, operands first, each with a mask of the bits that are used.
    roots : sequence of Node
        Values that the group stores.
    outside : callable
        Tells whether a node is computed outside the vector code.

    Attributes
    ----------
    merged : set of Node
        Nodes that are computed only as part of their user.
    logic : dict of Node to list of Node
        For each bitwise operation, the two or three values that its instruction combines: its
        operands or, in place of a merged operand, the operands of the merged one.
    conditional : dict of Node to Node
        For each fused sum or bitwise OR: its operand that is a choice between a value and zero. One
        instruction adds (or ORs) the value, only in the lanes that choose it.
    masked : dict of Node to Node
        For each fused conjunction of bits, its operand that is a comparison, or the negation of
        one. The comparison instruction takes the other operand as its mask, and so computes the
        conjunction.
    flipped : dict of Node to Node
        For each fused choice between x and ``x ^ constant``, the node ``x ^ constant``. One
        instruction inverts the bits of x that are 1 in the constant, only in the lanes that choose
        so.
    inverted : set of Node
        Comparisons that are replaced by their opposites, ``eq`` by ``ne`` for example.
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
        """The two values of the choice ``node``, in the order in which its instruction takes them.

        The first is taken where the computed bit is 1. For a comparison in `inverted`, the opposite
        comparison is computed, so the two values change places.
        """
        bit, x, y = node.args
        return (y, x) if bit in self.inverted else (x, y)

    def is_plain(self, choice: Node) -> bool:
        """Whether a choice needs a select instruction.

        A fused choice does not. Nor does a choice between a number and 0, which is a masked move.
        """
        return choice not in self.merged and choice not in self.flipped \
            and not any(map(is_zero, choice.args[1:]))

    def _single(self, node: Node) -> bool:
        """Whether a node has exactly one user and is computed by the vector code."""
        return self._uses[node] == 1 and not self._outside(node)

    def _inverted(self, nodes: Iterable[Node], roots: Iterable[Node]) -> set[Node]:
        """Find the comparisons to invert, among the bits that ``nodes`` use.

        A comparison is inverted if a number is added (or ORed) where it is false: instructions add
        only where a mask is true. All its other uses must be choices, whose two values can change
        places, and it must not be one of the ``roots``.
        """
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
        """Lets one processor instruction compute ``node`` and operands that only it uses.

        Call it for the operands of ``node`` first.
        """
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
        """Turns a choice between x and ``x ^ constant`` into an xor under a mask."""
        _, x, y = node.args
        for one, other in ((x, y), (y, x)):
            if (one.op == "xor" and one.args[0] is other and one.args[1].op == "const"
                    and self._single(one)):
                self.flipped[node] = one
                self.merged.add(one)

    def _fuse_conjunction(self, node: Node) -> None:
        """Turns a conjunction of bits into a comparison under a mask, or else into an and-not."""
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
        """Merges bitwise operands of the bitwise operation ``node`` into it.

        The operation then combines at most three values (`logic`) by one instruction.
        """
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
