"""Packs the fields of a bundle into an integer, and unpacks them, in the format of `hdl.isa`."""

from collections.abc import Mapping
from itertools import accumulate

from .isa import BUNDLE_BITS, BUNDLE_WORDS, IMMEDIATES, RESERVED_BITS, SLOTS, Slot

__all__ = ["bundle_words", "pack", "unpack"]


def _fields(widths: Mapping[str, int]) -> tuple[tuple[str, int, int], ...]:
    """Return each field's name, position in its slot, and a mask of its width."""
    ends = accumulate(widths.values())
    return tuple((name, end - width, (1 << width) - 1)
                 for (name, width), end in zip(widths.items(), ends, strict=True))


_ENDS = list(accumulate(sum(widths.values()) for widths in SLOTS.values()))
_SLOT_BITS = _ENDS[-1]
_LAYOUT = {slot: (end - sum(widths.values()), (1 << sum(widths.values())) - 1, _fields(widths),
                  dict.fromkeys(widths, 0))
           for (slot, widths), end in zip(SLOTS.items(), _ENDS, strict=True)}
"""For each slot: its position in a bundle, a mask of its width, its fields, and all of them 0."""
_IMMEDIATES = range(0, 32 * IMMEDIATES, 32)
"""Positions of the immediates, after the reserved bits."""


def pack(slots: Mapping[Slot, Mapping[str, int]], imm: tuple[int, ...] = ()) -> int:
    """Pack a bundle into an integer of `BUNDLE_BITS`.

    Parameters
    ----------
    slots : mapping of Slot to mapping of str to int
        Fields of each slot in use; missing slots and fields are 0.
    imm : tuple of int
        Immediates, as unsigned 32-bit words; missing ones are 0.

    Raises
    ------
    ValueError
        If a slot or a field does not exist, a value does not fit its field, or there are too many
        immediates.
    """
    for slot, fields in slots.items():
        if slot not in SLOTS:
            raise ValueError(f"slot must be one of {', '.join(SLOTS)}, not {slot!r}")
        for name in fields:
            if name not in SLOTS[slot]:
                raise ValueError(f"field of slot {slot} must be one of {', '.join(SLOTS[slot])}, "
                                 f"not {name!r}")
    if len(imm) > IMMEDIATES:
        raise ValueError(f"imm must have at most {IMMEDIATES} immediates, not {imm!r}")
    bundle = 0
    position = 0
    for slot, widths in SLOTS.items():
        given = slots.get(slot, {})
        for name, width in widths.items():
            value = given.get(name, 0)
            if not 0 <= value < 1 << width:
                raise ValueError(f"{slot}.{name} must fit {width} bits, not {value!r}")
            bundle |= value << position
            position += width
    position += RESERVED_BITS
    for number, value in enumerate(imm):
        if not 0 <= value < 1 << 32:
            raise ValueError(f"imm[{number}] must fit 32 bits, not {value!r}")
        bundle |= value << position + 32 * number
    return bundle


def unpack(bundle: int) -> tuple[dict[Slot, dict[str, int]], tuple[int, ...], int]:
    """Unpack a bundle into (fields of each slot, immediates, reserved bits).

    Raises
    ------
    ValueError
        If the bundle does not fit `BUNDLE_BITS`.
    """
    if not 0 <= bundle < 1 << BUNDLE_BITS:
        raise ValueError(f"bundle must fit {BUNDLE_BITS} bits, not {bundle:#x}")

    slots = {}
    for slot, (position, mask, fields, empty) in _LAYOUT.items():
        bits = bundle >> position & mask
        # Most slots are empty; integers of one slot are small.
        slots[slot] = ({name: bits >> low & ones for name, low, ones in fields} if bits
                       else empty.copy())
    rest = bundle >> _SLOT_BITS
    imm = rest >> RESERVED_BITS
    return (slots, tuple([imm >> position & 0xFFFFFFFF for position in _IMMEDIATES]),
            rest & (1 << RESERVED_BITS) - 1)


def bundle_words(bundle: int) -> tuple[int, ...]:
    """Split a bundle into its `BUNDLE_WORDS` 32-bit words, lowest bits first, as in memory."""
    return tuple(bundle >> 32 * word & 0xFFFFFFFF for word in range(BUNDLE_WORDS))
