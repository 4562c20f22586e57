"""Stores of a product's results to HBM, by the product's own code, while the array runs.

A step of a product multiplies a block of rows by a weight tile, and adds to a block of sums. Here,
the steps with the last tile of the depth come last: each of them completes a block of sums. Such a
step starts a transfer after an eighth of its block's vectors has been popped, and another one after
a further half of them. The rest is stored by the first transfer of the next step, together with the
first eighth of that step's block. This is possible because blocks are adjacent in memory.

The DMA engine writes rows no faster than the array makes them. So all rows that it has not written
when the last results are popped delay the end of the product. Therefore, the transfers are small.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from sim.compiler.kernels.products.product import Product
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Fence, Index, IndexLike, SReg

__all__ = ["STORE_WORDS", "Stores", "address_of"]

STORE_WORDS = DESCRIPTOR_WORDS + 1
"""Number of words of scalar memory that the stores need: a descriptor, and the number of the
results' first row of HBM."""
_PARTS = 2
"""Number of transfers that store a block whose results are popped after the last step."""


class Stores:
    """Writes the code that stores a product's results.

    Methods that write a descriptor, or start a transfer, write code that does so.

    Parameters
    ----------
    b : Builder
    product : Product
        Computed by depth (`Product.by_depth`).
    home : SReg
        Number of the results' first row of HBM.
    words : range
        `STORE_WORDS` words of scalar memory.
    what : int
        Bits of a descriptor's first word: the semaphore that counts complete transfers, and the
        flag that enables the counting.
    """

    def __init__(self, b: Builder, product: Product, home: SReg, words: range, what: int) -> None:
        self._b, self._product, self._home = b, product, home
        self._descriptor, self._row = words[:DESCRIPTOR_WORDS], words[DESCRIPTOR_WORDS]
        self._what = what | DmaSpace.VMEM.value | DmaSpace.HBM.value << 4

    @cached_property
    def splits(self) -> tuple[int, ...]:
        """Positions in a block, in vectors, at which the step that pops the block starts transfers.

        A transfer stores the vectors from one such position to the next, which may lie in the next
        block.
        """
        rows, late = self._product.block_rows, self._product.late
        first = max(1, rows // 8)
        return tuple(split for split in (first, first + rows // 2)
                     if split + late + 1 < rows) or (0,)

    def places(self) -> dict[int, int]:
        """Map the number of a pushed vector, within its step, to the number of one of `splits`.

        After the push of this vector, the sums up to this split are complete. Their transfer starts
        after the push of the next vector, so that the array has rows while the start holds the
        core.
        """
        return {split + self._product.late: number for number, split in enumerate(self.splits)}

    @property
    def blocks(self) -> int:
        """Number of blocks of sums: one for each block of rows and each tile of columns."""
        product = self._product
        return product.blocks(product.block_rows) * product.others[0].count

    @property
    def first_step(self) -> int:
        """Number of the first step that starts a transfer of results."""
        product = self._product
        return product.steps - self.blocks + product.lag + (not self.splits[0])

    @property
    def transfers(self) -> int:
        """Total number of transfers of results."""
        product = self._product
        return ((product.steps - self.first_step) * len(self.splits) + 1
                + product.lag * len(tuple(self.parts())))

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield the transfers that store a block whose results are popped after the last step.

        Each is (first vector, number of vectors).
        """
        rows = self._product.block_rows
        borders = [rows * part // _PARTS for part in range(_PARTS + 1)]
        for first, end in pairwise(borders):
            if end > first:
                yield first, end - first

    def begin(self) -> None:
        """Store the descriptor's constant words and the number of the results' first HBM row."""
        b = self._b
        b.smem_store(self._home, self._row)
        for word in range(1, DESCRIPTOR_WORDS):
            b.smem_store(0, self._descriptor[word])
        b.smem_store(self._what, self._descriptor[0])

    def describe_first(self) -> None:
        """Write the descriptor of the first transfer.

        It stores the first block up to the first of `splits`, or the whole block if that is 0.
        """
        self.describe(0, self.splits[0] or self._product.block_rows)

    def describe_after(self, number: int, block: SReg) -> None:
        """Write the descriptor of the transfer that begins at vector ``splits[number]`` of a block.

        ``block`` is the index of the first vector of the block that is being popped.
        """
        following = (*self.splits, self.splits[0] + self._product.block_rows)[number + 1]
        self.describe(block + self.splits[number], following - self.splits[number])

    def describe_rest(self, block: SReg) -> None:
        """Write the descriptor of a transfer that stores the rest of the last block.

        The rest begins at the last of `splits`. ``block`` is the index of the block's first vector.
        """
        self.describe(block + self.splits[-1], self._product.block_rows - self.splits[-1])

    def describe(self, first: IndexLike, vectors: int) -> None:
        """Write the descriptor of a transfer of ``vectors`` result vectors, from ``first`` on."""
        b, config = self._b, self._product.config
        first = Index.of(first)
        row = b.value(b.smem_load(self._row) + first * config.sublanes)
        low, high = address_of(b, row, config)
        b.smem_store(vectors * config.sublanes, self._descriptor[1])
        b.smem_store(b.value(first + self._product.results.address), self._descriptor[2])
        b.smem_store(low, self._descriptor[6])
        if isinstance(high, SReg):
            b.smem_store(high, self._descriptor[7])

    def start(self) -> None:
        """Start the transfer whose descriptor was written last."""
        self._b.dma(self._descriptor.start, fence=Fence(after=(self._product.results,)))


def address_of(b: Builder, row: SReg, config: Config) -> tuple[SReg, SReg | int]:
    """Return the low and the high word of the byte address of HBM row ``row``."""
    shift = config.row_bytes.bit_length() - 1
    high = b.scalar("shr", row, 32 - shift) if config.hbm_bytes > 1 << 32 else 0
    return b.scalar("shl", row, shift), high
