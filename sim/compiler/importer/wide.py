"""Range analysis of 64-bit integers that need only 32 bits.

JAX counts in 64 bits when it generates random numbers, and other front ends write constant indices
with 64 bits. The ranges of such values are known: they are computed from constants and ``iota`` by
simple arithmetic. A value whose range fits 32 bits is imported with 32 bits.
"""

from collections.abc import Callable, Sequence

from sim.compiler.graph.ir import DType

__all__ = ["MOVES", "Range", "narrow", "range_of"]

Range = tuple[int, int]
"""The least and the greatest value, both inclusive."""

MOVES = frozenset({"broadcast_in_dim", "reshape", "transpose", "slice", "concatenate", "pad",
                   "reverse", "gather", "dynamic_slice", "dynamic_update_slice", "select",
                   "maximum", "minimum", "clamp"})
"""Operations that return elements of their operands unchanged."""


def _corners(function: Callable[[int, int], int]) -> Callable[[Range, Range], Range]:
    """Make a function that returns the range of the results of ``function``.

    The range is exact if ``function`` is monotonic in each operand: its extremes are then at the
    ends of the operands' ranges.
    """
    def apply(a: Range, b: Range) -> Range:
        values = [function(x, y) for x in a for y in b]
        return min(values), max(values)

    return apply


def _shift(a: Range, b: Range) -> Range | None:
    """Return the range of the results when numbers in range ``a`` are shifted right by ``b``.

    Return None if ``a`` has negative numbers, or ``b`` is not a constant from 0 to 63.
    """
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
    """Return the range of an operation's result.

    Parameters
    ----------
    kind : str
        Kind of the operation.
    operands : sequence of (int, int)
        Ranges of the operands that are integers.

    Returns
    -------
    (int, int) or None
        The least and the greatest value of the result; None if they are not known.
    """
    if kind in MOVES and operands:
        return min(low for low, _ in operands), max(high for _, high in operands)
    if kind in _BINARY and len(operands) == 2:
        return _BINARY[kind](operands[0], operands[1])
    return None


def narrow(bounds: Range | None) -> DType | None:
    """Return the 32-bit type that holds a range: S32, or else U32; None if neither does."""
    if bounds is None:
        return None
    low, high = bounds
    if -2**31 <= low and high < 2**31:
        return DType.S32
    return DType.U32 if low >= 0 and high < 2**32 else None
