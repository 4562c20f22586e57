"""Matrix products of any shape on a chip: how they are cut, shared and laid out in memory.

``C = A @ B`` in the array's order (docs/numerics.md, section 8): the depth is cut into tiles as
deep as the array, each tile's sum runs down the array's columns, and the tiles' results are added
in fp32, in order. What is missing to whole tiles is +0 in A and -0 in B, which changes no bit.

All three matrices lie in HBM as *panels*: tiles of ``lanes`` columns, all rows of a panel one after
the other, a row of a panel being one row of HBM. So a block of rows of a panel is one run of a
transfer, and the C of one product can be the A of the next.

An *epilogue* makes a dense layer of a product: a bias for each column is added to the complete
sums, in fp32, and ``fmax`` with +0.0 is the ReLU. It costs no cycles of the array, for the vector
unit does it while results come. `sim.compiler.chain` makes programs of such layers,
`sim.compiler.matmul_code` their code.

A core has a share of C: some of its column tiles or some of its blocks of rows. Its program makes
a tile of C (a block of rows by a column tile) after the other, each in as many *passes* as there
are tiles along the depth. During pass p

- its rows, in vector memory since pass p - 1, are pushed into the array,
- the results of the rows that are through are popped and added to the sums in vector memory,
- the weights of pass p + 1 are pushed behind those in use, and
- transfers bring the rows of pass p + 1 and the weights of pass p + 2, and take back the last tile.

Rows, weights and sums have two buffers each; or all of A's block is kept in vector memory, where it
fits and more than one column tile needs it. Which of that, how the cores share the work, and how
large blocks are is decided by an estimate of the cycles. The program's loops count passes, blocks
and tiles, so its length does not depend on the shape: it fits every preset's instruction memory.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hdl.checks import integer
from hdl.config import Config

__all__ = ["NEGATIVE_ZERO", "SMEM_WORDS", "TAIL_WORDS", "Matmul", "Places", "Shape", "Share",
           "ceil_div", "even"]

Float32 = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

_BLOCK_TILES = (16, 8, 4, 2)
"""Rows of a block, in tiles, at most: many of them for each weight tile, or an earlier start."""
_PASS_CYCLES = 100
"""About what a pass takes beside its rows."""
SMEM_WORDS = 64
"""Words of scalar memory that a program uses."""
_CODE = 192
_EPILOGUE_CODE = 32
"""Bundles that no program of a product exceeds, and as many more with an epilogue."""

NEGATIVE_ZERO = -0.0
"""What changes no sum; the padding of weights."""
_ALL_ONES = 0xFFFFFFFF
TAIL_WORDS = 2
"""Words of an epilogue's operands for a column tile: the bias, and which lanes are no padding."""


