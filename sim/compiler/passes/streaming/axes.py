"""Axes: the ways to compute an operation block by block.

    @axes("negate")
    def negate(operation: Operation) -> Iterator[Axis]:
        ...

An axis has a number of indices. A block is a range of them; it needs a part of each operand, and is
a part of each result, or changes a result that is carried from block to block.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.compiler.graph.ir import Operation, TensorType, Value
from sim.compiler.passes.expansion import Expansion

__all__ = ["Axis", "Block", "Part", "Write", "axes", "axes_of", "resized", "same_kind"]


@dataclass(frozen=True)
class Part:
    """Part of an operand that a block needs.

    An index of the axis needs ``window`` indices of the operand, from ``start + stride * index``.

    Attributes
    ----------
    along : int
        Dimension of the operand that is cut.
    start, stride, window : int
        As above; indices outside of the operand are padding.
    """

    along: int
    start: int = 0
    stride: int = 1
    window: int = 1

    def range(self, first: int, size: int) -> tuple[int, int]:
        """First index, and one past the last, that ``size`` indices of the axis need."""
        ends = self.start + self.stride * first, self.start + self.stride * (first + size - 1)
        return min(ends), max(ends) + self.window


@dataclass(frozen=True)
class Block:
    """A block, as the code that computes it sees it.

    Attributes
    ----------
    size : int
        Indices of the axis.
    padding : tuple of (int, int)
        For each operand, how many of the indices that the block needs lie before and after it.
    first : Value or None
        Its first index, if the axis is `numbered`.
    carried : tuple of Value
        Values that are carried, as they are before this block.
    """

    size: int
    padding: tuple[tuple[int, int], ...]
    first: Value | None = None
    carried: tuple[Value, ...] = ()


Write = Callable[[Expansion, Sequence[Value], Block], Sequence[Value]]
"""Writes the operations of a block; takes the parts of operands, and returns those of results."""


@dataclass(frozen=True)
class Axis:
    """A way to compute an operation block by block.

    Attributes
    ----------
    size : int
        Number of indices.
    inputs : tuple of (Value, Part or None)
        Operands, and the part that a block needs; None for all of it.
    results : tuple of (int or None)
        The dimension along which each result is cut; None if it is carried.
    write : callable
        Writes a block.
    initial : callable, optional
        Writes the initial values of carried results; takes an `Expansion`.
    numbered : bool
        Blocks need the number of their first index.
    scale : int
        Indices of a result for one of the axis.
    unit : int
        Sizes of blocks are multiples of it.
    outside : bool
        A block may need only padding; then it gets one element, which it must not use.
    smallest : bool
        Blocks are no larger than one unit.
    """

    size: int
    inputs: tuple[tuple[Value, Part | None], ...]
    results: tuple[int | None, ...]
    write: Write
    initial: Callable[[Expansion], Sequence[Value]] = field(default=lambda at: ())
    numbered: bool = False
    scale: int = 1
    unit: int = 1
    outside: bool = False
    smallest: bool = False


Rule = Callable[[Operation], Iterator[Axis]]
_RULES: dict[str, Rule] = {}


def axes(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the axes of kinds of operations."""
    def register(function: Rule) -> Rule:
        for kind in kinds:
            if kind in _RULES:
                raise ValueError(f"{kind} must have one rule, not two")
            _RULES[kind] = function
        return function

    return register


def axes_of(operation: Operation) -> list[Axis]:
    """All ways to compute an operation block by block."""
    rule = _RULES.get(operation.kind)
    return [] if rule is None else list(rule(operation))


def resized(kind: TensorType, along: int | None, size: int) -> TensorType:
    """A type with another size of a dimension."""
    if along is None:
        return kind
    return TensorType((*kind.shape[:along], size, *kind.shape[along + 1:]), kind.dtype)


def same_kind(operation: Operation, results: Sequence[int | None],
              change: Callable[[Block], dict[str, Any]] = lambda block: {},
              scale: int = 1) -> Write:
    """Write a block as the same operation, with some other attributes."""
    def write(at: Expansion, operands: Sequence[Value], block: Block) -> Sequence[Value]:
        types = [resized(value.type, along, scale * block.size)
                 for value, along in zip(operation.results, results, strict=True)]
        return at.graph.add(operation.kind, operands, types,
                            {**operation.attributes, **change(block)},
                            [region.renewed() for region in operation.regions],
                            operation.location).results

    return write
