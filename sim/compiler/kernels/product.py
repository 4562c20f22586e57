"""The array's loop: sums of products of tiles of rows and weights, in vector memory.

A *step* multiplies a block of rows, some vectors, by one weight tile. `Product` says how many steps
there are and where each finds its operands: a nest of levels, as in a loop nest. Levels of *depth*
add to the same results; they are the innermost ones, so that the sums of a block stay in vector
registers, and every step stores them. The code runs all steps in one loop:

- push the block's rows, with the swap to the step's weights,
- push the weights of the next step, spread between the rows,
- pop the results of an earlier step (`lag` steps ago, by then they are ready), add them to their
  sums, and store the sums.

A weight tile takes lanes + 1 cycles, and a block of tile_vregs vectors hides it: the array takes a
row in all other cycles. Scalar code between the pushes counts the levels, without branches.

Rows of the padding of an operand's depth are pushed as +0, and weights there as -0, which changes
no bit (docs/numerics.md, section 7). All other padding may hold anything: it ends in the padding of
the results.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from hdl.config import Config
from sim.compiler.kernels.pieces import ROWS, WEIGHTS, Number, Scheme
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Index, LoopVariable, MReg, SReg, VmemBuffer, VReg

__all__ = ["Level", "Product", "write_product"]

_SUMS = 18
"""Most vectors of a block whose sums are in registers."""
_TAG_BITS = 6
"""A tag holds a result's place, the scheme's setting of 5 bits, and whether its sum has begun."""

Finish = Callable[[Builder, VReg], VReg]
"""Writes code that turns a sum into what is stored: an epilogue."""


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

    @cached_property
    def block_rows(self) -> int:
        """Vectors of a block: the number that takes the fewest cycles."""
        config = self.config
        most = min(self.block.count, config.result_vregs, _SUMS,
                   config.tile_vregs + max(1, config.tile_vregs // 8))
        return min(range(1, most + 1), key=lambda rows: (self.blocks(rows) * self.step_cycles(rows),
                                                         rows))

    def blocks(self, rows: int) -> int:
        """Number of blocks of so many vectors."""
        return -(-self.block.count // rows)

    def step_cycles(self, rows: int) -> int:
        """Cycles of a step with so many vectors of rows: those of the array."""
        return max(rows * self.config.sublanes, self.config.array + 1)

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

    @cached_property
    def lag(self) -> int:
        """Steps from the rows to their results."""
        config, rows = self.config, self.block_rows
        latency = config.array_latency + 2 * config.sublanes
        wanted = -(-latency // self.step_cycles(rows))
        return min(wanted, config.result_vregs // rows - 1, self.steps - 1)

    @property
    def cycles(self) -> int:
        """Estimated cycles, of all bundles, with operands in vector memory."""
        config, rows = self.config, self.block_rows
        first = config.array + 16
        drain = config.array_latency + 2 * config.sublanes
        last = (self.lag + 1) * rows * config.sublanes
        return (first + (self.steps - 1) * self.step_cycles(rows)
                + max(last, drain + rows * config.sublanes) + 24)


def write_product(b: Builder, product: Product) -> None:
    """Write the code of a product."""
    _Writer(b, product).write()


@dataclass
class _Counters:
    """The levels' counters, in scalar registers, and what follows from them."""

    b: Builder
    product: Product
    levels: list[tuple[str, Level, SReg]] = field(default_factory=list)

    def __post_init__(self) -> None:
        product = self.product
        nest = [("sum", level) for level in product.sums]
        nest += [("pass", Level(product.scheme.passes)),
                 ("block", Level(product.blocks(product.block_rows)))]
        nest += [("other", level) for level in product.others]
        self.levels = [(kind, level, self.b.scalar_variable(0)) for kind, level in nest
                       if level.count > 1]

    def advance(self) -> None:
        """Go to the next step. Behind the last one, only the outermost counter is out of range."""
        b, carry = self.b, None
        for number, (_, level, counter) in enumerate(self.levels):
            following = b.scalar("add", counter, 1 if carry is None else carry)
            if number + 1 < len(self.levels):
                carry = b.scalar("eq", following, level.count)
                b.scalar("and", following, b.scalar("sub", carry, 1), into=counter)
            else:
                b.value(following, into=counter)

    def place(self, name: str) -> Index:
        """Sum of the counters times the levels' distances."""
        total = Index(0)
        for kind, level, counter in self.levels:
            if kind == "block":
                total = total + self._block() * getattr(self.product.block, name)
            elif getattr(level, name):
                total = total + counter * getattr(level, name)
        return total

    def _block(self) -> Index:
        """Number of the block's first vector; the last block ends at the last vector."""
        product, b = self.product, self.b
        counter = next(counter for kind, _, counter in self.levels if kind == "block")
        rows = product.block_rows
        if product.block.count % rows == 0:
            return counter * rows
        return Index.of(b.scalar("min", b.scalar("mul", counter, rows), product.block.count - rows))

    @property
    def number(self) -> Number:
        """Number of the pass."""
        return next((counter for kind, _, counter in self.levels if kind == "pass"), 0)

    def started(self) -> Number:
        """Not 0 where the sum has begun."""
        counters = [counter for kind, _, counter in self.levels if kind in ("sum", "pass")]
        total: Number = 0
        for counter in counters:
            total = self.b.scalar("or", counter, total) if total else counter
        return total