def ceil_div(value: int, step: int) -> int:
    """The steps that ``value`` takes."""
    return -(-value // step)


def even(value: int) -> int:
    """The even number at or above ``value``."""
    return value + value % 2


@dataclass(frozen=True)
class Share:
    """What a core computes.

    Attributes
    ----------
    core : int
    first_block, blocks : int
        Blocks of rows.
    first_column, columns : int
        Column tiles.
    """

    core: int
    first_block: int
    blocks: int
    first_column: int
    columns: int


@dataclass(frozen=True)
class Places:
    """Where the matrices of a product begin in HBM: byte addresses, multiples of a row's bytes.

    Attributes
    ----------
    a, b, c : int
    tail : int
        Operands of the epilogue, if there is one.
    """

    a: int
    b: int
    c: int
    tail: int = 0


@dataclass(frozen=True)
class Shape:
    """How rows are cut into blocks.

    Attributes
    ----------
    group_rows : int
        Vector registers of a block, an even number.
    slots : int
        Blocks of A, one for each tile along the depth, that vector memory holds.
    kept : bool
        They are read for the first column tile only.
    """

    group_rows: int
    slots: int
    kept: bool


@dataclass(frozen=True)
class Matmul:
    """The product of a matrix of (rows, depth) and one of (depth, columns) on a chip.

    Parameters
    ----------
    config : Config
        The chip.
    rows, depth, columns : int
        1 or more.
    transpose_b : bool
        B is given as (columns, depth); the array transposes it while it loads the weights.
    bias : bool
        Add a bias for each column to the complete sums.
    relu : bool
        Then take ``fmax`` with +0.0.
    zero_pads : bool
        Padding of C is +0.0, as that of an A must be.
    panel_rows : int
        Rows of a panel of A and C in HBM, if they are more than `padded_rows`; what is behind these
        is neither read nor written. 0: as many.

    Raises
    ------
    TypeError, ValueError
        If an argument is of another type, or not positive; if vector, scalar or instruction memory
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
        if not isinstance(self.config, Config):
            raise TypeError(f"config must be a Config, not {self.config!r}")
        for name in ("rows", "depth", "columns"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        for name in ("transpose_b", "bias", "relu", "zero_pads"):
            flag = getattr(self, name)
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {flag!r}")
        config = self.config
        least = self._fixed_words + 4 * 2
        for name, size, needed in (("vmem_vectors", config.vmem_vectors, least),
                                   ("smem_words", config.smem_words, SMEM_WORDS),
                                   ("imem_bundles", config.imem_bundles, self.most_bundles)):
            if size < needed:
                raise ValueError(f"{name} must be at least {needed} for a product, not {size!r}")
        object.__setattr__(self, "panel_rows", integer("panel_rows", self.panel_rows))
        if self.panel_rows and self.panel_rows < self.padded_rows:
            raise ValueError(f"panel_rows must be 0 or at least {self.padded_rows}, not "
                             f"{self.panel_rows!r}")

    # ---- How the product is cut

    @property
    def has_epilogue(self) -> bool:
        """Whether something is done with the complete sums."""
        return self.bias or self.relu or self.zero_pads

    @property
    def most_bundles(self) -> int:
        """Bundles that a program does not exceed."""
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
        return self.shape.group_rows * self.config.sublanes

    @property
    def padded_rows(self) -> int:
        """Rows of all blocks."""
        return self._blocks * self.block_rows

    @property
    def shape(self) -> Shape:
        """How the rows are cut into blocks."""
        return self._plan[0]

    @property
    def shares(self) -> tuple[Share, ...]:
        """What each core computes that has something to compute."""
        return self._plan[1]

    @property
    def array_rows(self) -> int:
        """Rows that enter all arrays: at least so many cycles, of all cores together."""
        return self.padded_rows * self.depth_tiles * self.column_tiles

    @property
    def _groups(self) -> int:
        return ceil_div(self.rows, self.config.sublanes)

    @property
    def _blocks(self) -> int:
        return ceil_div(self._groups, self.shape.group_rows)

    @property
    def _fixed_words(self) -> int:
        """Words of vector memory whose number does not depend on the block's rows."""
        return (1 + 2 * self.delay + 2 * self.config.tile_vregs
                + TAIL_WORDS * self.has_epilogue)

    @property
    def delay(self) -> int:
        """Steps from the pop of results to the store of their sums.

        So many words ahead of the sums are written, without meaning, by the first steps of a run.
        """
        return 3 if self.has_epilogue else 2

    def _blocks_of(self, groups: int, tiles: int, kept: bool) -> Shape | None:
        """Blocks of at most so many tiles, of that many vector registers of rows in all."""
        # Sums have two buffers; A has two, or one for each tile of the depth.
        slots = max(2, self.depth_tiles) if kept else 2
        fit = (self.config.vmem_vectors - self._fixed_words) // (2 + slots) // 2 * 2
        most = min(even(tiles * self.config.tile_vregs), even(groups), fit)
        if most < 2:
            return None
        return Shape(even(ceil_div(groups, ceil_div(groups, most))), slots, kept)

    def _cycles(self, shape: Shape, share: Share) -> int:
        """About how long a share takes: its passes, or its transfers, a row a cycle."""
        tile = self.config.array
        rows = shape.group_rows * self.config.sublanes
        results = share.blocks * share.columns
        passes = results * self.depth_tiles
        reads = share.blocks * self.depth_tiles if shape.kept else passes
        # A pass takes its rows' time, or that of the next weights.
        array = passes * (max(rows, tile) + _PASS_CYCLES)
        transfers = (reads + results) * rows + passes * tile
        # The first rows come and the last results go while nothing else happens.
        return max(array, transfers) + 2 * rows

    @cached_property
    def _plan(self) -> tuple[Shape, tuple[Share, ...]]:
        """The best of some ways to share the work and to cut it into blocks."""
        cores, columns = self.config.cores, self.column_tiles
        plans = []
        for split in ("columns", "rows"):
            groups = ceil_div(self._groups, cores if split == "rows" else 1)
            for tiles in _BLOCK_TILES:
                for kept in (True, False):
                    shape = self._blocks_of(groups, tiles, kept)
                    if shape is None:
                        continue
                    blocks = ceil_div(self._groups, shape.group_rows)
                    if split == "rows":
                        parts = [(*part, 0, columns) for part in _split(blocks, cores)]
                    else:
                        parts = [(0, blocks, *part) for part in _split(columns, cores)]
                    shares = tuple(Share(core, *part) for core, part in enumerate(parts)
                                   if part[1] and part[3])
                    if kept and shares[0].columns == 1:
                        continue
                    cycles = max(self._cycles(shape, share) for share in shares)
                    plans.append((cycles, shape, shares))
        _, shape, shares = min(plans, key=lambda plan: plan[0])
        return shape, shares

    # ---- The matrices in HBM

    @property
    def a_shape(self) -> tuple[int, int, int]:
        """Panels, rows of each, and lanes of A in HBM."""
        return self.depth_tiles, self.panel_rows or self.padded_rows, self.config.lanes

    @property
    def b_shape(self) -> tuple[int, int, int]:
        """The same for B, as it is given."""
        high, wide = self.depth_tiles, self.column_tiles
        if self.transpose_b:
            high, wide = wide, high
        return wide, high * self.config.array, self.config.lanes

    @property
    def c_shape(self) -> tuple[int, int, int]:
        """The same for C."""
        return self.column_tiles, self.panel_rows or self.padded_rows, self.config.lanes

    @property
    def tail_shape(self) -> tuple[int, int, int]:
        """Column tiles, rows for each, and lanes of the epilogue's operands in HBM."""
        rows = TAIL_WORDS * self.config.sublanes if self.has_epilogue else 0
        return self.column_tiles, rows, self.config.lanes

    def put_a(self, a: Float32, memory: Words) -> None:
        """Writes A, shape (rows, depth), and its padding to its place in HBM.

        Parameters
        ----------
        a : array of float32
        memory : array of uint32
            As many words as `a_shape` has, contiguous.
        """
        _put_panels(a, memory, self.a_shape, 0.0)

    def put_b(self, b: Float32, memory: Words) -> None:
        """The same for B, shape (depth, columns), or (columns, depth) if ``transpose_b``."""
        _put_panels(b, memory, self.b_shape, NEGATIVE_ZERO)

    def put_tail(self, bias: Float32 | None, memory: Words) -> None:
        """Writes the epilogue's operands to their place in HBM.

        Parameters
        ----------
        bias : array of float32, shape (columns,), or None
            If there is none: -0.0, which changes no bit.
        memory : array of uint32
            As many words as `tail_shape` has, contiguous.
        """
        panels, _, lanes = self.tail_shape
        width = panels * lanes
        values = np.full(width, 0.0, np.float32)
        values[:self.columns] = NEGATIVE_ZERO if bias is None else bias
        keep = np.full(width, _ALL_ONES, np.uint32)
        if self.zero_pads:
            keep[self.columns:] = 0
        words = np.stack([values.view(np.uint32), keep])
        places = memory.reshape(panels, TAIL_WORDS, self.config.sublanes, lanes)
        places[:] = words.reshape(TAIL_WORDS, panels, 1, lanes).swapaxes(0, 1)

    def get_c(self, memory: Words) -> Float32:
        """C, shape (rows, columns), from its place in HBM."""
        panels, rows, lanes = self.c_shape
        wide = memory.reshape(panels, rows, lanes)[:, :self.rows].swapaxes(0, 1)
        return np.ascontiguousarray(
            wide.reshape(self.rows, panels * lanes)[:, :self.columns]).view(np.float32)


def _split(count: int, parts: int) -> list[tuple[int, int]]:
    """First and number of each part of so many things; the first parts are the larger ones."""
    small, rest = divmod(count, parts)
    sizes = [small + (part < rest) for part in range(parts)]
    return [(sum(sizes[:part]), size) for part, size in enumerate(sizes)]


def _put_panels(matrix: Float32, memory: Words, shape: tuple[int, int, int],
                padding: float) -> None:
    places = memory.reshape(shape).view(np.float32)
    high, lanes = matrix.shape[0], shape[2]
    places[:, high:] = padding
    for number, panel in enumerate(places):
        part = matrix[:, number * lanes:(number + 1) * lanes]
        panel[:high, :part.shape[1]] = part
        panel[:high, part.shape[1]:] = padding
