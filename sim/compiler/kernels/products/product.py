"""The array's loop: multiplies tiles of rows by tiles of weights, and adds the products.

A *step* multiplies a block of rows, which is a few vectors, by one weight tile. `Product` describes
all steps and the addresses of their operands by *levels*, which are like the loops of a loop nest.
Steps along the *depth*, the contracted dimensions, add to the same results. The levels along the
depth are innermost, so that the sums of a block can stay in vector registers until they are
complete. Every step also stores its sums: incomplete sums are overwritten by a later step.
`sim.compiler.kernels.products.steps` writes the code.

Loading a weight tile takes lanes + 1 cycles. A block of `Config.tile_vregs` vectors, as many as a
weight tile has, hides that: the array then accepts a row in all of these cycles but one.

Where the depth is padded, rows are pushed as +0 and weights as -0, which changes no bit
(docs/numerics.md, section 7). All other padding may have any value, because it only affects the
padding of the results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from hdl.config import Config
from sim.compiler.kernels.products.pieces import Scheme
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Index, VmemBuffer, VReg

__all__ = ["Finish", "Level", "Product"]

_SUMS = 19
"""Largest number of vectors in a block, whose sums must fit in vector registers."""
_FEW = 32
"""Products of at most this number of steps pop results as soon as they are ready."""
_PER_OPERATION = 0.85
"""Approximate cycles of a vector operation in a step in which the vector unit has more work than
the array."""

Finish = Callable[[Builder, VReg, Index], VReg]
"""Writes code, an epilogue, that converts a sum to the vector that is stored.

