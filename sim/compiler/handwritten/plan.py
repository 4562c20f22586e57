"""Planning: how the cores share a product, and how each cuts its rows into blocks.

Some ways to do it are tried, and the one with the least estimated cycles is taken.
"""

from dataclasses import dataclass

from hdl.config import Config

__all__ = ["Blocking", "Share", "Work", "ceil_div", "even"]

_BLOCK_TILES = (16, 8, 4, 2)
"""Most rows of a block, in tiles: large blocks use each weight tile longer, small ones start
earlier.
"""
_PASS_CYCLES = 100
"""About how many cycles a pass takes in addition to its rows."""


def ceil_div(value: int, step: int) -> int:
    """Divide, rounding up."""
    return -(-value // step)


def even(value: int) -> int:
    """Round up to an even number."""
    return value + value % 2


@dataclass(frozen=True)
class Share:
    """What one core computes.

    Attributes
    ----------
    core : int
        Number of the core.
    first_block, blocks : int
        First block of rows, and their number.
    first_column, columns : int
        First column tile, and their number.
    """

    core: int
    first_block: int
    blocks: int
    first_column: int
    columns: int


@dataclass(frozen=True)
class Blocking:
    """How rows are cut into blocks.

    Attributes
    ----------
    group_rows : int
        Vector registers of a block, an even number.
    slots : int
        Blocks of A that vector memory holds, one for each tile along the depth.
    kept : bool
        Blocks of A are read for the first column tile only, and stay in vector memory.
    """

    group_rows: int
    slots: int
    kept: bool


@dataclass(frozen=True)
class Work:
    """The sizes of a product that a plan depends on.

    Attributes
    ----------
    config : Config
        The chip.
    groups : int
        Vector registers of rows.
    depth_tiles, column_tiles : int
        Weight tiles along the depth and along the columns.
    fixed_vectors : int
        Vectors of vector memory that the program needs for any blocks.
    """

    config: Config
    groups: int
    depth_tiles: int
    column_tiles: int
    fixed_vectors: int

    def plan(self) -> tuple[Blocking, tuple[Share, ...]]:
        """Choose the best blocks and shares; a core without work has no share."""
        cores, columns = self.config.cores, self.column_tiles
        plans = []
        for split in ("columns", "rows"):
            groups = ceil_div(self.groups, cores if split == "rows" else 1)
            for tiles in _BLOCK_TILES:
                for kept in (True, False):
                    blocking = self._blocking(groups, tiles, kept)
                    if blocking is None:
                        continue
                    blocks = ceil_div(self.groups, blocking.group_rows)
                    if split == "rows":
                        parts = [(*part, 0, columns) for part in _split(blocks, cores)]
                    else:
                        parts = [(0, blocks, *part) for part in _split(columns, cores)]
                    shares = tuple(Share(core, *part) for core, part in enumerate(parts)
                                   if part[1] and part[3])
                    if kept and shares[0].columns == 1:
                        continue
                    cycles = max(self._cycles(blocking, share) for share in shares)
                    plans.append((cycles, blocking, shares))
        _, blocking, shares = min(plans, key=lambda plan: plan[0])
        return blocking, shares

    def _blocking(self, groups: int, tiles: int, kept: bool) -> Blocking | None:
        """Cut vector registers into blocks of at most ``tiles``; None if these do not fit."""
        # Sums have two buffers; A has two, or one for each tile of the depth.
        slots = max(2, self.depth_tiles) if kept else 2
        fit = (self.config.vmem_vectors - self.fixed_vectors) // (2 + slots) // 2 * 2
        most = min(even(tiles * self.config.tile_vregs), even(groups), fit)
        if most < 2:
            return None
        return Blocking(even(ceil_div(groups, ceil_div(groups, most))), slots, kept)

    def _cycles(self, blocking: Blocking, share: Share) -> int:
        """Estimate the cycles of a share: those of its passes or of its transfers."""
        tile = self.config.array
        rows = blocking.group_rows * self.config.sublanes
        results = share.blocks * share.columns
        passes = results * self.depth_tiles
        reads = share.blocks * self.depth_tiles if blocking.kept else passes
        # A pass takes as long as its rows, or as the next weights. A transfer moves a row a cycle.
        array = passes * (max(rows, tile) + _PASS_CYCLES)
        transfers = (reads + results) * rows + passes * tile
        # Nothing overlaps with the transfers of the first rows and of the last results.
        return max(array, transfers) + 2 * rows


def _split(count: int, parts: int) -> list[tuple[int, int]]:
    """Split evenly: first and number of each part; the first parts are the larger ones."""
    small, rest = divmod(count, parts)
    sizes = [small + (part < rest) for part in range(parts)]
    return [(sum(sizes[:part]), size) for part, size in enumerate(sizes)]
