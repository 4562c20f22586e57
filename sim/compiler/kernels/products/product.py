"""The array's loop: sums of products of tiles of rows and weights, in vector memory.

A *step* multiplies a block of rows, some vectors, by one weight tile. `Product` says how many steps
there are and where each finds its operands: a nest of levels, as in a loop nest. Levels of *depth*
add to the same results; they are the innermost ones, so that the sums of a block can stay in vector
registers. Every step stores them. `sim.compiler.kernels.products.steps` writes the code.

A weight tile takes lanes + 1 cycles, and a block of tile_vregs vectors hides it: the array takes a
row in all other cycles.

Rows of the padding of an operand's depth are pushed as +0, and weights there as -0, which changes
no bit (docs/numerics.md, section 7). All other padding may hold anything: it ends in the padding of
the results.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from hdl.config import Config
from sim.compiler.kernels.products.pieces import Scheme
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Index, VmemBuffer, VReg

__all__ = ["Finish", "Level", "Product"]

_SUMS = 19
"""Most vectors of a block whose sums are in registers."""
_FEW = 32
"""Most steps of a product whose results are taken as soon as they are ready."""
_PER_OPERATION = 0.85
"""Cycles of a vector operation, about, where they take longer than the array."""

Finish = Callable[[Builder, VReg, Index], VReg]
"""Writes code that turns a sum into what is stored: an epilogue. It is given the number of the
vector among the results, by which it can load other operands of their tiling. It is applied to
incomplete sums too, which are stored and then overwritten."""


@dataclass(frozen=True)
class Level:
    """A loop around a step: iterations, and by how many vectors the operands advance in each.

    Attributes
    ----------
    count : int
    rows, weights, results : int
        Distances in vectors.
    weight_row : int
        By how many vectors the weights advance along their sublanes, in addition.
    depth : int
        By how many elements the step advances along the depth that is in tiles, or 0.
    """

    count: int
    rows: int = 0
    weights: int = 0
    results: int = 0
    weight_row: int = 0
    depth: int = 0


@dataclass(frozen=True)
class Product:
    """Steps of the array, and where they find their operands.

    Attributes
    ----------
    config : Config
    rows, weights, results : VmemBuffer
        Operands and results.
    scheme : Scheme
        How numbers are multiplied.
    sums : tuple of Level
        Levels whose steps add to the same results, from the innermost.
    others : tuple of Level
        All other levels, from the innermost.
    block : Level
        The vectors of rows that follow each other; they are cut into blocks.
    depth : int
        Size of the dimension along the lanes of the rows.
    transposed : bool
        The weights' depth runs along the lanes, not along the sublanes.
    weight_rows : int
        Vectors of the weights along their sublanes.
    finish : callable or None
        Makes what is stored from a sum.
    first_row : int
        The vector of the rows that the first step pushes first.
    apart : tuple of (int, int)
        Vectors from one stored piece of the rows, and of the weights, to the next (`split_ahead`).
    by_depth : bool
        All blocks and columns of a tile of the depth come before the next tile, so that operands
        are needed late; sums stay in vector memory.
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

    @cached_property
    def block_rows(self) -> int:
        """Vectors of a block: the number that takes the fewest cycles."""
        config = self.config
        most = min(self.block.count, config.result_vregs, _SUMS,
                   config.tile_vregs + max(1, config.tile_vregs // 5))
        # Sums that stay in vector memory must not be added to twice: blocks must not overlap.
        sizes = [rows for rows in range(1, most + 1)
                 if not self.by_depth or self.block.count % rows == 0]
        return min(sizes, key=lambda rows: (self.blocks(rows) * self.step_cycles(rows), rows))

    def blocks(self, rows: int) -> int:
        """Number of blocks of so many vectors."""
        return -(-self.block.count // rows)

    def step_cycles(self, rows: int) -> int:
        """Cycles of a step with so many vectors of rows: those of the array or the vector unit."""
        pushed, weight, result = self.scheme.work
        work = pushed * rows + weight * self.config.tile_vregs + result * rows
        return max(rows * self.config.sublanes, self.config.array + 1, round(work * _PER_OPERATION))

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """All levels with more than one iteration, from the innermost, except passes and blocks."""
        return tuple(level for level in (*self.sums, *self.others) if level.count > 1)

    @cached_property
    def steps(self) -> int:
        """Number of steps."""
        count = self.scheme.passes * self.blocks(self.block_rows)
        for level in self.levels:
            count *= level.count
        return count

    @cached_property
    def adds(self) -> bool:
        """Whether a result is a sum of several steps."""
        return self.scheme.passes > 1 or any(level.count > 1 for level in self.sums)

    @property
    def in_place(self) -> bool:
        """Whether sums are added where they are stored, which leaves registers to the scheme."""
        many = self.scheme.passes > 1 or self.by_depth
        return self.adds and many and self.finish is None

    @cached_property
    def lag(self) -> int:
        """Steps from the rows to their results."""
        config, rows = self.config, self.block_rows
        # Results that are just ready make each step a little longer, and the end shorter.
        spare = 2 if self.steps > _FEW else -1
        latency = config.array_latency + spare * config.sublanes
        wanted = -(-latency // self.step_cycles(rows))
        return min(wanted, config.result_vregs // rows - 1, self.steps - 1)

    @property
    def cycles(self) -> int:
        """Estimated cycles, of all bundles, with operands in vector memory."""
        config, rows = self.config, self.block_rows
        first = config.array + 16
        drain = config.array_latency + 2 * config.sublanes
        steps = self.lag + (self.steps == self.lag + 1)
        last = steps * rows * config.sublanes
        return (first + self.steps * self.step_cycles(rows)
                + max(last, drain) + 24)
