"""Layouts of transfers inside the DMA engine, and sizes of the address spaces."""

from dataclasses import dataclass

from amaranth import signed
from amaranth.lib import data
from amaranth.utils import ceil_log2, exact_log2

from ..checks import instance
from ..config import Config
from ..core.interface import SEMAPHORE_BITS, descriptor_words
from ..isa import BUNDLE_PITCH, VECTOR_REGISTERS
from ..link.format import COORDINATE_BITS, HOP_BITS
from .format import DESCRIPTOR_WORDS, DMA_MAX_ROWS, DMA_SPACES, DmaSpace

__all__ = ["BLOCK_BITS", "DIVISION_STEP_BITS", "MAX_BURST", "QUEUE_DEPTH", "SHORT_BITS",
           "SPACE_BITS", "VECTOR_SPACES", "WORD_SPACES", "CheckTimes", "address_bits",
           "check_config", "remote_chip", "row_words_log2", "side", "space_size", "transfer"]

QUEUE_DEPTH = 4
"""Number of transfers that the queue can hold; a power of two."""
MAX_BURST = 256
"""Number of rows in the longest burst that the engine requests."""
SPACE_BITS = ceil_log2(len(DmaSpace))
BLOCK_BITS = DMA_MAX_ROWS.bit_length()
"""Width of a number of blocks, which are rows, vectors or words, depending on the space."""

DIVISION_STEP_BITS = 2
"""Number of quotient bits that the division for a side with runs computes in each cycle."""
SHORT_BITS = BLOCK_BITS // 2
"""In cores that read a descriptor in one cycle, the division of at most ``2 ** SHORT_BITS`` blocks
takes half as many cycles as that of more blocks."""
assert BLOCK_BITS % (2 * DIVISION_STEP_BITS) == 0

VECTOR_SPACES = tuple(space.value for space, info in DMA_SPACES.items()
                      if info.vector and not info.links)
"""Spaces of the chip itself whose blocks are vectors; those of REMOTE_VMEM are vectors, too."""
WORD_SPACES = (DmaSpace.SMEM.value, DmaSpace.IMEM.value)
"""Spaces whose blocks are words."""
assert all(not DMA_SPACES[DmaSpace(space)].runs for space in WORD_SPACES)


def check_config(config: Config) -> None:
    """Check that the number of words in a row, which is ``array``, is a power of two.

    Raises
    ------
    TypeError, ValueError
        If ``config`` is not a `Config`, or ``array`` is not a power of two.
    """
    instance("config", config, Config)
    if config.lanes & (config.lanes - 1):
        raise ValueError(f"array must be a power of two, not {config.array!r}")


def space_size(config: Config, space: DmaSpace) -> int:
    """Return the size of ``space``: HBM in rows, `WORD_SPACES` in words, all others in vectors."""
    return {
        DmaSpace.HBM: config.hbm_rows,
        DmaSpace.VMEM: config.vmem_vectors,
        DmaSpace.OTHER_VMEM: config.vmem_vectors,
        DmaSpace.SMEM: config.smem_words,
        DmaSpace.IMEM: config.imem_bundles * BUNDLE_PITCH,
        DmaSpace.VREG: VECTOR_REGISTERS,
        DmaSpace.MASK: 1,
        DmaSpace.REMOTE_VMEM: config.vmem_vectors,
    }[space]


def address_bits(config: Config) -> int:
    """Return the width of an address of any space, in the units of `space_size`."""
    return max(ceil_log2(space_size(config, space)) for space in DmaSpace)


def row_words_log2(config: Config) -> int:
    """Return the binary logarithm of the number of words in a row."""
    return exact_log2(config.lanes)


def side(config: Config) -> data.StructLayout:
    """Layout of a checked side (source or destination) of a transfer: all blocks are in its space.

    ``space`` is a `DmaSpace`. ``address`` and ``stride`` are in units of `space_size`.
    ``blocks`` is the number of blocks; in `WORD_SPACES`, a block is a word. ``run`` is the number
    of blocks in a run; `DMA_MAX_ROWS` if the descriptor has no run, or a longer one.
    """
    bits = address_bits(config)
    return data.StructLayout({"space": SPACE_BITS, "address": bits, "stride": signed(bits + 1),
                              "run": BLOCK_BITS, "blocks": BLOCK_BITS})


def remote_chip() -> data.StructLayout:
    """Return the layout that identifies a core of another chip, and the hops to it.

    ``dx`` and ``dy`` hops lead to the chip with coordinates ``x`` and ``y``; ``core`` is the number
    of the core there.
    """
    return data.StructLayout({"dx": signed(HOP_BITS), "dy": signed(HOP_BITS),
                              "x": COORDINATE_BITS, "y": COORDINATE_BITS, "core": 1})


def transfer(config: Config) -> data.StructLayout:
    """Layout of a transfer: two sides, the number of ``rows``, and the semaphores to signal.

    ``from_host`` is set if the host started the transfer, not a program. If the chip has links,
    ``remote`` is set for a remote transfer. Then ``to``, a `remote_chip`, is its destination, and
    ``signal_remote`` and ``remote_semaphore`` are those of the descriptor.
    """
    links = {"remote": 1, "to": remote_chip(), "signal_remote": 1,
             "remote_semaphore": SEMAPHORE_BITS}
    return data.StructLayout({
        "source": side(config), "destination": side(config), "rows": BLOCK_BITS,
        "semaphore": SEMAPHORE_BITS, "signal": 1, "signal_other": 1, "from_host": 1,
        **(links if config.link_bytes else {})})


_DIVISIBLE = 6
"""Number of words of a descriptor that must have been read before the number of a side's blocks can
be divided by its run length."""


@dataclass(frozen=True)
class CheckTimes:
    """Timing of the reading and the checks of a descriptor; cycle 0 is that of the request.

    Attributes
    ----------
    reads : int
        Number of reads of scalar memory, one a cycle from cycle 0 on.
    division_start : int
        First cycle of the division of a side's number of blocks by its run length.
    complete : int
        First cycle in which all words of the descriptor can be used.
    """

    reads: int
    division_start: int
    complete: int

    @classmethod
    def of(cls, config: Config) -> "CheckTimes":
        """Return the timing in a core with the parameters ``config``."""
        together = descriptor_words(config)
        return cls(DESCRIPTOR_WORDS // together, -(-_DIVISIBLE // together) + 1,
                   DESCRIPTOR_WORDS // together + 1)

    def total(self, blocks: int = 0) -> int:
        """Return the cycles from the request to the answer, if the queue has room.

        ``blocks`` is the greatest number of blocks of a side with runs; 0 if no side has runs.
        """
        short = self.reads == 1 and blocks <= 1 << SHORT_BITS
        bits = SHORT_BITS if short else BLOCK_BITS
        divided = self.division_start + 1 + bits // DIVISION_STEP_BITS if blocks else 0
        return max(self.complete, divided) + 2
