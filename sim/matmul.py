"""Matrix products of any shape, and chains of them, as programs for the cores of a chip.

``C = A @ B`` in the array's order (docs/numerics.md, section 8): the depth is cut into tiles as
deep as the array, each tile's sum runs down the array's columns, and the tiles' results are added
in fp32, in order. What is missing to whole tiles is +0 in A and -0 in B, which changes no bit.

All three matrices lie in HBM as *panels*: tiles of ``lanes`` columns, all rows of a panel one after
the other, a row of a panel being one row of HBM. So a block of rows of a panel is one run of a
transfer, and the C of one product can be the A of the next.

An *epilogue* makes a dense layer of a product: a bias for each column is added to the complete
sums, in fp32, and ``fmax`` with +0.0 is the ReLU. It costs no cycles of the array, for the vector
unit does it while results come. A `Chain` is a program of such layers.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.isa import DESCRIPTOR_WORDS
from sim.assembler import Assembler, Program, s, sem, v
from sim.descriptor import descriptor, hbm, vmem

__all__ = ["Chain", "Matmul", "Places", "Share"]

Float32 = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]

_BLOCK_TILES = (16, 8, 4, 2)
"""Rows of a block, in tiles, at most: many of them for each weight tile, or an earlier start."""
_PASS_CYCLES = 100
"""About what a pass takes beside its rows."""
_CODE = 192
_EPILOGUE_CODE = 32
"""Bundles that no program of a product exceeds, and as many more with an epilogue."""

_NEGATIVE_ZERO = -0.0
_ALL_ONES = 0xFFFFFFFF
_LEAST = float("-inf")
"""What changes no number by `fmax`."""
_TAIL_WORDS = 2
"""Words of an epilogue's operands for a column tile: the bias, and which lanes are no padding."""
_SIGNAL = 1 << 12
"""The descriptor's bit that makes a transfer add to its semaphore."""

# Semaphores: loads of passes that are complete; buffers of sums that are free; the other core has
# made its part of a layer.
_LOADED, _FREE, _LAYER = sem[0], sem[1], sem[2]

# Scalar memory: descriptors of the transfers of A, B, C and of an epilogue's operands.
_A_TRANSFER, _B_TRANSFER, _C_TRANSFER, _TAIL_TRANSFER, _SMEM_WORDS = 0, 16, 32, 48, 64
_SOURCE, _DESTINATION = 2, 6

# Scalar registers: next words to be pushed, added up and stored; of which sums, and how many steps.
_ROW, _WEIGHT, _IN, _STEP, _OUT, _COUNT, _RETURN = (s[number] for number in range(1, 8))
# Passes left, and the buffers that they use.
_PASSES, _ROWS_AT, _WEIGHTS_AT, _SUMS_AT = (s[number] for number in range(8, 12))
# Transfers of A and B: passes, depths and columns left; buffers; rows of HBM; A's word 0.
_LOADS, _LOAD_DEPTH, _LOAD_COLUMNS, _ROWS_TO, _WEIGHTS_TO = (s[number] for number in range(12, 17))
_A_ROW, _A_BLOCK, _B_ROW, _A_WORD = (s[number] for number in range(17, 21))
# Transfers of C: depths and columns left, rows of HBM.
_DEPTH, _COLUMNS, _C_ROW, _C_BLOCK = (s[number] for number in range(21, 25))
# Sums of the addresses of two buffers: the difference to one is the other.
_BOTH_ROWS, _BOTH_WEIGHTS, _BOTH_SUMS = (s[number] for number in range(25, 28))
_LOW, _HIGH = s[28], s[29]
# Transfers of an epilogue's operands: row of HBM.
_TAIL_ROW = s[30]

# Vector registers, in pairs for even and odd steps.
_ROWS, _WEIGHTS, _RESULT, _SUM = ((v[1 + 2 * kind], v[2 + 2 * kind]) for kind in range(4))
_TOTAL = v[9]
# Of the epilogue: operands of this pass, and of the tile; what bias and ReLU made.
_BIAS, _FLOOR, _KEEP, _TILE_BIAS, _TILE_KEEP = (v[number] for number in range(10, 15))
_BIASED, _RECTIFIED, _FINAL = v[15], v[16], v[17]


