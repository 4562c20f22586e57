"""The format of a DMA descriptor, and the address spaces of a transfer.

This is the only definition: the RTL, the golden model and the assembler use it, and `docs/isa.md`
is generated from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from amaranth import signed, unsigned
from amaranth.lib import data

from ..config import Config
from ..isa import BUNDLE_PITCH, BUNDLE_WORDS

__all__ = [
    "DESCRIPTOR", "DESCRIPTOR_LAYOUT", "DESCRIPTOR_WORDS", "DMA_DESTINATIONS", "DMA_MAX_ROWS",
    "DMA_SOURCES", "DMA_SPACES", "REMOTE_LAYOUT", "DescriptorField", "DmaSpace", "DmaSpaceInfo",
    "pack_descriptor", "pack_remote", "unpack_descriptor", "unpack_remote",
]


class DmaSpace(IntEnum):
    """Address space of one side of a transfer."""

    HBM = 0
    VMEM = 1
    OTHER_VMEM = 2
    SMEM = 3
    IMEM = 4
    VREG = 5
    MASK = 6
    REMOTE_VMEM = 7


@dataclass(frozen=True)
class DmaSpaceInfo:
    """Properties of an address space.

    Attributes
    ----------
    meaning : str
        The memory that the space addresses, as a phrase for docs/isa.md.
    address : str
        Unit of the addresses, as a phrase for docs/isa.md.
    vector : bool
        Whether a block is a vector, which has ``sublanes`` rows; otherwise it is one row.
    runs : bool
        Whether a side in this space may have runs.
    source, destination : bool
        Whether a transfer can read the space, and whether a transfer can write it.
    cores : int
        Least number of cores of a chip that has the space.
    links : bool
        Whether only chips with links have the space.
    """

    meaning: str
    address: str
    vector: bool
    runs: bool
    source: bool = True
    destination: bool = True
    cores: int = 1
    links: bool = False

    def exists(self, config: Config) -> bool:
        """Return whether a chip with these parameters has the space."""
        return self.cores <= config.cores and (config.link_bytes != 0 or not self.links)


DMA_SPACES: dict[DmaSpace, DmaSpaceInfo] = {
    DmaSpace.HBM: DmaSpaceInfo(
        "memory that all cores share", "bytes; a multiple of a row's bytes", vector=False,
        runs=True),
    DmaSpace.VMEM: DmaSpaceInfo(
        "vector memory of this core", "vectors", vector=True, runs=True),
    DmaSpace.OTHER_VMEM: DmaSpaceInfo(
        "vector memory of the other core", "vectors", vector=True, runs=True, cores=2),
    DmaSpace.SMEM: DmaSpaceInfo("scalar memory", "words", vector=False, runs=False),
    DmaSpace.IMEM: DmaSpaceInfo(
        f"instruction memory: word w of bundle i at {BUNDLE_PITCH} i + w; words {BUNDLE_WORDS} to "
        f"{BUNDLE_PITCH - 1} of each bundle are ignored", f"words; a multiple of {BUNDLE_PITCH}",
        vector=False, runs=False, source=False),
    DmaSpace.VREG: DmaSpaceInfo(
        "vector registers", "number of the register", vector=True, runs=True, destination=False),
    DmaSpace.MASK: DmaSpaceInfo(
        "all masks as one vector: bit i of each element is that of mask i",
        "always 0", vector=True, runs=True, destination=False),
    DmaSpace.REMOTE_VMEM: DmaSpaceInfo(
        "vector memory of a core of another chip", "vectors; the high word names the core",
        vector=True, runs=True, source=False, links=True),
}
"""The properties of each space."""
DMA_SOURCES = frozenset(space for space, info in DMA_SPACES.items() if info.source)
"""Spaces that a transfer can read."""
DMA_DESTINATIONS = frozenset(space for space, info in DMA_SPACES.items() if info.destination)
"""Spaces that a transfer can write."""
DMA_MAX_ROWS = (1 << 24) - 1
"""Number of rows of the longest transfer."""


@dataclass(frozen=True)
class DescriptorField:
    """A field of a descriptor.

    Attributes
    ----------
    width : int
        Width in bits.
    meaning : str
        Meaning of the field, as a phrase for docs/isa.md.
    signed : bool
        Whether the field is a two's complement number; otherwise it is unsigned.
    """

    width: int
    meaning: str
    signed: bool = False


_STRIDE = ("distance from the start of one run to the start of the next, signed: in HBM in bytes, "
           "elsewhere in vectors or registers; must be 0 if the word before it is 0")

DESCRIPTOR: dict[str, DescriptorField] = {
    "source_space": DescriptorField(4, "code of the source's space"),
    "destination_space": DescriptorField(4, "code of the destination's space"),
    "semaphore": DescriptorField(4, "number of the semaphore to signal at completion"),
    "signal": DescriptorField(
        1, "if 1: at completion, add 1 to this core's semaphore of that number"),
    "signal_other": DescriptorField(
        1, "if 1: at completion, add 1 to the other core's semaphore of that number"),
    "signal_remote": DescriptorField(
        1, "if 1: after the data, add 1 to a semaphore of the destination's core; must be 0 unless "
        "the destination is REMOTE_VMEM"),
    "remote_semaphore": DescriptorField(
        4, "number of that semaphore; must be 0 unless the destination is REMOTE_VMEM"),
    "reserved": DescriptorField(13, "must be 0"),
    "rows": DescriptorField(32, f"number of rows, 1 to {DMA_MAX_ROWS}"),
    "source_address": DescriptorField(
        64, "address of the source's first block; the high word must be 0 except in HBM"),
    "source_run": DescriptorField(
        32, "number of consecutive blocks in a run of the source; 0: all blocks"),
    "source_stride": DescriptorField(32, _STRIDE, signed=True),
    "destination_address": DescriptorField(
        64, "address of the destination's first block; the high word must be 0 except in HBM and "
        "REMOTE_VMEM"),
    "destination_run": DescriptorField(
        32, "number of consecutive blocks in a run of the destination; 0: all blocks"),
    "destination_stride": DescriptorField(32, _STRIDE, signed=True),
}
"""Fields of a descriptor, from the lowest bits of its first word up. Only the addresses are longer
than a word: each has two words, the low one first."""

DESCRIPTOR_WORDS = sum(field.width for field in DESCRIPTOR.values()) // 32
"""Number of words of a descriptor in scalar memory."""

DESCRIPTOR_LAYOUT = data.StructLayout({
    name: signed(field.width) if field.signed else unsigned(field.width)
    for name, field in DESCRIPTOR.items()})
"""Layout of a descriptor in hardware: all its words, the first word in the lowest bits."""


def pack_descriptor(fields: Mapping[str, int]) -> tuple[int, ...]:
    """Pack the fields of a descriptor into words; missing fields are 0.

    Only the widths are checked: the result may be a descriptor that the hardware refuses.

    Raises
    ------
    ValueError
        If a field does not exist, or a value does not fit its field.
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
            sign = " as a signed number" if field.signed else ""
            raise ValueError(f"{name} must fit {field.width} bits{sign}, not {value!r}")
        packed |= (value & (1 << field.width) - 1) << position
        position += field.width
    return tuple(packed >> 32 * word & 0xFFFFFFFF for word in range(DESCRIPTOR_WORDS))


