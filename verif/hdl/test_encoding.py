"""Bundles as integers and words agree with the layout in hardware."""

import random
from typing import Any

import pytest

from hdl import isa
from hdl.encoding import bundle_words, pack, unpack
from hdl.isa import Slot


def random_fields(rng: random.Random) -> dict[Slot, dict[str, int]]:
    return {slot: {name: rng.getrandbits(width) for name, width in widths.items()}
            for slot, widths in isa.SLOTS.items()}


def test_hardware_layout_is_that_of_pack() -> None:
    assert isa.BUNDLE_LAYOUT.size == isa.BUNDLE_BITS == 288
    for slot, widths in isa.SLOTS.items():
        start = isa.BUNDLE_LAYOUT[str(slot)].offset
        for name, width in widths.items():
            field = isa.BUNDLE_LAYOUT[str(slot)].shape[name]
            packed = pack({slot: {name: (1 << width) - 1}})
            assert packed == (1 << width) - 1 << start + field.offset, (slot, name)
    for number in range(isa.IMMEDIATES):
        start = isa.BUNDLE_LAYOUT["imm"].offset + 32 * number
        values = tuple(0xFFFFFFFF * (k == number) for k in range(isa.IMMEDIATES))
        assert pack({}, values) == 0xFFFFFFFF << start


def test_unpack_is_the_inverse_of_pack() -> None:
    rng = random.Random(1)
    for _ in range(200):
        fields = random_fields(rng)
        values = tuple(rng.getrandbits(32) for _ in range(isa.IMMEDIATES))
        assert unpack(pack(fields, values)) == (fields, values, 0)
    everything = (1 << isa.BUNDLE_BITS) - 1
    assert unpack(everything)[2] == (1 << isa.RESERVED_BITS) - 1


def test_words_are_the_lowest_bits_first() -> None:
    words = bundle_words(pack({Slot.S0: {"op": 5}}, (0, 0, 0x89ABCDEF)))
    assert len(words) == isa.BUNDLE_WORDS
    assert words[0] == 5
    assert words[-1] == 0x89ABCDEF


@pytest.mark.parametrize(("slots_", "imm", "message"), [
    ({"s2": {}}, (), "slot must be one of s0, .* not 's2'"),
    ({Slot.POP: {"m": 1}}, (), "field of slot pop must be one of op, d, not 'm'"),
    ({Slot.POP: {"d": 32}}, (), r"pop\.d must fit 5 bits, not 32"),
    ({Slot.POP: {"d": -1}}, (), r"pop\.d must fit 5 bits, not -1"),
    ({}, (0, 0, 0, 0), "imm must have at most 3 immediates"),
    ({}, (0, 1 << 32), r"imm\[1\] must fit 32 bits, not 4294967296"),
])
def test_pack_refuses_what_does_not_fit(slots_: dict[Any, dict[str, int]],
                                        imm: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack(slots_, imm)


@pytest.mark.parametrize("bundle", [-1, 1 << isa.BUNDLE_BITS])
def test_unpack_refuses_what_is_no_bundle(bundle: int) -> None:
    with pytest.raises(ValueError, match="bundle must fit 288 bits"):
        unpack(bundle)
