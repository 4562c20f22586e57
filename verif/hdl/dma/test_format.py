"""The descriptor format: Python's words agree with the hardware's layout; every space is listed."""

import random
from collections.abc import Mapping

import pytest
from amaranth import Shape

from hdl import isa
from hdl.dma.format import (
    DESCRIPTOR,
    DESCRIPTOR_LAYOUT,
    DESCRIPTOR_WORDS,
    DMA_DESTINATIONS,
    DMA_SOURCES,
    DMA_SPACES,
    DmaSpace,
    pack_descriptor,
    unpack_descriptor,
)


def test_hardware_layout_of_descriptors_is_that_of_their_pack() -> None:
    assert DESCRIPTOR_LAYOUT.size == 32 * DESCRIPTOR_WORDS == 320
    for name, field in DESCRIPTOR.items():
        member = DESCRIPTOR_LAYOUT[name]
        assert member.width == field.width
        assert Shape.cast(member.shape).signed == field.signed
        ones = -1 if field.signed else (1 << field.width) - 1
        words = pack_descriptor({name: ones})
        packed = sum(word << 32 * number for number, word in enumerate(words))
        assert packed == (1 << field.width) - 1 << member.offset, name
        # Addresses are whole words, and nothing else is more than one.
        first, last = member.offset // 32, (member.offset + member.width - 1) // 32
        assert last == first or (member.offset % 32 == 0 and member.width == 64), name


def test_unpack_is_the_inverse_of_pack_for_descriptors() -> None:
    seed = 2
    rng = random.Random(seed)
    for _ in range(200):
        words = tuple(rng.getrandbits(32) for _ in range(DESCRIPTOR_WORDS))
        fields = unpack_descriptor(words)
        assert fields.keys() == DESCRIPTOR.keys()
        assert pack_descriptor(fields) == words, seed
    assert unpack_descriptor([0x3210, *[0] * 4, 0xFFFFFFF0, *[0] * 4]) == dict.fromkeys(
        DESCRIPTOR, 0) | {"destination_space": 1, "semaphore": 2, "signal": 1,
                          "signal_other": 1, "source_stride": -16}


@pytest.mark.parametrize(("fields", "message"), [
    ({"row": 1}, "field must be one of source_space, .* not 'row'"),
    ({"semaphore": 16}, "semaphore must fit 4 bits, not 16"),
    ({"source_address": -1}, "source_address must fit 64 bits, not -1"),
    ({"source_stride": 1 << 31},
     "source_stride must fit 32 bits as a signed number, not 2147483648"),
    ({"source_stride": -1 - (1 << 31)}, "source_stride must fit 32 bits as a signed number"),
])
def test_descriptor_fields_that_do_not_fit(fields: Mapping[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_descriptor(fields)


def test_every_space_is_explained() -> None:
    assert set(DMA_SPACES) == set(DmaSpace)
    assert set(DmaSpace) - DMA_SOURCES == {DmaSpace.IMEM, DmaSpace.REMOTE_VMEM}
    assert set(DmaSpace) - DMA_DESTINATIONS == {DmaSpace.VREG, DmaSpace.MASK}
    assert max(DmaSpace) < 1 << DESCRIPTOR["source_space"].width
    assert isa.SEMAPHORES == 1 << DESCRIPTOR["semaphore"].width