def unpack_descriptor(words: Sequence[int]) -> dict[str, int]:
    """Unpack the words of a descriptor into its fields.

    Raises
    ------
    ValueError
        If the number of words is not `DESCRIPTOR_WORDS`, or a word does not fit 32 bits.
    """
    if len(words) != DESCRIPTOR_WORDS:
        raise ValueError(
            f"number of a descriptor's words must be {DESCRIPTOR_WORDS}, not {len(words)}")
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


REMOTE_LAYOUT = data.StructLayout({
    "dx": signed(8), "dy": signed(8), "core": unsigned(1), "reserved": unsigned(15)})
"""Layout of the high word of an address in REMOTE_VMEM, and of operand a of ``signal_remote``. It
holds signed hops along X and along Y, and the number of a core of the chip to which they lead."""


def pack_remote(dx: int, dy: int, core: int) -> int:
    """Pack ``dx`` hops along X, ``dy`` hops along Y and a core's number as in `REMOTE_LAYOUT`.

    Raises
    ------
    ValueError
        If a value does not fit its field.
    """
    for name, hops in (("dx", dx), ("dy", dy)):
        if not -128 <= hops < 128:
            raise ValueError(f"{name} must be from -128 to 127, not {hops!r}")
    if core not in (0, 1):
        raise ValueError(f"core must be 0 or 1, not {core!r}")
    return dx & 0xFF | (dy & 0xFF) << 8 | core << 16


def unpack_remote(word: int) -> tuple[int, int, int, int]:
    """Unpack a word of `REMOTE_LAYOUT` into its fields: dx, dy, core, reserved."""
    dx, dy = (((word >> low & 0xFF) ^ 0x80) - 0x80 for low in (0, 8))
    return dx, dy, word >> 16 & 1, word >> 17