class _Writer:
    """Writes a product.

    While a step runs, ``_rows`` describes that step, ``_weights`` the next one, and ``_tags[n]``
    the step n before.
    """

    def __init__(self, b: Builder, product: Product) -> None:
        self._b = b
        self._product = product
        self._tile = product.config.tile_vregs
        self._sublanes = product.config.sublanes
        self._rest = product.depth % product.config.lanes
        self._one_tile = not any(level.depth for level in product.levels)
        self._one_row = not any(level.weight_row for level in product.levels)
        self._counts_depth = bool(self._rest) and not self._one_tile
        self._counts_most = not self._one_row and product.weight_rows % self._tile > 0
        self._prepare()

    def _prepare(self) -> None:
        """Compute what no step changes."""
        b, product = self._b, self._product
        first = min(self._tile, product.weight_rows)
        # Columns beyond the last are its copies: where there is one, all are to be equal.
        self._constant = (b.splat(WEIGHTS.padding)
                          if first < self._tile and not product.transposed else None)
        self._lane = self._sublane = None
        self._lane_mask = self._sublane_mask = None
        if self._rest:
            self._lane = b.vector("lane")
            if self._one_tile:
                self._lane_mask = b.compare("lt", self._lane, self._rest)
            if not product.transposed:
                self._sublane = b.vector("sublane")
                rest = self._rest % self._sublanes
                if self._one_tile and rest:
                    self._sublane_mask = b.compare("lt", self._sublane, rest)
        self._sums: list[VReg] | None = None

    def write(self) -> None:
        """Write the code."""
        b, product = self._b, self._product
        scheme, lag = product.scheme, product.lag
        self._first_weights()
        self._rows = _Operand(0, None, None, scheme.settings(b, ROWS, 0))
        self._tags: list[SReg] = [b.zero]
        if product.steps > 1:
            self._begin()
            if lag:
                with b.loop(lag):
                    self._step(results=False)
            # No earlier, because vector registers are scarce.
            if product.adds:
                self._zero = b.splat(0)
                self._sums = [b.variable(0) for _ in range(product.block_rows)]
            if product.steps - 1 > lag:
                with b.loop(product.steps - 1 - lag):
                    self._step(results=True)
        self._last_rows()
        if not lag:
            self._results()
            return
        with b.loop(lag + 1):
            self._results()
            self._shift_tags()

    def _begin(self) -> None:
        """Put the state of the first step into registers."""
        b, product = self._b, self._product
        self._counters = _Counters(b, product)
        self._rows = _Operand(0, product.depth if self._counts_depth else None, None,
                              self._rows.settings).variables(b)
        self._tags = [b.scalar_variable(self._tag()) for _ in range(product.lag + 1)]
        self._counters.advance()
        self._weights = self._next_weights().variables(b)

    def _advance(self) -> None:
        """Go to the next step."""
        b = self._b
        rows = _Operand(self._counters.place("rows"), self._weights.depth, None,
                        self._product.scheme.settings(b, ROWS, self._counters.number))
        tag = self._tag()
        self._rows.assign(b, rows)
        self._shift_tags()
        b.assign(self._tags[0], tag)
        self._counters.advance()
        self._weights.assign(b, self._next_weights())

    def _next_weights(self) -> "_Operand":
        b, product, counters = self._b, self._product, self._counters
        row = counters.place("weight_row")
        depth = product.depth - counters.place("depth") if self._counts_depth else None
        most = product.weight_rows - 1 - row if self._counts_most else None
        return _Operand(counters.place("weights") + row, depth, most,
                        product.scheme.settings(b, WEIGHTS, counters.number))

    def _shift_tags(self) -> None:
        for older, newer in zip(self._tags[:0:-1], self._tags[-2::-1], strict=True):
            self._b.assign(older, newer)

    def _tag(self) -> SReg | Index:
        """Encode what the results of the counters' step need."""
        b, product, counters = self._b, self._product, self._counters
        place = counters.place("results")
        if not product.adds:
            return place
        tag: Index = place * (1 << _TAG_BITS)
        tag = tag + b.scalar("ne", counters.started() or b.zero, 0)
        setting = product.scheme.tag(b, counters.number)
        return tag if setting is None else tag + Index.of(setting) * 2

    def _step(self, *, results: bool) -> None:
        """Write a step, with the weights of the next one."""
        rows = self._product.block_rows
        row_mask, weight_mask = self._depth_mask(self._rows), self._weight_mask()
        take = self._taker() if results else None
        pushed = 0
        for number in range(rows):
            self._push_row(number, row_mask, swap=not number)
            until = (number + 1) * self._tile // rows
            for weight in range(pushed, until):
                self._push_weight(weight, weight_mask)
            pushed = until
            if take is not None:
                take(number)
        self._advance()

    def _last_rows(self) -> None:
        rows = self._product.block_rows
        mask = self._depth_mask(self._rows)
        self._push_row(0, mask, swap=True)
        if rows > 1:
            with self._b.loop(rows - 1) as number:
                self._push_row(number + 1, mask, swap=False)

    def _depth_mask(self, operand: "_Operand") -> MReg | None:
        """The lanes within the depth."""
        if not self._counts_depth:
            return self._lane_mask
        assert self._lane is not None
        assert operand.depth is not None
        return self._b.compare("lt", self._lane, operand.depth)

    def _weight_mask(self) -> MReg | None:
        return self._depth_mask(self._weights) if self._product.transposed else None

    def _push_row(self, number: int | Index, mask: MReg | None, *, swap: bool) -> None:
        b, product = self._b, self._product
        vector = b.load(product.rows, self._rows.at + number * product.block.rows)
        piece = product.scheme.piece(b, ROWS, vector, self._rows.settings, mask)
        b.push("rows_swap" if swap else "rows", piece)

    def _push_weight(self, number: int, mask: MReg | None) -> None:
        """Push a vector of the next step's weights."""
        b, product = self._b, self._product
        place: Number = number
        if self._counts_most and number >= product.weight_rows % self._tile:
            assert self._weights.most is not None
            place = b.scalar("min", self._weights.most, number)
        elif number >= product.weight_rows:
            if self._constant is not None:
                b.push(self._kind, self._constant)
                return
            place = product.weight_rows - 1
        if not product.transposed and self._rest:
            end = (number + 1) * self._sublanes
            if self._one_tile:
                mask = self._sublane_mask if end > self._rest else None
            elif end > self._rest:
                assert self._sublane is not None
                assert self._weights.depth is not None
                left = b.scalar("sub", self._weights.depth, number * self._sublanes)
                mask = b.compare("lt", self._sublane, left)
        vector = b.load(product.weights, self._weights.at + place)
        b.push(self._kind, product.scheme.piece(b, WEIGHTS, vector, self._weights.settings, mask))

    @property
    def _kind(self) -> str:
        return "weights_t" if self._product.transposed else "weights"

    def _first_weights(self) -> None:
        """Push the first step's weights."""
        b, product = self._b, self._product
        settings = product.scheme.settings(b, WEIGHTS, 0)
        valid = min(self._tile, product.weight_rows)
        mask = self._lane_mask if product.transposed else None
        whole = valid - (self._sublane_mask is not None)

        def push(number: int | LoopVariable, mask: MReg | None) -> None:
            vector = b.load(product.weights, number)
            b.push(self._kind, product.scheme.piece(b, WEIGHTS, vector, settings, mask))

        if whole:
            with b.loop(whole) as number:
                push(number, mask)
        if whole < valid:
            push(whole, self._sublane_mask)
        if valid < self._tile:
            with b.loop(self._tile - valid):
                if self._constant is None:
                    push(valid - 1, mask)
                else:
                    b.push(self._kind, self._constant)

    def _results(self) -> None:
        """Take all results of the step before the last ones."""
        take = self._taker()
        for number in range(self._product.block_rows):
            take(number)

    def _taker(self) -> Callable[[int], None]:
        """What writes the code that takes a result of the step ``lag`` before."""
        b, product = self._b, self._product
        tag = self._tags[-1]
        at, started = Index.of(tag), None
        setting = product.scheme.tag(b, 0)
        if product.adds:
            at = Index.of(b.scalar("shr", tag, _TAG_BITS))
            setting = b.scalar("and", b.scalar("shr", tag, 1), 31)
            started = b.compare("ne", self._zero, b.scalar("and", tag, 1))

        def take(number: int) -> None:
            sum = None if self._sums is None else self._sums[number]
            total = product.scheme.total(b, b.pop(), sum, started, setting, sum)
            if product.finish is not None:
                total = product.finish(b, total)
            b.store(total, product.results, at + number * product.block.results)

        return take


@dataclass
class _Operand:
    """Where a step finds an operand.

    ``depth`` is the number of elements along the depth that are left, and ``most`` the number of
    the last vector that the operand has; None if nothing depends on it.
    """

    at: Number | Index
    depth: Number | Index | None
    most: Number | Index | None
    settings: list[Number]

    def variables(self, b: Builder) -> "_Operand":
        """The same in variables."""
        depth, most = (None if value is None else b.scalar_variable(value)
                       for value in (self.depth, self.most))
        return _Operand(b.scalar_variable(self.at), depth, most,
                        [b.scalar_variable(value) for value in self.settings])

    def assign(self, b: Builder, other: "_Operand") -> None:
        """Assign the other's numbers to the variables that this one holds."""
        for variable, value in zip((self.at, self.depth, self.most, *self.settings),
                                   (other.at, other.depth, other.most, *other.settings),
                                   strict=True):
            if isinstance(variable, SReg):
                assert value is not None
                b.assign(variable, value)
