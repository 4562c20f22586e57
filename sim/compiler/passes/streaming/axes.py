"""Axes: the ways to compute an operation block by block.

A rule yields the axes of an operation:

    @axes("negate")
    def negate(operation: Operation) -> Iterator[Axis]:
        ...

An *axis* is a range of indices that can be divided, for example those of one dimension of the
result. A *block* is a subrange of the axis. The operations of a block read a *part* of each
operand. They compute a part of each result, or update a result that is *carried* from block to
block, as a sum is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.compiler.graph.ir import Operation, TensorType, Value
from sim.compiler.passes.expansion import Expansion

__all__ = ["Axis", "Block", "Part", "Write", "axes", "axes_of", "resized", "same_kind", "trimmed"]


@dataclass(frozen=True)
class Part:
    """The part of an operand that a block needs: a range of indices of one dimension.

    Index i of the axis needs ``window`` indices of the operand, from ``start + stride * i`` on.
    Indices outside of the operand are padding.

    Attributes
    ----------
    along : int
        Dimension of the operand.
    start, stride, window : int
        Numbers of the formula above.
    """

    along: int
    start: int = 0
    stride: int = 1
    window: int = 1

    def range(self, first: int, size: int) -> tuple[int, int]:
        """Return the operand's range for ``size`` axis indices from index ``first`` of the axis on.

        It is (first index, index after the last), and may exceed the operand.
        """
        ends = self.start + self.stride * first, self.start + self.stride * (first + size - 1)
        return min(ends), max(ends) + self.window


@dataclass(frozen=True)
class Block:
    """Facts about a block for the function that writes its operations (`Write`).

    Attributes
    ----------
    size : int
        Number of axis indices in the block.
    padding : tuple of (int, int)
        For each operand, how many of the indices that the block needs lie before the operand's
        first index, and how many after its last.
    first : Value or None
        First axis index of the block, a scalar of type s32; None unless the axis is `numbered`.
    carried : tuple of Value
        Values of the carried results before this block.
    extra : tuple of int
        For each operand, the number of indices that its part has before those that the block needs.
        They make the part begin at the start of a vector. 0 unless the axis is `loose`.
    """

    size: int
    padding: tuple[tuple[int, int], ...]
    first: Value | None = None
    carried: tuple[Value, ...] = ()
    extra: tuple[int, ...] = ()


Write = Callable[[Expansion, Sequence[Value], Block], Sequence[Value]]
"""Writes the operations of a block. Receives the parts of the operands, and returns the parts of
the results or new values of carried ones."""


@dataclass(frozen=True)
class Axis:
    """A way to compute an operation block by block.

    Attributes
    ----------
    size : int
        Number of indices of the axis.
    inputs : tuple of (Value, Part or None)
        Each operand, with the part that a block needs; None if it needs the whole operand.
    results : tuple of (int or None)
        For each result, the dimension along which blocks are concatenated; None if it is carried.
    write : callable
        Writes the operations of a block (`Write`).
    initial : callable, optional
        Writes the initial values of carried results, in an `Expansion`, and returns them.
    numbered : bool
        Whether the operations of a block need the number of its first index (`Block.first`).
    scale : int
        Number of indices of each result for one index of the axis.
    unit : int
        Sizes of blocks must be multiples of this number.
    outside : bool
        Whether a block may need nothing but padding of an operand. It then receives one element of
        the operand, which it must not use.
    smallest : bool
        Whether blocks must be as small as possible: ``unit`` indices.
    loose : bool
        Whether parts of operands may begin earlier than needed (`Block.extra`).
    extra : tuple of int
        `Block.extra` of all blocks, once it is known.
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
    loose: bool = False
    extra: tuple[int, ...] = ()


Rule = Callable[[Operation], Iterator[Axis]]
_RULES: dict[str, Rule] = {}


def axes(*kinds: str) -> Callable[[Rule], Rule]:
    """Register the decorated function, which yields an operation's axes, for kinds of operations.

    Raises
    ------
    ValueError
        If a kind has a rule already.
    """
    def register(function: Rule) -> Rule:
        for kind in kinds:
            if kind in _RULES:
                raise ValueError(f"{kind} must have only one rule of axes; a second one was "
                                 f"registered")
            _RULES[kind] = function
        return function

    return register


def axes_of(operation: Operation) -> list[Axis]:
    """Return all ways to compute an operation block by block; empty if there is none."""
    rule = _RULES.get(operation.kind)
    return [] if rule is None else list(rule(operation))


def trimmed(at: Expansion, operand: Value, along: int, padding: int, extra: int
            ) -> tuple[Value, int]:
    """Remove ``extra`` indices (`Block.extra`): padding first, then the start of an operand's part.

    ``operand`` is the part, which is cut along dimension ``along``; ``padding`` indices of padding
    precede it. Return the remaining part, and the remaining number of padding indices.
    """
    removed = max(extra - padding, 0)
    return (at.slice(operand, along, removed, operand.shape[along] - removed),
            max(padding - extra, 0))


def resized(kind: TensorType, along: int | None, size: int) -> TensorType:
    """Return ``kind`` with size ``size`` in dimension ``along``; unchanged if ``along`` is None."""
    if along is None:
        return kind
    return TensorType((*kind.shape[:along], size, *kind.shape[along + 1:]), kind.dtype)


def same_kind(operation: Operation, results: Sequence[int | None],
              change: Callable[[Block], dict[str, Any]] = lambda block: {},
              scale: int = 1) -> Write:
    """Make a `Write` function that applies the same operation to the parts of the operands.

    Parameters
    ----------
    operation : Operation
        The operation to compute block by block.
    results : sequence of (int or None)
        For each result, the dimension along which blocks are concatenated; None if it is carried.
    change : callable
        Returns the attributes that differ for a block.
    scale : int
        Number of indices of each result for one index of the axis.
    """
    def write(at: Expansion, operands: Sequence[Value], block: Block) -> Sequence[Value]:
        types = [resized(value.type, along, scale * block.size)
                 for value, along in zip(operation.results, results, strict=True)]
        return at.graph.add(operation.kind, operands, types,
                            {**operation.attributes, **change(block)},
                            [region.renewed() for region in operation.regions],
                            operation.location).results

    return write
