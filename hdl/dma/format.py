"""The format of a DMA descriptor, and the spaces that a transfer moves rows between.

The one definition that the front end decodes with, the golden model executes, the assembler packs,
and from which `docs/isa.md` is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from amaranth import signed, unsigned
from amaranth.lib import data

from ..isa import BUNDLE_PITCH, BUNDLE_WORDS

__all__ = [
    "DESCRIPTOR", "DESCRIPTOR_LAYOUT", "DESCRIPTOR_WORDS", "DMA_DESTINATIONS", "DMA_MAX_ROWS",
    "DMA_SOURCES", "DMA_SPACES", "DescriptorField", "DmaSpace", "DmaSpaceInfo",
    "pack_descriptor", "unpack_descriptor",
]


class DmaSpace(IntEnum):
    """Where a side of a transfer lies."""

    HBM = 0
    VMEM = 1
    OTHER_VMEM = 2
    SMEM = 3
    IMEM = 4
    VREG = 5
    MASK = 6


@dataclass(frozen=True)
class DmaSpaceInfo:
    """What the sides of a transfer have in common that lie in one space.

    Attributes
    ----------
    meaning : str
        What the space is.
    address : str
        What its addresses count.
    vector : bool
        A block is a vector register of sublanes rows; otherwise it is one row.
    runs : bool
        A side may have runs.
    source, destination : bool
        Which sides may lie in it.
    cores : int
        Cores that a chip must have for it.
    """

    meaning: str
    address: str
    vector: bool
    runs: bool
    source: bool = True
    destination: bool = True
    cores: int = 1


DMA_SPACES: dict[DmaSpace, DmaSpaceInfo] = {
    DmaSpace.HBM: DmaSpaceInfo(
        "memory that all cores reach", "bytes; a multiple of a row's", vector=False, runs=True),
    DmaSpace.VMEM: DmaSpaceInfo(
        "vector memory of this core", "vector registers", vector=True, runs=True),
    DmaSpace.OTHER_VMEM: DmaSpaceInfo(
        "vector memory of the other core", "vector registers", vector=True, runs=True, cores=2),
    DmaSpace.SMEM: DmaSpaceInfo("scalar memory", "words", vector=False, runs=False),
    DmaSpace.IMEM: DmaSpaceInfo(
        f"instruction memory: word w of bundle i at {BUNDLE_PITCH} i + w; words {BUNDLE_WORDS} to "
        f"{BUNDLE_PITCH - 1} of each are ignored", f"words; a multiple of {BUNDLE_PITCH}",
        vector=False, runs=False, source=False),
    DmaSpace.VREG: DmaSpaceInfo(
        "vector registers", "number of the register", vector=True, runs=True, destination=False),
    DmaSpace.MASK: DmaSpaceInfo(
        "all masks as one vector register, whose bit i of each element is that of mask i",
        "0", vector=True, runs=True, destination=False),
}
"""What each space is."""
DMA_SOURCES = frozenset(space for space, info in DMA_SPACES.items() if info.source)
"""Spaces that a transfer can read."""
DMA_DESTINATIONS = frozenset(space for space, info in DMA_SPACES.items() if info.destination)
"""Spaces that a transfer can write."""
DMA_MAX_ROWS = (1 << 24) - 1
"""Rows of the longest transfer."""


@dataclass(frozen=True)
class DescriptorField:
    """A field of a descriptor.

    Attributes
    ----------
    width : int
        In bits.
    signed : bool
        Whether it is a two's complement number.
    meaning : str
        What it says.
    """

    width: int
    meaning: str
    signed: bool = False


_STRIDE = ("from the start of one run to that of the next, signed: bytes in HBM, registers "
           "elsewhere; 0 if the run is 0")

DESCRIPTOR: dict[str, DescriptorField] = {
    "source_space": DescriptorField(4, "space of the source, a `DmaSpace`"),
    "destination_space": DescriptorField(4, "space of the destination"),
    "semaphore": DescriptorField(4, "semaphore for completion"),
    "signal": DescriptorField(1, "add 1 to this core's semaphore at completion"),
    "signal_other": DescriptorField(1, "add 1 to the other core's semaphore of that number"),
    "reserved": DescriptorField(18, "0"),
    "rows": DescriptorField(32, f"rows in all, 1 to {DMA_MAX_ROWS}"),
    "source_address": DescriptorField(64, "where the source begins; the high word is 0 but in HBM"),
    "source_run": DescriptorField(32, "blocks of the source that lie one after the other; 0: all"),
    "source_stride": DescriptorField(32, _STRIDE, signed=True),
    "destination_address": DescriptorField(64, "the same for the destination"),
    "destination_run": DescriptorField(32, "the same for the destination"),
    "destination_stride": DescriptorField(32, "the same for the destination", signed=True),
}
"""Fields of a descriptor, from the lowest bits of its first word up. None crosses a word's end but
the addresses, which are two words, the low one first."""

DESCRIPTOR_WORDS = sum(field.width for field in DESCRIPTOR.values()) // 32
"""32-bit words of a descriptor, as they lie in scalar memory."""

DESCRIPTOR_LAYOUT = data.StructLayout({
    name: signed(field.width) if field.signed else unsigned(field.width)
    for name, field in DESCRIPTOR.items()})
"""The descriptor in hardware: all its words, the first in the lowest bits."""


def pack_descriptor(fields: Mapping[str, int]) -> tuple[int, ...]:
    """The words of a descriptor; fields that are not given are 0, and nothing else is checked.

    Raises
    ------
    ValueError
        If there is no such field, or a value does not fit.
    """
    for name in fields:
        if name not in DESCRIPTOR:
            raise ValueError(f"field must be one of {', '.join(DESCRIPTOR)}, not {name!r}")
    packed = 0
    position = 0
    for name, field in DESCRIPTOR.items():
        value = fields.get(name, 0)
        low = -1 << field.width - 1 if field.signed else 0
        if not low <= value < low + (1 << field.width):
            sign = "signed " if field.signed else ""
            raise ValueError(f"{name} must fit {sign}{field.width} bits, not {value!r}")
        packed |= (value & (1 << field.width) - 1) << position
        position += field.width
    return tuple(packed >> 32 * word & 0xFFFFFFFF for word in range(DESCRIPTOR_WORDS))


def unpack_descriptor(words: Sequence[int]) -> dict[str, int]:
    """All fields of a descriptor; the inverse of `pack_descriptor`.

    Raises
    ------
    ValueError
        If there are not as many words as a descriptor has, or one does not fit 32 bits.
    """
    if len(words) != DESCRIPTOR_WORDS:
        raise ValueError(f"words must be {DESCRIPTOR_WORDS}, not {len(words)}")
    packed = 0
    for number, value in enumerate(words):
        if not 0 <= value < 1 << 32:
            raise ValueError(f"words[{number}] must fit 32 bits, not {value!r}")
        packed |= int(value) << 32 * number
    fields = {}
    for name, field in DESCRIPTOR.items():
        value = packed & (1 << field.width) - 1
        if field.signed:
            value -= (value >> field.width - 1) << field.width
        fields[name] = value
        packed >>= field.width
    return fields
