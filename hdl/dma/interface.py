"""Layouts of transfers inside the DMA engine, and sizes of the address spaces."""

from amaranth import signed
from amaranth.lib import data
from amaranth.utils import ceil_log2, exact_log2

from ..checks import instance
from ..config import Config
from ..core.interface import SEMAPHORE_BITS
from ..isa import BUNDLE_PITCH, VECTOR_REGISTERS
from .format import DMA_MAX_ROWS, DMA_SPACES, DmaSpace

__all__ = ["BLOCK_BITS", "MAX_BURST", "QUEUE_DEPTH", "SPACE_BITS", "VECTOR_SPACES", "WORD_SPACES",
           "address_bits", "check_config", "row_words_log2", "side", "space_size", "transfer"]

QUEUE_DEPTH = 4
"""Number of transfers that the queue can hold; a power of two."""
MAX_BURST = 256
"""Number of rows in the longest burst that the engine requests."""
SPACE_BITS = ceil_log2(len(DmaSpace))
BLOCK_BITS = DMA_MAX_ROWS.bit_length()
"""Width of a number of blocks, which are rows, vectors or words, depending on the space."""

VECTOR_SPACES = tuple(space.value for space, info in DMA_SPACES.items() if info.vector)
"""Spaces whose blocks are vectors."""
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
    """Size of ``space``: in rows for HBM, in words for `WORD_SPACES`, in vectors for the others."""
    return {
        DmaSpace.HBM: config.hbm_rows,
        DmaSpace.VMEM: config.vmem_vectors,
        DmaSpace.OTHER_VMEM: config.vmem_vectors,
        DmaSpace.SMEM: config.smem_words,
        DmaSpace.IMEM: config.imem_bundles * BUNDLE_PITCH,
        DmaSpace.VREG: VECTOR_REGISTERS,
        DmaSpace.MASK: 1,
    }[space]


def address_bits(config: Config) -> int:
    """Width of an address of any space, in the units of `space_size`."""
    return max(ceil_log2(space_size(config, space)) for space in DmaSpace)


def row_words_log2(config: Config) -> int:
    """Binary logarithm of the number of words in a row."""
    return exact_log2(config.lanes)


def side(config: Config) -> data.StructLayout:
    """Layout of a checked side (source or destination) of a transfer: all blocks are in its space.

    ``space`` is a `DmaSpace`. ``address`` and ``stride`` are in units of `space_size`.
    ``blocks`` is the number of blocks; in `WORD_SPACES`, a block is a word. ``run`` is the number
    of blocks in a run, at least 1 even if the descriptor has no run.
    """
    bits = address_bits(config)
    return data.StructLayout({"space": SPACE_BITS, "address": bits, "stride": signed(bits + 1),
                              "run": BLOCK_BITS, "blocks": BLOCK_BITS})


def transfer(config: Config) -> data.StructLayout:
    """Layout of a transfer: two sides, the number of ``rows``, and the semaphores to signal.

    ``from_host`` is set if the host started the transfer, not a program.
    """
    return data.StructLayout({
        "source": side(config), "destination": side(config), "rows": BLOCK_BITS,
        "semaphore": SEMAPHORE_BITS, "signal": 1, "signal_other": 1, "from_host": 1})
