"""Integers of 64 bits that need only 32.

JAX counts in 64 bits while it makes random numbers, and other front ends have constant indices of
64 bits. The range of such values is known: they come from constants, `iota`, and arithmetic with
these. A value whose range fits into 32 bits is imported as one of 32 bits.
"""

from collections.abc import Callable, Sequence

from sim.compiler.graph.ir import DType

__all__ = ["MOVES", "Range", "narrow", "range_of"]

Range = tuple[int, int]
"""The least and the greatest value."""

MOVES = frozenset({"broadcast_in_dim", "reshape", "transpose", "slice", "concatenate", "pad",
                   "reverse", "gather", "dynamic_slice", "dynamic_update_slice", "select",
                   "maximum", "minimum", "clamp"})
"""Operations whose results are some of their operands' elements."""


def _corners(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """The range of a function that is monotonic in each operand."""
    def apply(a: Range, b: Range) -> Range:
        values = [function(x, y) for x in a for y in b]
        return min(values), max(values)

    return apply


def _shift(a: Range, b: Range) -> Range | None:
    """Shift to the right, of what is not negative, by a known amount."""
    if a[0] < 0 or b[0] != b[1] or not 0 <= b[0] < 64:
        return None
    return a[0] >> b[0], a[1] >> b[0]


def _mask(a: Range, b: Range) -> Range | None:
    return (0, min(a[1], b[1])) if min(a[0], b[0]) >= 0 else None


_BINARY: dict[str, Callable[[Range, Range], Range | None]] = {
    "add": _corners(lambda a, b: a + b), "subtract": _corners(lambda a, b: a - b),
    "multiply": _corners(lambda a, b: a * b), "shift_right_logical": _shift, "and": _mask,
}


def range_of(kind: str, operands: Sequence[Range]) -> Range | None:
    """The range of an operation's result.

    Parameters
    ----------
    kind : str
        Kind of the operation.
    operands : sequence of (int, int)
        Ranges of its operands of integers.

    Returns
    -------
    (int, int) or None
        None if it is not known.
    """
    if kind in MOVES and operands:
        return min(low for low, _ in operands), max(high for _, high in operands)
    if kind in _BINARY and len(operands) == 2:
        return _BINARY[kind](operands[0], operands[1])
    return None


def narrow(bounds: Range | None) -> DType | None:
    """The type of 32 bits that holds a range; None if neither does."""
    if bounds is None:
        return None
    low, high = bounds
    if -2**31 <= low and high < 2**31:
        return DType.S32
    return DType.U32 if low >= 0 and high < 2**32 else None
