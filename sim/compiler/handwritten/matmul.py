"""Matrix products of any shape: how they are cut into tiles, and where their matrices lie in HBM.

``C = A @ B`` in the array's order (docs/numerics.md, section 8): the depth is cut into tiles as
deep as the array, each tile's sum runs down the array's columns, and the tiles' results are added
in fp32, in order. A is padded to whole tiles with +0 and B with -0, which changes no bit.

All three matrices lie in HBM as *panels* (`sim.compiler.layout`): a block of rows of a panel is one
run of a transfer, and the C of one product can be the A of the next.

An *epilogue* turns a product into a dense layer: a bias for each column is added to the complete
sums, in fp32, and ``fmax`` with +0.0 is the ReLU. It costs the array no cycles, because the vector
unit computes it while results arrive.

Each core computes a share of C (`sim.compiler.handwritten.plan`): some of its column tiles or some
of its blocks of rows. Its program makes one tile of C (a block of rows by a column tile) after the
other, each in as many *passes* as there are tiles along the depth. During pass p

- its rows, in vector memory since pass p - 1, are pushed into the array,
- results that are ready are popped and added to the sums in vector memory,
- the weights of pass p + 1 are pushed behind those in use, and
- transfers fetch the rows of pass p + 1 and the weights of pass p + 2, and write back the last tile
  of C.

Rows, weights and sums have two buffers each; or all of A's block stays in vector memory, where it
fits and more than one column tile needs it. The program's loops count passes, blocks and tiles, so
its length does not depend on the shape: it fits in every preset's instruction memory.
`sim.compiler.handwritten.writer` writes it, and `sim.compiler.handwritten.chain` links the programs
of products.
"""

from dataclasses import dataclass
from functools import cached_property

from hdl.checks import instance, integer
from hdl.config import Config
from sim.compiler.handwritten.plan import Blocking, Share, Work, ceil_div
from sim.compiler.layout import NEGATIVE_ZERO, TAIL_VECTORS, ColumnOperands, Panels

__all__ = ["SMEM_WORDS", "Matmul"]

SMEM_WORDS = 64
"""Words of scalar memory that a program uses."""
_CODE = 192
_EPILOGUE_CODE = 32
"""Most bundles of a product's program, and how many more with an epilogue."""


@dataclass(frozen=True)
class Matmul:
    """The product of a matrix of (rows, depth) and one of (depth, columns) on a chip.

    Parameters
    ----------
    config : Config
        The chip.
    rows, depth, columns : int
        Sizes, 1 or more.
    transpose_b : bool
        B is given as (columns, depth); the array transposes it while it loads the weights.
    bias : bool
        Add a bias for each column to the complete sums.
    relu : bool
        Then take ``fmax`` with +0.0.
    zero_pads : bool
        Fill the padding of C with +0.0, so that C can be the A of another product.
    panel_rows : int
        Rows of a panel of A and C in HBM; `padded_rows` if 0. Rows beyond `padded_rows` are neither
        read nor written.

    Raises
    ------
    TypeError, ValueError
        If an argument has another type, or is not positive; if vector, scalar or instruction memory
        is too small for any product.
    """

    config: Config
    rows: int
    depth: int
    columns: int
    transpose_b: bool = False
    bias: bool = False
    relu: bool = False
    zero_pads: bool = False
    panel_rows: int = 0

    def __post_init__(self) -> None:
        instance("config", self.config, Config)
        for name in ("rows", "depth", "columns"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        for name in ("transpose_b", "bias", "relu", "zero_pads"):
            flag = getattr(self, name)
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {flag!r}")
        config = self.config
        least = self._fixed_vectors + 4 * 2
        for name, size, needed in (("vmem_vectors", config.vmem_vectors, least),
                                   ("smem_words", config.smem_words, SMEM_WORDS),
                                   ("imem_bundles", config.imem_bundles, self.most_bundles)):
            if size < needed:
                raise ValueError(f"{name} must be at least {needed} for a product, not {size!r}")
        object.__setattr__(self, "panel_rows", integer("panel_rows", self.panel_rows))
        if self.panel_rows and self.panel_rows < self.padded_rows:
            raise ValueError(f"panel_rows must be 0 or at least {self.padded_rows}, not "
                             f"{self.panel_rows!r}")

    @property
    def has_epilogue(self) -> bool:
        """Whether the complete sums go through an epilogue."""
        return self.bias or self.relu or self.zero_pads

    @property
    def most_bundles(self) -> int:
        """Most bundles of a core's program."""
        return _CODE + _EPILOGUE_CODE * self.has_epilogue

    @property
    def depth_tiles(self) -> int:
        """Weight tiles along the depth: passes for each tile of C."""
        return ceil_div(self.depth, self.config.array)

    @property
    def column_tiles(self) -> int:
        """Column tiles of C."""
        return ceil_div(self.columns, self.config.array)

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self.blocking.group_rows * self.config.sublanes

    @property
    def padded_rows(self) -> int:
        """Rows of all blocks."""
        return self._blocks * self.block_rows

    @property
    def blocking(self) -> Blocking:
        """How the rows are cut into blocks."""
        return self._plan[0]

    @property
    def shares(self) -> tuple[Share, ...]:
        """What each core computes; a core without work has no share."""
        return self._plan[1]

    @property
    def array_rows(self) -> int:
        """Rows that all cores push into their arrays; each takes a cycle of its array."""
        return self.padded_rows * self.depth_tiles * self.column_tiles

    @property
    def _groups(self) -> int:
        return ceil_div(self.rows, self.config.sublanes)

    @property
    def _blocks(self) -> int:
        return ceil_div(self._groups, self.blocking.group_rows)

    @property
    def _fixed_vectors(self) -> int:
        """Vectors of vector memory whose number does not depend on the block's rows."""
        return (1 + 2 * self.delay + 2 * self.config.tile_vregs
                + TAIL_VECTORS * self.has_epilogue)

    @property
    def delay(self) -> int:
        """Steps from the pop of results to the store of their sums.

        The first steps of a program store meaningless data in as many vectors ahead of the sums.
        """
        return 3 if self.has_epilogue else 2

    @cached_property
    def _plan(self) -> tuple[Blocking, tuple[Share, ...]]:
        return Work(self.config, self._groups, self.depth_tiles, self.column_tiles,
                    self._fixed_vectors).plan()

    @property
    def a_layout(self) -> Panels:
        """A in HBM."""
        panel_rows = self.panel_rows or self.padded_rows
        return Panels((self.rows, self.depth), (self.depth_tiles, panel_rows, self.config.lanes),
                      0.0)

    @property
    def b_layout(self) -> Panels:
        """B in HBM, as it is given."""
        shape, high, wide = (self.depth, self.columns), self.depth_tiles, self.column_tiles
        if self.transpose_b:
            shape, high, wide = (self.columns, self.depth), wide, high
        return Panels(shape, (wide, high * self.config.array, self.config.lanes), NEGATIVE_ZERO)

    @property
    def c_layout(self) -> Panels:
        """C in HBM."""
        panel_rows = self.panel_rows or self.padded_rows
        return Panels((self.rows, self.columns),
                      (self.column_tiles, panel_rows, self.config.lanes), 0.0)

    @property
    def tail_layout(self) -> ColumnOperands:
        """The epilogue's operands in HBM."""
        return ColumnOperands(self.columns, self.column_tiles, self.config.sublanes,
                              self.config.lanes, self.zero_pads)
