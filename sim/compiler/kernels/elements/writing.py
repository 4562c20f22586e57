"""Writes expressions as machine code in a loop nest, each operation as far out as possible.

The *level* of a node is the number of loops, from the outermost one on, within which its code must
be. For example, a node of level 2 depends on the variable of the second loop, but not on that of
the third.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hdl.isa import OPERATIONS as ISA
from hdl.isa import Kind, Slot
from sim.compiler.kernels.elements.expression import Elements, Node
from sim.compiler.machine import Builder

__all__ = ["Writer", "needed", "pressure"]

_OPERATIONS = {operation.name: operation for operation in ISA if Slot.V1 in operation.slots}
_MOST_VECTORS, _MOST_MASKS = 28, 6
"""Maximum number of vector and of mask registers that the nodes of all levels occupy together."""
_MOST_CONSTANTS = 6
"""Maximum number of vector registers that hold constants during the loops."""

Make = Callable[[Builder, Sequence[Any]], Any]
"""Function that writes the code of an input, given the variables of the open loops.

It returns the register that holds the input."""


def needed(elements: Elements, outputs: Sequence[Node | int]) -> list[Node]:
    """Return the nodes on which the outputs depend, in the order in which they were recorded."""
    wanted = {output for output in outputs if isinstance(output, Node)}
    for node in reversed(elements.nodes):
        if node in wanted:
            wanted.update(source for source in node.sources if isinstance(source, Node))
    return [node for node in elements.nodes if node in wanted]


def pressure(elements: Elements, outputs: Sequence[Node | int]) -> tuple[int, int]:
    """Return the maximum numbers of vectors and of masks that are live at one time.

    The code computes the nodes of ``outputs`` in the order in which ``elements`` recorded them.
    """
    nodes = needed(elements, outputs)
    last: dict[Node, int] = {}
    for number, node in enumerate(nodes):
        for source in node.sources:
            if isinstance(source, Node):
                last[source] = number
    last.update((output, len(nodes)) for output in outputs if isinstance(output, Node))
    last.pop(Elements.ALL, None)
    ends: dict[int, list[Node]] = {}
    for node, number in last.items():
        ends.setdefault(number, []).append(node)
    live: tuple[set[Node], set[Node]] = (set(), set())  # vectors, masks
    vectors = masks = 0
    for number, node in enumerate(nodes):
        for source in node.sources:
            if isinstance(source, Node) and source in last:
                live[source.is_mask].add(source)
        for end in ends.get(number, ()):
            live[end.is_mask].discard(end)
        if node in last:
            live[node.is_mask].add(node)
        if len(live[0]) > vectors:
            vectors = len(live[0])
        if len(live[1]) > masks:
            masks = len(live[1])
    return vectors, masks


class Writer:
    """Writes the nodes on which the outputs depend, into a loop nest.

    Parameters
    ----------
    builder : Builder
        Builder to which the code is written.
    elements : Elements
        Records the nodes.
    outputs : sequence of Node or int
        Expressions whose values the innermost loop needs.
    leaves : mapping of Node to (int, callable)
        For each input, its level, and the function that writes its code and returns its register.
    depth : int
        Number of nested loops.
    copies : int
        Number of times that the innermost level is written in an iteration of the innermost loop.
    """

    def __init__(self, builder: Builder, elements: Elements, outputs: Sequence[Node | int],
                 leaves: Mapping[Node, tuple[int, Make]], depth: int, copies: int = 1) -> None:
        self._builder = builder
        self._leaves = leaves
        self._depth = depth
        self._nodes = needed(elements, outputs)
        self._registers: dict[Node, Any] = {Elements.ALL: builder.all_ones}
        self._constants: dict[int, Any] = {}
        vectors, masks = pressure(elements, outputs)
        self._free = _MOST_VECTORS - copies * vectors, _MOST_MASKS - copies * masks
        self._levels = self._find_levels()

    def _find_levels(self) -> dict[Node, int]:
        """Return the level of each node: the number of loops around its operations.

        If results of outer levels need too many registers in inner loops, all nodes get the
        innermost level.
        """
        levels = {leaf: level for leaf, (level, _) in self._leaves.items()}
        levels[Elements.ALL] = 0
        for node in self._nodes:
            levels[node] = max((levels[source] for source in node.sources
                                if isinstance(source, Node)), default=0)
        crossing = {source for node in self._nodes for source in node.sources
                    if isinstance(source, Node) and levels[source] < levels[node]}
        crossing.discard(Elements.ALL)
        masks = sum(node.is_mask for node in crossing)
        vectors, most_masks = self._free
        if masks > most_masks or len(crossing) - masks > vectors:
            levels.update(dict.fromkeys((*self._leaves, *self._nodes), self._depth))
            crossing, masks = set(), 0
        self._free = vectors - len(crossing) + masks, most_masks
        return levels

    def write(self, level: int, variables: Sequence[Any]) -> None:
        """Write the nodes of a level, in the builder's current loop.

        Call this for each level n, from 0 on, when n loops are open. ``variables`` are the
        variables of these loops. The innermost level may be written several times, with different
        variables.
        """
        b = self._builder
        if level == self._depth:
            self._registers = {node: register for node, register in self._registers.items()
                               if self._levels[node] < level or node is Elements.ALL}
        if level == 0:
            self._write_constants()
        if level < self._depth:
            for leaf, (_, make) in self._leaves.items():
                if self._levels[leaf] == level and leaf not in self._registers:
                    self._registers[leaf] = make(b, variables)
        for node in self._nodes:
            if self._levels[node] != level:
                continue
            operation = _OPERATIONS[node.name]
            sources = [self._source(source, operand.kind, variables) for source, operand
                       in zip(node.sources, operation.operands[1:], strict=True)]
            if node.name in ("mand", "mor", "mxor", "mandn"):
                register: Any = b.mask(node.name, *sources)
            elif node.is_mask:
                register = b.compare(node.name, *sources)
            else:
                register = b.vector(node.name, *sources)
            self._registers[node] = register

    def register(self, node: Node | int, variables: Sequence[Any]) -> Any:
        """Return the register that holds the output ``node``, or its word if it is constant.

        ``variables`` are those of all open loops.
        """
        if isinstance(node, int):
            return node
        if node not in self._registers:
            self._registers[node] = self._leaves[node][1](self._builder, variables)
        return self._registers[node]

    def _source(self, source: Node | int, kind: Kind, variables: Sequence[Any]) -> Any:
        if isinstance(source, int):
            return self._constants.get(source, source) if kind is Kind.VECTOR_IN else source
        return self.register(source, variables)

    def _write_constants(self) -> None:
        """Load constants into vector registers before the loops, if there are few of them."""
        words = list(dict.fromkeys(
            source for node in self._nodes for source, operand
            in zip(node.sources, _OPERATIONS[node.name].operands[1:], strict=True)
            if isinstance(source, int) and operand.kind is Kind.VECTOR_IN))
        if self._depth and len(words) <= min(_MOST_CONSTANTS, self._free[0]):
            self._constants = {word: self._builder.splat(word) for word in words}
