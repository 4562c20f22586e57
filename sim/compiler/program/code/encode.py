"""Encoding: turns bundles of operations on the core's registers into words, and lists fixups.

An operand that is neither a register nor a number is a *symbol*. It is a label, whose bundle's
address is not known yet, or anything else that the caller replaces by a word. Each symbol gets an
immediate of its own, whose word is filled in later.
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hdl import isa
from hdl.isa import Kind, Slot
from sim.asm.operands import Register, Vector

__all__ = ["FIRST_IMMEDIATE_WORD", "Fixup", "Operations", "encode"]

Words: TypeAlias = npt.NDArray[np.uint32]
Operations: TypeAlias = Sequence[tuple[Slot, str, Sequence[Any]]]
"""A bundle: for each operation its slot, its name, and its operands in the order of the assembly
text."""
Fixup: TypeAlias = tuple[int, int, Hashable]
"""Number of a bundle, number of an immediate in it, and the symbol whose word goes there."""

FIRST_IMMEDIATE_WORD = isa.BUNDLE_WORDS - isa.IMMEDIATES
"""Number of the word of a bundle that holds immediate 0; the other immediates follow."""
_MASK = 0xFFFFFFFF


def _positions() -> dict[tuple[Slot, str], int]:
    """Return the position of each field (slot, name), in bits from the start of a bundle."""
    found, position = {}, 0
    for slot, widths in isa.SLOTS.items():
        for name, width in widths.items():
            found[slot, name] = position
            position += width
    return found


_POSITIONS = _positions()
_IMMEDIATES_AT = 32 * FIRST_IMMEDIATE_WORD
_OPERATIONS = {(slot, operation.name): operation
               for operation in isa.OPERATIONS for slot in operation.slots}


@cache
def _shape(slot: Slot, name: str) -> tuple[int, tuple[tuple[Kind, int], ...]]:
    """Return the bits of an opcode, and the kind and position of each operand of its operation.

    The operation is the one with name ``name`` in slot ``slot``. The opcode's bits are shifted to
    their position in the bundle. Positions are numbers of bits from the start of the bundle.
    """
    operation = _OPERATIONS[slot, name]
    return (operation.op.value << _POSITIONS[slot, "op"],
            tuple((operand.kind, _POSITIONS[slot, operand.field])
                  for operand in operation.operands))


def encode(bundles: Iterable[Operations]) -> tuple[Words, list[Fixup]]:
    """Return the words of bundles, and the immediates in them that still lack a value.

    Parameters
    ----------
    bundles : iterable of Operations
        The bundles; each operand is a register, an integer, or a symbol.

    Returns
    -------
    words : array of uint32, shape (bundles, BUNDLE_WORDS)
        The bundles; immediates of symbols are 0.
    fixups : list of Fixup
        The immediates that symbols have to fill in.

    Raises
    ------
    ValueError
        If a bundle needs more than `hdl.isa.IMMEDIATES` immediates.
    """
    packed, fixups = [], []
    for number, operations in enumerate(bundles):
        bundle, symbols = _bundle(operations)
        packed.append(bundle.to_bytes(4 * isa.BUNDLE_WORDS, "little"))
        fixups += [(number, immediate, symbol) for immediate, symbol in symbols]
    words = np.frombuffer(b"".join(packed), "<u4").reshape(-1, isa.BUNDLE_WORDS)
    return words.astype(np.uint32), fixups


def _bundle(operations: Operations) -> tuple[int, list[tuple[int, Hashable]]]:
    bundle = 0
    immediates: dict[Hashable, int] = {}
    for slot, name, operands in operations:
        code, shape = _shape(slot, name)
        bundle |= code
        for (kind, position), value in zip(shape, operands, strict=False):
            bundle |= _field(kind, value, immediates) << position
    if len(immediates) > isa.IMMEDIATES:
        raise ValueError(f"a bundle must use at most {isa.IMMEDIATES} immediates, not "
                         f"{len(immediates)}: {', '.join(map(repr, immediates))}")
    symbols: list[tuple[int, Hashable]] = []
    for value, number in immediates.items():
        if isinstance(value, int):
            bundle |= value << _IMMEDIATES_AT + 32 * number
        else:
            symbols.append((number, value))
    return bundle, symbols


def _field(kind: Kind, value: Any, immediates: dict[Hashable, int]) -> int:
    """Return the bits of a field that encode the operand ``value``, of kind ``kind``.

    If the operand needs an immediate, add it to ``immediates``, which maps each word or symbol to
    the number of its immediate in the bundle.
    """
    if isinstance(value, Register):
        is_vector = kind is Kind.VECTOR_SOURCE and isinstance(value, Vector)
        return value.number | isa.VECTOR_FLAG * is_vector
    if kind is Kind.IMMEDIATE:
        return immediates.setdefault(_word(value), len(immediates))
    if isinstance(value, int):
        word = value & _MASK
        short = word - ((word & 1 << 31) << 1)
        if isa.INLINE_MIN <= short <= isa.INLINE_MAX:
            return isa.INLINE_BASE + short
    return isa.FIRST_IMMEDIATE + immediates.setdefault(_word(value), len(immediates))


def _word(value: Any) -> Hashable:
    return value & _MASK if isinstance(value, int) else value