def _ceil(value: int, step: int) -> int:
    """The steps that ``value`` takes."""
    return -(-value // step)


def _even(value: int) -> int:
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
class _Shape:
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
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an integer, not {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        for name in ("transpose_b", "bias", "relu", "zero_pads"):
            flag = getattr(self, name)
            if not isinstance(flag, bool):
                raise TypeError(f"{name} must be True or False, not {flag!r}")
        config = self.config
        least = self._fixed_words + 4 * 2
        for name, size, needed in (("vmem_words", config.vmem_words, least),
                                   ("smem_words", config.smem_words, _SMEM_WORDS),
                                   ("imem_bundles", config.imem_bundles, self.most_bundles)):
            if size < needed:
                raise ValueError(f"{name} must be at least {needed} for a product, not {size!r}")
        if not isinstance(self.panel_rows, int) or isinstance(self.panel_rows, bool):
            raise TypeError(f"panel_rows must be an integer, not {self.panel_rows!r}")
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
        return _ceil(self.depth, self.config.array)

    @property
    def column_tiles(self) -> int:
        """Column tiles of C."""
        return _ceil(self.columns, self.config.array)

    @property
    def block_rows(self) -> int:
        """Rows of a block."""
        return self._plan[0].group_rows * self.config.sublanes

    @property
    def padded_rows(self) -> int:
        """Rows of all blocks."""
        return self._blocks * self.block_rows

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
        return _ceil(self.rows, self.config.sublanes)

    @property
    def _blocks(self) -> int:
        return _ceil(self._groups, self._plan[0].group_rows)

    @property
    def _fixed_words(self) -> int:
        """Words of vector memory whose number does not depend on the block's rows."""
        return (1 + 2 * self._delay + 2 * self.config.tile_vregs
                + _TAIL_WORDS * self.has_epilogue)

    @property
    def _delay(self) -> int:
        """Steps from the pop of results to the store of their sums.

        So many words ahead of the sums are written, without meaning, by the first steps of a run.
        """
        return 3 if self.has_epilogue else 2

    def _shape(self, groups: int, tiles: int, kept: bool) -> _Shape | None:
        """Blocks of at most so many tiles, of that many vector registers of rows in all."""
        # Sums have two buffers; A has two, or one for each tile of the depth.
        slots = max(2, self.depth_tiles) if kept else 2
        fit = (self.config.vmem_words - self._fixed_words) // (2 + slots) // 2 * 2
        most = min(_even(tiles * self.config.tile_vregs), _even(groups), fit)
        if most < 2:
            return None
        return _Shape(_even(_ceil(groups, _ceil(groups, most))), slots, kept)

    def _cycles(self, shape: _Shape, share: Share) -> int:
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
    def _plan(self) -> tuple[_Shape, tuple[Share, ...]]:
        """The best of some ways to share the work and to cut it into blocks."""
        cores, columns = self.config.cores, self.column_tiles
        plans = []
        for split in ("columns", "rows"):
            groups = _ceil(self._groups, cores if split == "rows" else 1)
            for tiles in _BLOCK_TILES:
                for kept in (True, False):
                    shape = self._shape(groups, tiles, kept)
                    if shape is None:
                        continue
                    blocks = _ceil(self._groups, shape.group_rows)
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
        rows = _TAIL_WORDS * self.config.sublanes if self.has_epilogue else 0
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
        _put_panels(b, memory, self.b_shape, _NEGATIVE_ZERO)

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
        values[:self.columns] = _NEGATIVE_ZERO if bias is None else bias
        keep = np.full(width, _ALL_ONES, np.uint32)
        if self.zero_pads:
            keep[self.columns:] = 0
        words = np.stack([values.view(np.uint32), keep])
        places = memory.reshape(panels, _TAIL_WORDS, self.config.sublanes, lanes)
        places[:] = words.reshape(_TAIL_WORDS, panels, 1, lanes).swapaxes(0, 1)

    def get_c(self, memory: Words) -> Float32:
        """C, shape (rows, columns), from its place in HBM."""
        panels, rows, lanes = self.c_shape
        wide = memory.reshape(panels, rows, lanes)[:, :self.rows].swapaxes(0, 1)
        return np.ascontiguousarray(
            wide.reshape(self.rows, panels * lanes)[:, :self.columns]).view(np.float32)


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
class Chain:
    """Products one after the other: the C of each is the A of the next. One program for each core.

    Parameters
    ----------
    jobs : tuple of Matmul
        One or more. All but the last leave zeros as padding, and all have panels of as many rows;
        `link` makes them so.

    Raises
    ------
    TypeError, ValueError
        If there is none, or one does not fit the one before; if the programs may not fit
        instruction memory.
    """

    jobs: tuple[Matmul, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, tuple) or not all(isinstance(j, Matmul) for j in self.jobs):
            raise TypeError(f"jobs must be a tuple of Matmul, not {self.jobs!r}")
        if not self.jobs:
            raise ValueError("jobs must be one or more, not ()")
        for number, (job, after) in enumerate(zip(self.jobs, self.jobs[1:], strict=False)):
            if (job.config, job.c_shape, job.columns) != (after.config, after.a_shape, after.depth):
                raise ValueError(f"jobs[{number + 1}] must take what jobs[{number}] makes, but is "
                                 f"{after!r} behind {job!r}")
            if job.columns % self.config.array and not job.zero_pads:
                raise ValueError(f"jobs[{number}] must have zero_pads: {job.columns} columns are "
                                 f"no multiple of {self.config.array}")
        needed = sum(job.most_bundles for job in self.jobs)
        if needed > self.config.imem_bundles:
            raise ValueError(f"jobs must fit {self.config.imem_bundles} bundles, not "
                             f"{len(self.jobs)} of up to {needed} together")

    @classmethod
    def link(cls, *jobs: Matmul) -> "Chain":
        """A chain of products whose sizes fit, with zeros and rows as it needs them."""
        rows = max((job.padded_rows for job in jobs), default=0)
        # Whatever has an epilogue may be cut in another way than before.
        linked = [replace(job, zero_pads=job.zero_pads or bool(job.columns % job.config.array))
                  for job in jobs[:-1]] + list(jobs[-1:])
        rows = max((job.padded_rows for job in linked), default=0)
        if len(linked) > 1:
            linked = [replace(job, panel_rows=rows) for job in linked]
        return cls(tuple(linked))

    @property
    def config(self) -> Config:
        """The chip."""
        return self.jobs[0].config

    @property
    def array_rows(self) -> int:
        """Rows that enter all arrays: at least so many cycles, of all cores together."""
        return sum(job.array_rows for job in self.jobs)

    def programs(self, places: Sequence[Places]) -> dict[int, Program]:
        """The cores' programs, by core; without cores that have nothing to do.

        Where another core has a part of a layer, the next one begins when both are done. For that
        semaphore 2 of each core must be 0 at first, and is 0 afterwards; others may be anything.

        Parameters
        ----------
        places : sequence of Places
            Of each product.

        Raises
        ------
        ValueError
            If there are more or fewer than products, an address is no multiple, or a matrix does
            not lie in HBM.
        """
        if len(places) != len(self.jobs):
            raise ValueError(f"places must be {len(self.jobs)}, not {len(places)}")
        for job, place in zip(self.jobs, places, strict=True):
            _check_places(job, place)
        cores = sorted({share.core for job in self.jobs for share in job.shares})
        return {core: self._program(core, places, together=len(cores) > 1) for core in cores}

    def _program(self, core: int, places: Sequence[Places], *, together: bool) -> Program:
        asm = Assembler(self.config)
        for number, (job, place) in enumerate(zip(self.jobs, places, strict=True)):
            share = next((share for share in job.shares if share.core == core), None)
            if share is not None:
                _Writer(job, share, place, asm, f"layer{number}_" if number else "").write()
            if together and number + 1 < len(self.jobs):
                with asm.bundle() as bundle:
                    bundle.misc.signal_other(_LAYER, 1)
                with asm.bundle() as bundle:
                    bundle.misc.wait(_LAYER, 1)
        with asm.bundle() as bundle:
            bundle.s1.halt()
        return asm.assemble()


def _check_places(job: Matmul, places: Places) -> None:
    row_bytes = job.config.row_bytes
    for name, shape in (("a", job.a_shape), ("b", job.b_shape), ("c", job.c_shape),
                        ("tail", job.tail_shape)):
        address, rows = getattr(places, name), shape[0] * shape[1]
        if address % row_bytes:
            raise ValueError(f"{name} must be a multiple of a row's {row_bytes} bytes, "
                             f"not {address!r}")
        if not 0 <= address <= job.config.hbm_bytes - rows * row_bytes:
            raise ValueError(f"{name} must lie within {job.config.hbm_bytes} bytes of HBM, "
                             f"not {rows * row_bytes} bytes from {address!r} on")


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


class _Writer:
    """Writes the code of a share to a program; `Chain` ends it.

    A *step* pushes a vector register of rows, or pops one of results, or both: then the result is
    ``lag`` steps behind, so that it is there. A step also adds the result popped in the step before
    to its sum, and stores the total of the one before that. Steps come in pairs, whose registers
    alternate. An epilogue works on the totals of the two steps before that; where a pass is not the
    last of its tile, with operands that change nothing. So a pass is

    - ``lag`` steps that push its rows and pop the last results of the pass before,
    - the change to its own sums, and, after a tile of C, the start of its transfer,
    - the rest of its steps, with its own results.
    """

    def __init__(self, job: Matmul, share: Share, places: Places, asm: Assembler,
                 prefix: str) -> None:
        config = job.config
        shape, _ = job._plan
        self._job, self._share, self._config = job, share, config
        self._asm = asm
        self._prefix = prefix
        self._labels = 0
        self._epilogue = job.has_epilogue
        self._delay = job._delay
        self._floor = 0.0 if job.relu else _LEAST
        self._tile = config.tile_vregs
        self._groups = shape.group_rows
        self._slots = shape.slots
        self._kept = shape.kept and share.columns > 1
        self._passes = share.blocks * share.columns * job.depth_tiles
        # Results lag as far behind as the array needs at full rate, if it can hold so many.
        wanted = _even(_ceil(config.array_latency + 2 * config.sublanes + 8, config.sublanes))
        holds = (config.result_vregs - 1) // 2 * 2
        self._lag = max(2, min(wanted, holds, self._groups))
        # Pairs of weights pushed between rows: behind the swap, and before the results change.
        self._between = min(self._tile // 2, self._lag // 2 - 1)

        self._zero = 0
        self._sums = [1 + self._delay, 1 + 2 * self._delay + self._groups]
        self._rows = self._sums[1] + self._groups
        self._weights = self._rows + self._slots * self._groups
        self._tail = self._weights + 2 * self._tile

        # Rows of HBM: where the share begins, and how far the next one is.
        a_row, b_row, c_row, tail_row = (
            address // config.row_bytes for address in (places.a, places.b, places.c, places.tail))
        block = self._groups * config.sublanes
        self._block = block
        self._panel = job.a_shape[1]
        self._a_first = a_row + share.first_block * block
        self._c_first = c_row + share.first_block * block + share.first_column * self._panel
        along, across = config.array, config.array * job.depth_tiles
        if job.transpose_b:
            along, across = config.array * job.column_tiles, config.array
        self._b_first = b_row + share.first_column * across
        self._b_deeper = along
        self._b_across = across - (job.depth_tiles - 1) * along
        self._tail_first = tail_row + share.first_column * job.tail_shape[1]

    def write(self) -> None:
        self._begin()
        self._first_pass()
        self._jump("own")
        self._label("next_pass")
        self._other_pass()
        self._label("own")
        self._own_results()
        self._bundle(("s1", "loop", _PASSES, "next_pass"))
        self._end()
        self._label("load")
        self._load()
        self._label("end")

    # ---- Bundles

    def _bundle(self, *operations: tuple[Any, ...]) -> None:
        """A bundle of operations: slot, name, operands; strings among these are labels."""
        with self._asm.bundle() as bundle:
            for slot, name, *operands in operations:
                bundle.operation(slot, name, *(
                    self._prefix + operand if isinstance(operand, str) else operand
                    for operand in operands))

    def _label(self, name: str) -> None:
        self._asm.label(self._prefix + name)

    def _set(self, *values: tuple[Any, Any]) -> None:
        """Sets scalar registers to numbers or other registers, two in a bundle."""
        for first in range(0, len(values), 2):
            self._bundle(*(
                (slot, "add", register, s[0], value)
                for slot, (register, value) in zip(("s0", "s1"), values[first:first + 2],
                                                   strict=False)))

    def _jump(self, label: str) -> None:
        self._bundle(("s1", "jump", label))

    def _name(self, prefix: str) -> str:
        self._labels += 1
        return f"{prefix}_{self._labels}"

    def _repeat(self, times: int | None, body: list[list[tuple[Any, ...]]]) -> None:
        """Bundles so many times, by `_COUNT`; None: it is set. The last one has room in s1."""
        if times == 0:
            return
        label = self._name("loop")
        if times != 1:
            if times is not None:
                self._set((_COUNT, times))
            self._label(label)
            body[-1].append(("s1", "loop", _COUNT, label))
        for bundle in body:
            if bundle:
                self._bundle(*bundle)

    # ---- Transfers

    def _address(self, register: Any, place: int) -> None:
        """Stores the byte address of a row of HBM at a place in scalar memory."""
        shift = self._config.row_bytes.bit_length() - 1
        self._bundle(("s0", "shl", _LOW, register, shift),
                     ("s1", "shr", _HIGH, register, 32 - shift))
        self._bundle(("s0", "store", _LOW, s[0], place))
        self._bundle(("s0", "store", _HIGH, s[0], place + 1))

    def _begin(self) -> None:
        """Descriptors, semaphores and registers as they are at first."""
        job, share, config = self._job, self._share, self._config
        self._set((_COUNT, _SMEM_WORDS))
        self._repeat(None, [[("s0", "store", s[0], _COUNT, -1)]])
        for semaphore in (_LOADED, _FREE):
            self._bundle(("misc", "read_semaphore", _LOW, semaphore))
            self._bundle(("misc", "wait", semaphore, _LOW))
        # While the first tile's sums are made, the other buffer is free.
        self._bundle(("misc", "signal", _FREE, 1), ("v0", "move", _TOTAL, _NEGATIVE_ZERO))
        self._bundle(("st", "store", _TOTAL, s[0], self._zero))

        # The words of each descriptor that stay are those of its first use, without the addresses.
        tile_rows = self._tile * config.sublanes
        transfers = {
            _A_TRANSFER: descriptor(config, hbm(0), vmem(self._rows), rows=self._block),
            _B_TRANSFER: descriptor(config, hbm(0), vmem(self._weights), rows=tile_rows,
                                    semaphore=_LOADED),
            _C_TRANSFER: descriptor(config, vmem(self._sums[0]), hbm(0), rows=self._block,
                                    semaphore=_FREE)}
        if self._epilogue:
            transfers[_TAIL_TRANSFER] = descriptor(
                config, hbm(0), vmem(self._tail), rows=_TAIL_WORDS * config.sublanes)
            self._set((_TAIL_ROW, self._tail_first))
            self._bundle(("v0", "move", _FLOOR, self._floor))
        for place, words in transfers.items():
            assert len(words) == DESCRIPTOR_WORDS
            for number in (0, 1):
                self._set((_LOW, words[number]))
                self._bundle(("s0", "store", _LOW, s[0], place + number))
        if self._epilogue:
            self._set((_LOW, self._tail))
            self._bundle(("s0", "store", _LOW, s[0], _TAIL_TRANSFER + _DESTINATION))
        self._set(
            (_A_WORD, transfers[_A_TRANSFER][0]), (_PASSES, self._passes),
            (_ROWS_AT, self._rows), (_ROWS_TO, self._rows),
            (_WEIGHTS_AT, self._weights), (_WEIGHTS_TO, self._weights),
            (_SUMS_AT, self._sums[0]), (_BOTH_SUMS, sum(self._sums)),
            (_BOTH_ROWS, 2 * self._rows + self._groups),
            (_BOTH_WEIGHTS, 2 * self._weights + self._tile),
            (_LOADS, self._passes), (_LOAD_DEPTH, job.depth_tiles),
            (_LOAD_COLUMNS, share.columns), (_A_ROW, self._a_first),
            (_A_BLOCK, self._a_first), (_B_ROW, self._b_first),
            (_DEPTH, job.depth_tiles), (_COLUMNS, share.columns),
            (_C_ROW, self._c_first), (_C_BLOCK, self._c_first))
        self._bundle(("s1", "call", _RETURN, "load_weights"))
        self._bundle(("s1", "call", _RETURN, "load"))

    def _load(self) -> None:
        """Subroutines: the transfers for a pass, its rows and the next one's weights.

        Transfers complete in order, so that only the last of them says that all are.
        """
        job, share = self._job, self._share
        if self._epilogue:
            self._bundle(("s1", "bne", _LOAD_DEPTH, 1, "tail_loaded"))
            self._address(_TAIL_ROW, _TAIL_TRANSFER + _SOURCE)
            self._bundle(("misc", "dma", _TAIL_TRANSFER),
                         ("s0", "add", _TAIL_ROW, _TAIL_ROW, job.tail_shape[1]))
            self._label("tail_loaded")
        self._bundle(("s1", "bne", _LOADS, 1, "load_rows"))
        self._bundle(("s0", "add", _A_WORD, _A_WORD, _SIGNAL))      # no weights will follow
        self._label("load_rows")
        if self._kept:
            self._bundle(("s1", "bne", _LOAD_COLUMNS, share.columns, "rows_kept"))
        self._address(_A_ROW, _A_TRANSFER + _SOURCE)
        self._bundle(("s0", "store", _A_WORD, s[0], _A_TRANSFER))
        self._bundle(("s0", "store", _ROWS_TO, s[0], _A_TRANSFER + _DESTINATION))
        self._bundle(("misc", "dma", _A_TRANSFER), ("s0", "add", _A_ROW, _A_ROW, self._panel))
        self._next_slot(_ROWS_TO)
        if self._kept:
            self._jump("next_load")
            self._label("rows_kept")
            # The rows are there; if nothing else is needed, neither are transfers.
            self._bundle(("s1", "bne", _LOADS, 1, "next_load"))
            if self._epilogue:
                # Its operands are: they come once more, for the signal.
                self._bundle(("s0", "load", _LOW, s[0], _TAIL_TRANSFER))
                self._bundle(("s0", "add", _LOW, _LOW, _SIGNAL))
                self._bundle(("s0", "store", _LOW, s[0], _TAIL_TRANSFER))
                self._bundle(("misc", "dma", _TAIL_TRANSFER))
            else:
                self._bundle(("misc", "signal", _LOADED, 1))
        self._label("next_load")
        self._bundle(("s0", "add", _LOADS, _LOADS, -1), ("s1", "bne", _LOADS, 1, "weights"))
        self._bundle(("s1", "jump", _RETURN))
        self._label("weights")
        self._bundle(("s1", "loop", _LOAD_DEPTH, "deeper"))
        self._bundle(("s0", "add", _LOAD_DEPTH, s[0], job.depth_tiles))
        self._bundle(("s0", "add", _A_ROW, _A_BLOCK, 0), ("s1", "loop", _LOAD_COLUMNS, "across"))
        self._set((_LOAD_COLUMNS, share.columns), (_B_ROW, self._b_first))
        if self._epilogue:
            self._set((_TAIL_ROW, self._tail_first))
        self._bundle(("s0", "add", _A_BLOCK, _A_BLOCK, self._block),
                     ("s1", "add", _A_ROW, _A_BLOCK, self._block))
        self._jump("load_weights")
        self._label("across")
        self._bundle(("s0", "add", _B_ROW, _B_ROW, self._b_across), ("s1", "jump", "load_weights"))
        self._label("deeper")
        self._bundle(("s0", "add", _B_ROW, _B_ROW, self._b_deeper))
        self._label("load_weights")
        self._address(_B_ROW, _B_TRANSFER + _SOURCE)
        self._bundle(("s0", "store", _WEIGHTS_TO, s[0], _B_TRANSFER + _DESTINATION))
        self._bundle(("misc", "dma", _B_TRANSFER), ("s1", "jump", _RETURN),
                     ("s0", "sub", _WEIGHTS_TO, _BOTH_WEIGHTS, _WEIGHTS_TO))

    def _next_slot(self, register: Any) -> None:
        """Moves on to the next place for rows of A."""
        if self._slots == 2:
            self._bundle(("s0", "sub", register, _BOTH_ROWS, register))
            return
        behind = self._rows + self._slots * self._groups
        label = self._name("slot")
        self._bundle(("s0", "add", register, register, self._groups),
                     ("s1", "bne", register, behind - self._groups, label))
        self._set((register, self._rows))
        self._label(label)

    # ---- Passes

    def _first_pass(self) -> None:
        """All weights of the first pass, then its first rows; there are no results yet."""
        self._bundle(("misc", "wait", _LOADED, 1), ("s0", "add", _WEIGHT, _WEIGHTS_AT, 0),
                     ("s1", "sub", _WEIGHTS_AT, _BOTH_WEIGHTS, _WEIGHTS_AT))
        self._push_weights(self._tile)
        self._bundle(("misc", "wait", _LOADED, 1))
        self._take_tail()
        if self._passes > 1:
            self._bundle(("s1", "call", _RETURN, "load"))
        self._first_rows(results=False)
        self._start_sums()

    def _other_pass(self) -> None:
        self._bundle(("misc", "wait", _LOADED, 1))
        self._take_tail()
        self._bundle(("s1", "beq", _PASSES, 1, "loads_done"))
        self._bundle(("s1", "call", _RETURN, "load"))
        self._label("loads_done")
        self._first_rows(results=True)
        self._last_totals()
        self._bundle(("s1", "loop", _DEPTH, "same_tile"))
        self._store_tile()
        self._bundle(("s0", "add", _DEPTH, s[0], self._job.depth_tiles),
                     ("s1", "loop", _COLUMNS, "same_block"))
        self._bundle(("s0", "add", _COLUMNS, s[0], self._share.columns),
                     ("s1", "add", _C_BLOCK, _C_BLOCK, self._block))
        self._bundle(("s0", "add", _C_ROW, _C_BLOCK, 0), ("s1", "jump", "next_tile"))
        self._label("same_block")
        self._bundle(("s0", "add", _C_ROW, _C_ROW, self._panel))
        self._label("next_tile")
        self._bundle(("misc", "wait", _FREE, 1), ("s0", "sub", _SUMS_AT, _BOTH_SUMS, _SUMS_AT))
        self._start_sums()
        self._jump("own")
        self._label("same_tile")
        self._bundle(("s0", "add", _IN, _SUMS_AT, 0), ("s1", "add", _OUT, _SUMS_AT, -self._delay))
        self._set((_STEP, 1))

    def _start_sums(self) -> None:
        """Sums of a new tile: what is added to its first results is -0, which changes nothing."""
        self._set((_IN, self._zero), (_STEP, 0))
        self._bundle(("s0", "add", _OUT, _SUMS_AT, -self._delay))

    def _take_tail(self) -> None:
        """The operands of the tile's epilogue, if they have come; before the next may come."""
        if self._epilogue:
            self._bundle(("ld", "load", _TILE_BIAS, s[0], self._tail))
            self._bundle(("ld", "load", _TILE_KEEP, s[0], self._tail + 1))

    def _set_epilogue(self) -> None:
        """Its operands for this pass's results: those of the tile if its sums will be complete."""
        if not self._epilogue:
            return
        complete = self._job.depth_tiles == 1
        if not complete:
            self._bundle(("s1", "beq", _DEPTH, 1, "complete"), ("v0", "move", _FLOOR, _LEAST))
            self._bundle(("v0", "move", _BIAS, _NEGATIVE_ZERO), ("v1", "move", _KEEP, -1),
                         ("s1", "jump", "epilogue_set"))
            self._label("complete")
        self._bundle(("v0", "move", _BIAS, _TILE_BIAS), ("v1", "move", _KEEP, _TILE_KEEP))
        if not complete:
            self._bundle(("v0", "move", _FLOOR, self._floor))
            self._label("epilogue_set")

    def _first_rows(self, *, results: bool) -> None:
        """The steps of a pass from the swap until its own first result."""
        self._bundle(("s0", "add", _ROW, _ROWS_AT, 0), ("s1", "add", _WEIGHT, _WEIGHTS_AT, 0))
        self._bundle(("ld", "load", _ROWS[0], _ROW))
        self._repeat(1, self._pair(rows=True, swap=True, results=results))
        pairs = self._lag // 2 - 1
        label = self._name("last_pass")
        # The last pass has no weights to load, and all pairs are without.
        if pairs:
            self._bundle(("s0", "add", _COUNT, s[0], pairs), ("s1", "beq", _PASSES, 1, label))
        if self._between:
            self._set((_COUNT, self._between))
            self._repeat(None, self._pair(rows=True, weights=True, results=results))
        if pairs > self._between:
            self._set((_COUNT, pairs - self._between))
        elif pairs:
            self._jump(f"{label}_done")
        if pairs:
            self._label(label)
            self._repeat(None, self._pair(rows=True, results=results))
            self._label(f"{label}_done")

    def _own_results(self) -> None:
        """The rest of a pass's steps, and of the next one's weights."""
        self._set_epilogue()
        self._repeat((self._groups - self._lag) // 2, self._pair(rows=True, results=True))
        rest = self._tile - 2 * self._between
        if rest:
            self._bundle(("s1", "beq", _PASSES, 1, "weights_done"))
            self._push_weights(rest)
            self._label("weights_done")
        if not self._kept or self._job.depth_tiles > 1:
            self._next_slot(_ROWS_AT)
        else:
            # One slot for all column tiles of a block: at the last of them, to the next.
            self._bundle(("s1", "bne", _COLUMNS, 1, "same_slot"))
            self._next_slot(_ROWS_AT)
            self._label("same_slot")
        self._bundle(("s0", "sub", _WEIGHTS_AT, _BOTH_WEIGHTS, _WEIGHTS_AT))

    def _end(self) -> None:
        """The last results, and the last tile."""
        self._repeat(self._lag // 2, self._pair(results=True))
        self._last_totals()
        self._store_tile()
        self._bundle(("misc", "wait", _FREE, 2), ("s1", "jump", "end"))

    def _store_tile(self) -> None:
        """Starts the transfer of a tile of C."""
        self._address(_C_ROW, _C_TRANSFER + _DESTINATION)
        self._bundle(("s0", "store", _SUMS_AT, s[0], _C_TRANSFER + _SOURCE))
        self._bundle(("misc", "dma", _C_TRANSFER))

    # ---- Steps

    def _pair(self, *, rows: bool = False, swap: bool = False, weights: bool = False,
              results: bool = False) -> list[list[tuple[Any, ...]]]:
        """The bundles of two steps.

        Parameters
        ----------
        rows : bool
            Push rows; the first of them is in its register, and the load of the next is started.
        swap : bool
            Change over to the weights loaded last.
        weights : bool
            Push weights.
        results : bool
            Pop results and add them up.
        """
        bundles: list[list[tuple[Any, ...]]] = []
        push = "weights_t" if self._job.transpose_b else "weights"
        for this, other in ((0, 1), (1, 0)):
            first: list[tuple[Any, ...]] = []
            second: list[tuple[Any, ...]] = []
            third: list[tuple[Any, ...]] = []
            if rows:
                first += [("push", "rows_swap" if swap and this == 0 else "rows", _ROWS[this]),
                          ("s1", "add", _ROW, _ROW, 1)]
                third += [("ld", "load", _ROWS[other], _ROW)]
            if weights:
                first += [("ld", "load", _WEIGHTS[this], _WEIGHT),
                          ("s0", "add", _WEIGHT, _WEIGHT, 1)]
                third += [("push", push, _WEIGHTS[this])]
            if results:
                # A pop is over some cycles later, when the next one begins. So what is added up
                # is the result before, and what is stored is the total of that before this one,
                # or of one more before, which the epilogue has worked on meanwhile.
                first += [("pop", "pop", _RESULT[this])]
                done = _FINAL if self._epilogue else _TOTAL
                second += [("ld", "load", _SUM[this], _IN), ("st", "store", done, _OUT),
                           ("s0", "add", _OUT, _OUT, 1)]
                third += [("v0", "fadd", _TOTAL, _SUM[other], _RESULT[other]),
                          ("s0", "add", _IN, _IN, _STEP)]
            if results and self._epilogue:
                first += self._add_bias() + self._mask()
                third += self._rectify()
            bundles += [first, second, third]
        return bundles

    @staticmethod
    def _add_bias() -> list[tuple[Any, ...]]:
        return [("v0", "fadd", _BIASED, _TOTAL, _BIAS)]

    @staticmethod
    def _rectify() -> list[tuple[Any, ...]]:
        return [("v1", "fmax", _RECTIFIED, _BIASED, _FLOOR)]

    @staticmethod
    def _mask() -> list[tuple[Any, ...]]:
        return [("v1", "and", _FINAL, _RECTIFIED, _KEEP)]

    def _last_totals(self) -> None:
        """What is under way after the last of a pass's results."""
        if self._epilogue:
            self._bundle(*self._add_bias(), *self._mask())
            self._bundle(("st", "store", _FINAL, _OUT))
            self._bundle(("v0", "fadd", _TOTAL, _SUM[1], _RESULT[1]), *self._rectify())
            self._bundle(*self._add_bias(), *self._mask())
            self._bundle(("st", "store", _FINAL, _OUT, 1), *self._rectify())
            self._bundle(*self._mask())
            self._bundle(("st", "store", _FINAL, _OUT, 2))
            return
        self._bundle(("st", "store", _TOTAL, _OUT))
        self._bundle(("v0", "fadd", _TOTAL, _SUM[1], _RESULT[1]))
        self._bundle(("st", "store", _TOTAL, _OUT, 1))

    def _push_weights(self, count: int) -> None:
        """So many pushes of weights, without rows."""
        push = "weights_t" if self._job.transpose_b else "weights"
        for width, times in ((2, count // 2), (1, count % 2)):
            body: list[list[tuple[Any, ...]]] = [
                [("ld", "load", _WEIGHTS[index], _WEIGHT), ("s0", "add", _WEIGHT, _WEIGHT, 1)]
                for index in range(width)]
            body += [[("push", push, _WEIGHTS[index])] for index in range(width)]
            self._repeat(times, body)