Its arguments are the builder, the sum, and the index of its vector in the buffer of the results. At
the same index, the code can load other operands that have the results' tiling. It is applied to
incomplete sums as well, which are stored and later overwritten."""


@dataclass(frozen=True)
class Level:
    """A loop around a step, with the distances by which operands advance in each iteration.

    Attributes
    ----------
    count : int
        Number of iterations.
    rows, results : int
        Vectors by which rows and results advance, in memory.
    weights, weight_row : int
        The weights advance by the sum of both, in vectors. ``weight_row`` is the advance along the
        dimension that runs along their sublanes, ``weights`` that along all other dimensions.
    depth : int
        Elements by which the step advances along ``Product.depth``; 0 if it does not.
    """

    count: int
    rows: int = 0
    weights: int = 0
    results: int = 0
    weight_row: int = 0
    depth: int = 0


@dataclass(frozen=True)
class Product:
    """All steps of a product on the array, and the addresses of their operands.

    Attributes
    ----------
    config : Config
    rows, weights, results : VmemBuffer
        Buffers of the operands and results.
    scheme : Scheme
        How numbers are split into pieces, multiplied and added.
    sums : tuple of Level
        Levels whose steps add to the same results, from the innermost.
    others : tuple of Level
        All other levels, from the innermost.
    block : Level
        The level whose iterations, a vector of rows each, are divided into blocks.
    depth : int
        Size of the contracted dimension that runs along the lanes of the rows.
    transposed : bool
        Whether the contracted dimension runs along the lanes of the weights, not the sublanes.
    weight_rows : int
        Number of tiles of the weights along their sublanes.
    finish : callable or None
        Converts a sum to the vector that is stored.
    first_row : int
        Index, in the buffer of the rows, of the first vector that the first step pushes.
    apart : tuple of (int, int)
        For the rows, and for the weights: vectors from one stored piece to the next. 0 unless
        `sim.compiler.kernels.products.ahead.split_ahead` has stored pieces.
    by_depth : bool
        Whether the steps of all blocks and columns for one tile of the depth (`lanes` elements)
        precede those for the next tile. Operands are then needed as late as possible, and sums stay
        in vector memory.
    packed : bool
        Whether the weights are packed (`sim.compiler.tiling`). Each vector in memory then gives two
        vectors that are pushed.
    """

    config: Config
    rows: VmemBuffer
    weights: VmemBuffer
    results: VmemBuffer
    scheme: Scheme
    sums: tuple[Level, ...]
    others: tuple[Level, ...]
    block: Level
    depth: int
    transposed: bool
    weight_rows: int
    finish: Finish | None = field(default=None, compare=False)
    first_row: int = 0
    apart: tuple[int, int] = (0, 0)
    by_depth: bool = False
    packed: bool = False

    @property
    def tile_vectors(self) -> int:
        """Number of vectors that a weight tile occupies in memory."""
        return self.config.tile_vregs // (1 + self.packed)

    @property
    def weight_vectors(self) -> int:
        """Number of vectors that ``weight_rows`` tiles of the weights occupy in memory."""
        return -(-self.weight_rows // (1 + self.packed))

    @cached_property
    def block_rows(self) -> int:
        """Number of vectors in a block, chosen so that the product takes the fewest cycles."""
        config = self.config
        most = min(self.block.count, config.result_vregs, _SUMS,
                   config.tile_vregs + max(1, config.tile_vregs // 5))
        # Each sum in vector memory must get each product once: blocks must not overlap.
        sizes = [rows for rows in range(1, most + 1)
                 if not self.by_depth or self.block.count % rows == 0]
        return min(sizes, key=lambda rows: (self.blocks(rows) * self.step_cycles(rows), rows))

    def blocks(self, rows: int) -> int:
        """Return the number of blocks into which the iterations of level ``block`` are divided.

        Each block has ``rows`` vectors; the last one may overlap the one before.
        """
        return -(-self.block.count // rows)

    def step_cycles(self, rows: int) -> int:
        """Return the cycles of a step with ``rows`` vectors of rows.

        The array or the vector unit determines them, whichever takes longer.
        """
        pushed, weight, result = self.scheme.work
        weight += self.packed
        work = pushed * rows + weight * self.config.tile_vregs + result * rows
        return max(rows * self.config.sublanes, self.config.array + 1, round(work * _PER_OPERATION))

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels with more than one iteration, the innermost first.

        The levels of passes and of blocks are not among them.
        """
        return tuple(level for level in (*self.sums, *self.others) if level.count > 1)

    @cached_property
    def steps(self) -> int:
        """Number of steps of all passes together."""
        count = self.scheme.passes * self.blocks(self.block_rows)
        for level in self.levels:
            count *= level.count
        return count

    @cached_property
    def adds(self) -> bool:
        """Whether several steps or passes add to the same results."""
        return self.scheme.passes > 1 or any(level.count > 1 for level in self.sums)

    @property
    def in_place(self) -> bool:
        """Whether sums accumulate in vector memory, leaving more vector registers to ``scheme``."""
        many = self.scheme.passes > 1 or self.by_depth
        return self.adds and many and self.finish is None

    @cached_property
    def lag(self) -> int:
        """Number of steps between a step's push of rows and the pop of their results."""
        if self.by_depth:
            return self._delay // self.block_rows
        config, rows = self.config, self.block_rows
        # With a smaller lag, each step waits a little for its results, but the end is shorter.
        spare = 2 if self.steps > _FEW else -1
        latency = config.array_latency + spare * config.sublanes
        wanted = -(-latency // self.step_cycles(rows))
        return min(wanted, config.result_vregs // rows - 1, self.steps - 1)

    @cached_property
    def early(self) -> int:
        """Number of the results' first vectors that are complete before the last step.

        0 if the product takes several passes, or is computed by depth (`by_depth`).
        """
        if self.by_depth or self.scheme.passes > 1:
            return 0
        # The last result of a step is stored one step after the others.
        unfinished = range(max(0, self.steps - self.lag - 2), self.steps)
        depth = math.prod(level.count for level in self.sums)
        return min(self.result_of(step // depth) for step in unfinished)

    def result_of(self, total: int) -> int:
        """Return the index, among the vectors of results, of the first vector of a block.

        ``total`` is the number of the block, in the order in which steps complete blocks.
        """
        total, block = divmod(total, self.blocks(self.block_rows))
        first = min(block * self.block_rows, self.block.count - self.block_rows)
        address = first * self.block.results
        for level in self.others:
            total, number = divmod(total, level.count)
            address += number * level.results
        return address

    @property
    def late(self) -> int:
        """Number of vectors of rows that a step pushes before it begins to pop another block.

        Until then, it pops the last results of the block that the step before began to pop. The
        number is 0 unless `by_depth` is true.
        """
        return self._delay % self.block_rows if self.by_depth else 0

    @cached_property
    def _delay(self) -> int:
        """Number of vectors of rows that are pushed after a vector, until its result is popped."""
        config, rows = self.config, self.block_rows
        latency = config.array_latency + 2 * config.sublanes
        return min(-(-latency * rows // self.step_cycles(rows)), config.result_vregs - rows,
                   (self.steps - 1) * rows)

    @property
    def cycles(self) -> int:
        """Estimated cycles of all bundles, with the operands in vector memory."""
        config, rows = self.config, self.block_rows
        first = config.array + 16
        drain = config.array_latency + 2 * config.sublanes
        steps = self.lag + (self.steps == self.lag + 1)
        last = steps * rows * config.sublanes
        return (first + self.steps * self.step_cycles(rows)
                + max(last, drain) + 24)
