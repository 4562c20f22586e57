"""Packs the fields of a bundle into an integer, and unpacks them, in the format of `hdl.isa`."""

from collections.abc import Mapping

from .isa import BUNDLE_BITS, BUNDLE_WORDS, IMMEDIATES, RESERVED_BITS, SLOTS, Slot

__all__ = ["bundle_words", "pack", "unpack"]


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

    def take(width: int) -> int:
        nonlocal bundle
        value = bundle & ((1 << width) - 1)
        bundle >>= width
        return value

    slots = {slot: {name: take(width) for name, width in widths.items()}
             for slot, widths in SLOTS.items()}
    reserved = take(RESERVED_BITS)
    return slots, tuple(take(32) for _ in range(IMMEDIATES)), reserved


def bundle_words(bundle: int) -> tuple[int, ...]:
    """Split a bundle into its `BUNDLE_WORDS` 32-bit words, lowest bits first, as in memory."""
    return tuple(bundle >> 32 * word & 0xFFFFFFFF for word in range(BUNDLE_WORDS))
