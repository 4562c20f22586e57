"""Straight-line code of the vector unit, as a graph of expressions.

An `Elements` records operations; requesting the same operation again returns the recorded one.
Operations on constants alone are computed at once, by the golden vector unit. The recorded graph
can be written as machine code, or evaluated on numpy arrays: both execute the same operations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from golden import vpu
from hdl.isa import OPERATIONS as ISA
from hdl.isa import Kind, Slot, VectorOp

__all__ = ["Elements", "Node", "Source", "bits", "evaluate"]

_OPERATIONS = {operation.name: operation for operation in ISA if Slot.V1 in operation.slots}
_MASKS = ("mand", "mor", "mxor", "mandn")
_COMMUTATIVE = frozenset(("fadd", "fmul", "fmin", "fmax", "add", "and", "or", "xor", "feq", "fne",
                          "eq", "ne", "mand", "mor", "mxor"))


@dataclass(eq=False, slots=True)
class Node:
    """A vector or a mask: an operation with its sources, or an input.

    Attributes
    ----------
    name : str
        Name of the operation; empty for an input.
    sources : tuple of Node or int
        Operands of the operation; an integer is a word that all elements share.
    is_mask : bool
        Whether the node is a mask; otherwise it is a vector.
    """

    name: str
    sources: "tuple[Node | int, ...]"
    is_mask: bool


Source: TypeAlias = Node | int | float
"""A node, an integer (a word), or a float (meaning its fp32 bit pattern)."""


def bits(value: float) -> int:
    """Return the fp32 bit pattern of a number, rounded to nearest."""
    return int(np.float32(value).view(np.uint32))


class Elements:
    """Records operations on elements.

        e = Elements()
        x = e.input()
        y = e("fmul", e("fadd", x, 1.0), x)
    """

    ALL = Node("", (), True)
    """The mask of all elements, m0."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[tuple[Any, ...], Node | int] = {}

    def input(self, *, is_mask: bool = False) -> Node:
        """Return a node for an input: a mask if ``is_mask`` is True, otherwise a vector."""
        return Node("", (), is_mask)

    def __call__(self, name: str, *sources: Source) -> Any:
        """Record an operation, and return its result: a node, or a word if it is constant.

        Parameters
        ----------
        name : str
            An operation of the vector slots that applies to each element.
        sources
            The operands, without the destination, in the order in which assembly text writes them.

        Raises
        ------
        TypeError
            If the mask of a ``select`` is an integer; `Elements.select` accepts an integer mask.
        """
        words = tuple(source & 0xFFFFFFFF if isinstance(source, int)
                      else source if isinstance(source, Node) else bits(source)
                      for source in sources)
        if name in _COMMUTATIVE and isinstance(words[0], int):
            words = words[::-1]
        key = (name, *words)
        if key not in self._known:
            self._known[key] = self._new(name, words)
        return self._known[key]

    def _new(self, name: str, sources: tuple[Node | int, ...]) -> Node | int:
        if all(isinstance(source, int) for source in sources) and name not in ("lane", "sublane"):
            folded = _fold(name, sources)
            if folded is not None:
                return folded
        if name == "select" and isinstance(sources[2], int):
            raise TypeError(f"mask of a select must be a node, not the integer {sources[2]!r}")
        if name == "select" and sources[0] is sources[1]:
            return sources[0]
        is_mask = _OPERATIONS[name].operands[0].kind is Kind.MASK_OUT
        node = Node(name, sources, is_mask)
        self.nodes.append(node)
        return node

    def forget(self, count: int) -> None:
        """Forget the operations recorded after the first ``count``."""
        while len(self.nodes) > count:
            _, known = self._known.popitem()
            if known is self.nodes[-1]:
                self.nodes.pop()

    def select(self, mask: Source, a: Source, b: Source) -> Any:
        """``a`` where the mask is set, otherwise ``b``."""
        if isinstance(mask, int):
            return a if mask else b
        return self("select", a, b, mask)

    def invert(self, mask: Source) -> Any:
        """Return the mask of the elements that are not in ``mask``."""
        return self.mask("mxor", mask, 1)

    def mask(self, name: str, a: Source, b: Source) -> Any:
        """Apply operation ``name`` (`mand`, `mor`, `mxor` or `mandn`) to masks ``a`` and ``b``.

        As an operand or result, 0 is the empty mask, and 1 the full one.
        """
        a, b = (self.ALL if source == 1 else source for source in (a, b))
        if name == "mandn":
            if b == 0 or a == 0:
                return a
            if b is self.ALL:
                return 0
        elif 0 in (a, b):
            other = b if a == 0 else a
            return (1 if other is self.ALL else other) if name != "mand" else 0
        if a is self.ALL and b is self.ALL:
            return 0 if name == "mxor" else 1
        if name == "mand" and self.ALL in (a, b):
            return b if a is self.ALL else a
        if name == "mor" and self.ALL in (a, b):
            return 1
        return self(name, a, b)


def _fold(name: str, sources: Sequence[Any]) -> int | None:
    """Return the result of operation ``name`` on constants: a word, or a mask as 0 or 1.

    ``sources`` are the constants. Return None for an operation whose operands are masks.
    """
    operation = VectorOp[name.upper()] if name.upper() in VectorOp.__members__ else None
    if operation is None:
        return None
    words = [np.asarray([source], np.uint32) for source in sources]
    if _OPERATIONS[name].operands[0].kind is Kind.MASK_OUT:
        return int(vpu.compare(operation, *words)[0])
    return int(vpu.evaluate(operation, *([words[0], words[0]] if name == "move" else words))[0])


_MASK_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "mand": np.logical_and, "mor": np.logical_or, "mxor": np.logical_xor,
    "mandn": lambda a, b: a & ~b}


def evaluate(elements: Elements, inputs: Mapping[Node, npt.NDArray[Any]],
             output: Node | int) -> npt.NDArray[Any]:
    """Evaluate an expression with the golden vector unit.

    Parameters
    ----------
    elements : Elements
        The recorder that holds the operations of ``output``.
    inputs : mapping of Node to array
        For each input, words (uint32) for a vector or bools for a mask; all of one shape.
    output : Node or int
        The expression; an integer is a constant word.

    Returns
    -------
    array of uint32, or of bool for a mask, of the inputs' shape
    """
    shape = next(iter(inputs.values())).shape
    if isinstance(output, int):
        return np.full(shape, output, np.uint32)
    needed = {output}
    for node in reversed(elements.nodes):
        if node in needed:
            needed.update(source for source in node.sources if isinstance(source, Node))
    values: dict[Any, Any] = {**inputs, Elements.ALL: np.ones(shape, bool)}
    for node in elements.nodes:
        if node not in needed:
            continue
        operands = [np.full(1, source, np.uint32) if isinstance(source, int) else values[source]
                    for source in node.sources]
        if node.name == "select":
            values[node] = np.where(operands[2], operands[0], operands[1])
        elif node.name in _MASKS:
            values[node] = _MASK_FUNCTIONS[node.name](*operands)
        elif node.is_mask:
            values[node] = vpu.compare(VectorOp[node.name.upper()], *operands)
        else:
            values[node] = vpu.evaluate(VectorOp[node.name.upper()], *operands)
    return np.broadcast_to(values[output], shape)
