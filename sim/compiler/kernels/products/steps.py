"""The code of a product: all steps of the array in one loop.

An iteration of the loop

- pushes the rows of a step, with the swap to the step's weights,
- pushes the weights of the next step, spread between the rows,
- pops the results of the step `Product.lag` steps before, which are ready by then, adds them to
  their sums, and stores the sums.

Scalar code between the pushes advances the levels' counters, without branches. The first vectors of
rows and weights are loaded one iteration ahead, and the last results are added one iteration later,
so that the array need not wait between iterations.

If the product computes by depth, the lag is not a whole number of steps (`Product.late`). The first
pops of an iteration then take the last results of the block that the iteration before began to pop.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise

from sim.compiler.kernels.lowering import Meanwhile
from sim.compiler.kernels.moving.packing import unpacked
from sim.compiler.kernels.products.pieces import ROWS, WEIGHTS, Number, Side, Stored
from sim.compiler.kernels.products.product import Level, Product
from sim.compiler.kernels.products.transfers import Transfers
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Fence, Index, IndexLike, LoopVariable, MReg, SReg, VReg

__all__ = ["write_product"]

_COUNTERS = 4
"""Maximum number of counters that are held in registers."""
_TAG_BITS = 6
"""Number of low bits of a tag that are not part of the address.

A tag is a word that describes the results of a step. Bit 0 says whether their sums have begun, the
next 5 bits are the scheme's setting, and the bits above are the address of the results."""


def write_product(b: Builder, product: Product, smem: range,
                  transfers: Transfers | None = None,
                  send: Callable[[], None] | None = None,
                  meanwhile: Meanwhile | None = None) -> None:
    """Write the code of a product.

    Parameters
    ----------
    b : Builder
        Builder to which the code is written.
    product : Product
    smem : range
        Words of scalar memory that the code may use.
    transfers : Transfers, optional
        Transfers of the operands that the kernel loads itself, and of results that it stores.
    send : callable, optional
        Writes code before the last step, when the first `Product.early` vectors of the results are
        complete. It is not called if there are none.
    meanwhile : callable, optional
        Chooses steps before which other code runs.
    """
    _Writer(b, product, smem, transfers).write(send, meanwhile)


class _Counters:
    """The counters of a product's loops (`Level`), passes and blocks; they determine all addresses.

    Between steps, the counters are in scalar registers, or in scalar memory if there are many.
    """

    def __init__(self, b: Builder, product: Product, smem: range) -> None:
        self.b, self.product = b, product
        sums = [("sum", level) for level in product.sums]
        sums.append(("pass", Level(product.scheme.passes)))
        block = ("block", Level(product.blocks(product.block_rows)))
        others = [("other", level) for level in product.others]
        nest = [block, *others, *sums] if product.by_depth else [*sums, block, *others]
        self.levels = [(kind, level, b.scalar_variable(0)) for kind, level in nest
                       if level.count > 1]
        many = product.scheme.passes > 1 or len(self.levels) > _COUNTERS
        self._smem = smem[:len(self.levels)] if many else range(0)
        for at in self._smem:
            b.smem_store(0, at)

    def read(self) -> None:
        """Load the counters from scalar memory, if they are held there."""
        if self._smem:
            self.levels = [(kind, level, self.b.smem_load(at)) for (kind, level, _), at in zip(
                self.levels, self._smem, strict=True)]

    def advance(self) -> None:
        """Advance to the next step.

        After the last step, the outermost counter is out of range, and the others are 0.
        """
        b, carry = self.b, None
        for number, (kind, level, counter) in enumerate(self.levels):
            into = None if self._smem else counter
            following = b.scalar("add", counter, 1 if carry is None else carry)
            if number + 1 < len(self.levels):
                carry = b.scalar("eq", following, level.count)
                following = b.scalar("and", following, b.scalar("sub", carry, 1), into=into)
            elif into is not None:
                b.value(following, into=into)
            if self._smem:
                self.levels[number] = kind, level, following
                b.smem_store(following, self._smem[number])

    def offset(self, name: str) -> Index:
        """Return the offset of the current step's operand from the first step's operand.

        ``name`` is a distance of `Level`: ``rows``, ``weights``, ``results``, ``weight_row`` or
        ``depth``; the offset is in the unit of this distance. It is the sum, over all levels, of
        the level's counter times the level's distance.
        """
        total = Index(0)
        for kind, level, counter in self.levels:
            if kind == "block":
                total = total + self._block() * getattr(self.product.block, name)
            elif getattr(level, name):
                total = total + counter * getattr(level, name)
        return total

    def _block(self) -> Index:
        """Return the number of the current block's first iteration of the level `Product.block`.

        The last block ends with the last iteration, and may overlap the block before.
        """
        product, b = self.product, self.b
        counter = next(counter for kind, _, counter in self.levels if kind == "block")
        rows = product.block_rows
        if product.block.count % rows == 0:
            return counter * rows
        return Index.of(b.scalar("min", b.scalar("mul", counter, rows), product.block.count - rows))

    @property
    def number(self) -> Number:
        """Number of the current pass, from 0: it selects the pieces that are multiplied."""
        return next((counter for kind, _, counter in self.levels if kind == "pass"), 0)

    def started(self) -> Number:
        """Return a scalar that is 0 only in the first step of a sum."""
        counters = [counter for kind, _, counter in self.levels if kind in ("sum", "pass")]
        total: Number = 0
        for counter in counters:
            total = self.b.scalar("or", counter, total) if total else counter
        return total


class _Writer:
    """Writes the code of a product. A method that "pushes" or "pops" writes code that does so.

    During a step, ``_rows`` is the address of its rows, and ``_weights`` that of the next step's
    weights. ``_tags[n]`` is the tag (see `_TAG_BITS`) of the step that was n steps ago.
    """

    def __init__(self, b: Builder, product: Product, smem: range,
                 transfers: Transfers | None) -> None:
        self._b, self._product, self._smem, self._transfers = b, product, smem, transfers
        self._stores = transfers.stores if transfers is not None else None
        # The addresses of the last results are constants: later code can be compared with them.
        self._knows_end = not (product.by_depth or product.scheme.passes > 1 or self._stores)
        self._tile = product.config.tile_vregs
        # Number of pushed vectors that share a vector in memory.
        self._share = 1 + product.packed
        self._kind = "weights_t" if product.transposed else "weights"
        self._sublanes = product.config.sublanes
        self._rest = product.depth % product.config.lanes
        self._one_tile = not any(level.depth for level in product.levels)
        self._one_row = not any(level.weight_row for level in product.levels)
        self._counts_depth = bool(self._rest) and not self._one_tile
        self._counts_most = not self._one_row and product.weight_rows % self._tile > 0
        self._prepare()

    def _prepare(self) -> None:
        """Compute values that all steps use: masks, and padding for weights."""
        b, product = self._b, self._product
        first = min(self._tile, product.weight_rows)
        # If transposed, weights beyond the last column repeat it: all lanes of a result with only
        # one column must be equal.
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
        self._sums = _Sums(b, product)

    def write(self, send: Callable[[], None] | None, meanwhile: Meanwhile | None) -> None:
        """Write the code of the product; the parameters are those of `write_product`."""
        b, product, transfers = self._b, self._product, self._transfers
        if transfers is not None:
            transfers.begin()
            transfers.wait_first_weights()
        self._first_weights()
        if transfers is not None:
            transfers.start_more()
        self._rows = _Operand(_piece(b, product, ROWS, 0), None, None,
                              product.scheme.settings(b, ROWS, 0))
        if product.steps == 1:
            self._last_rows(self._row(0, self._depth_mask(self._rows)))
            self._pops(range(product.block_rows), _Results(b.zero, None, None))
            return
        if transfers is not None:
            transfers.wait_first_rows()
        self._begin()
        self._steps(range(product.lag), None)
        self._sums.begin()
        results = self._sums.decoded(self._tags[-1])
        if product.lag == product.steps - 1:
            self._last_rows(self._first_row)
            self._take(product.lag + 1, results)
            return
        self._pending = b.variable(0)
        for part, before in _divided(product, meanwhile):
            before()
            self._steps(part, results)
        if send is not None and product.early:
            send()
        self._last_step(results)
        if self._knows_end:
            for step in range(product.steps - product.lag, product.steps):
                self._pops(range(product.block_rows), self._sums.known(step))
        elif product.lag:
            self._shift_tags()
            self._take(product.lag, results)
        if transfers is not None:
            transfers.end()

    def _steps(self, steps: range, results: "_Results | None") -> None:
        """Write the steps with the numbers ``steps``.

        A step that ends with a wait for a transfer (`Transfers.waiting_steps`), and the steps after
        it that do not wait, are one iteration of a loop. Consecutive iterations form one loop if
        all start a transfer, or none does. ``results`` are the registers for the decoded tag
        (`_TAG_BITS`) of the results that a step pops; None if the steps pop nothing.
        """
        for part in self._parts(steps):
            first = self._product.late if part.start == self._product.lag else 0
            half = self._transfers is not None and part.start == self._transfers.half_step
            self._part(part, partial(self._step, results, stores=self._stores_in(part.start),
                                     first=first, middle=half))

    def _parts(self, steps: range) -> Iterator[range]:
        """Cut ``steps`` after the first pop, before the first store, and around `half_step`."""
        product = self._product
        borders = {product.lag + 1, self._first_store} if product.by_depth else set()
        if self._transfers is not None and self._transfers.half_step >= 0:
            borders |= {self._transfers.half_step, self._transfers.half_step + 1}
        return (range(first, end) for first, end in pairwise(sorted(
            {steps.start, steps.stop} | (borders & set(steps)))))

    def _part(self, part: range, step: "partial[None]") -> None:
        """Write the steps with the numbers ``part``, some of which start or wait for a transfer.

        ``step(starts=s, waits=n)`` writes one step; it starts a transfer if s, and awaits n chunks.
        """
        transfers = self._transfers
        if transfers is None:
            self._plain(len(part), step)
            return
        waiting = [(number, kind) for number, *kind in transfers.waiting_steps if number in part]
        self._plain((waiting[0][0] if waiting else part.stop) - part.start, step)
        for (starts, waits), group in groupby(waiting, lambda entry: entry[1]):
            several = list(group)
            # The table has the number of steps until the next wait, but not beyond the part's end.
            inside = several if several[-1] != waiting[-1] else several[:-1]
            if inside:
                with self._b.loop(len(inside)):
                    step(starts=starts, waits=waits)
                    self._plain(transfers.next_waiting_step(), step)
            if len(inside) < len(several):
                step(starts=starts, waits=waits)
                transfers.next_waiting_step()
                self._plain(part.stop - several[-1][0] - 1, step)

    def _plain(self, count: "int | SReg", step: "partial[None]") -> None:
        """Write a loop of ``count`` steps that neither start nor wait for a transfer of operands.

        ``step`` writes one of them.
        """
        if isinstance(count, int):
            if count:
                with self._b.loop(count):
                    step()
            return
        with self._b.when("ne", count, 0), self._b.loop(count):
            step()

    @property
    def _first_store(self) -> int:
        """Number of the first step that stores results."""
        return self._product.steps if self._stores is None else self._stores.first_step

    def _stores_in(self, step: int) -> bool:
        """Return whether ``step`` stores results; for the first such step, write a descriptor."""
        if self._stores is not None and step == self._first_store:
            self._stores.describe_first()
        return step >= self._first_store

    def _last_step(self, results: "_Results") -> None:
        """Write the last step; then pop and store what is left of the results of its block."""
        product = self._product
        rest = product.block_rows - product.late
        last = product.steps - 1
        known = self._sums.known(last - product.lag) if self._knows_end else None
        self._step(results, last=True, stores=self._stores_in(last), known=known)
        self._sums.add(self._pending, rest - 1, known or results)
        self._pops(range(rest, product.block_rows), results)
        if self._stores is not None:
            if last < self._first_store:
                self._stores.describe_first()
            else:
                self._stores.describe_rest(results.at)
            self._stores.start()

    def _take(self, steps: int, results: "_Results") -> None:
        """Pop and store the results of the final ``steps`` steps."""
        b, stores = self._b, self._stores
        with b.loop(steps):
            self._sums.decoded(self._tags[-1], results)
            for first, count in ([(0, self._product.block_rows)] if stores is None
                                 else stores.parts()):
                self._pops(range(first, first + count), results)
                if stores is not None:
                    stores.describe(results.at + first, count)
                    stores.start()
            self._shift_tags()

    def _pops(self, numbers: range, results: "_Results | _Known") -> None:
        """Pop the result vectors ``numbers`` of a step, and add them to their sums."""
        for number in numbers:
            self._sums.add(self._b.pop(), number, results)

    def _begin(self) -> None:
        """Write the code that puts the state of the first step into registers."""
        b, product = self._b, self._product
        self._counters = _Counters(b, product, self._smem)
        self._rows = _Operand(self._rows.at, product.depth if self._counts_depth else None, None,
                              self._rows.settings).variables(b)
        self._tags = [b.scalar_variable(self._tag()) for _ in range(product.lag + 1)]
        self._counters.advance()
        self._weights = self._next_weights().variables(b)
        self._first_row = b.variable(self._row(0, self._depth_mask(self._rows)))
        self._first_weight = b.variable(self._weight(0, self._weight_mask()))

    def _advance(self) -> None:
        """Write code that advances counters, addresses and tags to the next step."""
        b, product, counters = self._b, self._product, self._counters
        counters.read()
        rows = _Operand(counters.offset("rows") + _piece(b, product, ROWS, counters.number),
                        self._weights.depth, None,
                        product.scheme.settings(b, ROWS, counters.number))
        tag = self._tag()
        self._rows.assign(b, rows)
        self._shift_tags()
        b.assign(self._tags[0], tag)
        self._counters.advance()
        self._weights.assign(b, self._next_weights())

    def _next_weights(self) -> "_Operand":
        b, product, counters = self._b, self._product, self._counters
        row = counters.offset("weight_row")
        depth = product.depth - counters.offset("depth") if self._counts_depth else None
        most = product.weight_vectors - 1 - row if self._counts_most else None
        piece = _piece(b, product, WEIGHTS, counters.number)
        return _Operand(counters.offset("weights") + row + piece, depth, most,
                        product.scheme.settings(b, WEIGHTS, counters.number))

    def _shift_tags(self) -> None:
        for older, newer in zip(self._tags[:0:-1], self._tags[-2::-1], strict=True):
            self._b.assign(older, newer)

    def _tag(self) -> SReg | Index:
        """Return the tag of the step to which the counters have advanced."""
        b, product, counters = self._b, self._product, self._counters
        address = counters.offset("results")
        if not product.adds:
            return address
        tag: Index = address * (1 << _TAG_BITS)
        tag = tag + b.scalar("ne", counters.started() or b.zero, 0)
        setting = product.scheme.total_setting(b, counters.number)
        return tag if setting is None else tag + Index.of(setting) * 2

    def _step(self, results: "_Results | None", *, last: bool = False, starts: bool = False,
              waits: int = 0, stores: bool = False, first: int = 0,
              middle: bool = False, known: "_Known | None" = None) -> None:
        """Generate a step's code: push its rows and the next one's weights, pop earlier results.

        ``results`` are registers for the decoded tag of the results that the step pops; None if it
        pops nothing. The first pop follows the push of vector ``first`` of its rows. With
        ``starts``, the step starts a transfer of operands; with ``stores``, transfers of results.
        At its end, it waits for ``waits`` chunks of operands of the next step. With ``middle``, it
        waits for a chunk of its rows before it pushes their second half. ``last`` marks the last
        step. ``known``, if given, replaces the tag of the results whose vector 0 the step pops.
        """
        b, product = self._b, self._product
        rows = product.block_rows
        row_mask, weight_mask = self._depth_mask(self._rows), self._weight_mask()
        pushed = 0
        popped: VReg | None = self._pending if results is not None and not first else None
        for number in range(rows):
            if middle and number >= rows // 2:
                assert self._transfers is not None
                _in_half_step(self._transfers, number - rows // 2, rows - 1 - rows // 2)
            row = self._row(number, row_mask) if number else self._first_row
            paced = Fence() if product.by_depth and not number else None
            b.push("rows" if number else "rows_swap", row, fence=paced)
            until = (number + 1) * self._tile // rows
            for weight in () if last else range(pushed, until):
                b.push(self._kind, self._weight(weight, weight_mask) if weight
                       else self._first_weight)
            pushed = until
            if stores and results is not None and number:
                self._store(number - 1, results, last)
            if results is not None and number >= first:
                popped = self._pop(number, popped, results, known)
            if starts and number == rows // 4:
                assert self._transfers is not None
                self._transfers.start()  # Only one, because a start holds the core.
        if stores and results is not None:
            self._store(rows - 1, results, last)
        if last:
            return
        if waits:
            assert self._transfers is not None
            self._transfers.wait(waits)
        self._advance()
        b.assign(self._first_row, self._row(0, self._depth_mask(self._rows)))
        b.assign(self._first_weight, self._weight(0, self._weight_mask(), last=True))

    def _pop(self, number: int, before: VReg | None, results: "_Results",
             known: "_Known | None") -> VReg:
        """Pop a result after the push of vector ``number`` of rows; return the result.

        Also add the previous result, ``before``, to the sum to which it belongs. (If each result
        were added as soon as it is popped, the core would wait.) ``known`` is as in `_step`.
        """
        b, rows, late = self._b, self._product.block_rows, self._product.late
        at = (number - late) % rows
        into = None if number + 1 < rows else self._pending
        if at:
            popped = b.pop(into=into)
        if before is not None:
            self._sums.add(before, (at - 1) % rows, known or results if at else results)
        if not at:
            if known is None:
                self._sums.decoded(self._tags[-1], results)
            popped = b.pop(into=into)
        return popped

    def _store(self, number: int, results: "_Results", last: bool) -> None:
        """If a transfer starts after vector ``number``, start it and write the next descriptor."""
        assert self._stores is not None
        split = self._stores.places().get(number)
        if split is not None:
            self._stores.start()
            # Describe the next transfer, unless the last step has none.
            if not last or split + 1 < len(self._stores.splits):
                self._stores.describe_after(split, results.at)

    def _last_rows(self, first: VReg) -> None:
        b, product = self._b, self._product
        mask = self._depth_mask(self._rows)
        b.push("rows_swap", first)
        if product.block_rows > 1:
            with b.loop(product.block_rows - 1) as number:
                b.push("rows", self._row(number + 1, mask))

    def _depth_mask(self, operand: "_Operand") -> MReg | None:
        """Return the mask of the lanes of ``operand`` that lie within the depth; None if all do."""
        if not self._counts_depth:
            return self._lane_mask
        assert self._lane is not None
        assert operand.depth is not None
        return self._b.compare("lt", self._lane, operand.depth)

    def _weight_mask(self) -> MReg | None:
        return self._depth_mask(self._weights) if self._product.transposed else None

    def _row(self, number: int | Index, mask: MReg | None) -> VReg:
        """Load vector ``number`` of a step's rows; return the piece to push, 0 outside ``mask``."""
        b, product = self._b, self._product
        vector = b.load(product.rows,
                        self._rows.at + number * product.block.rows + product.first_row)
        return product.scheme.piece(b, ROWS, vector, self._rows.settings, mask)

    def _weight(self, number: int, mask: MReg | None, *, last: bool = False) -> VReg:
        """Load vector ``number`` of the next step's weights; return the piece of it to push.

        ``mask`` has the elements within the depth; the others become padding. With ``last``, there
        may be no next step; then any vector will do.
        """
        b, product = self._b, self._product
        valid: Number = number // self._share
        if self._counts_most and number >= product.weight_rows % self._tile:
            assert self._weights.most is not None
            valid = b.scalar("min", self._weights.most, valid)
        elif number >= product.weight_rows:
            if self._constant is not None:
                return self._constant
            valid = product.weight_vectors - 1
        if not product.transposed and self._rest:
            end = (number + 1) * self._sublanes
            if self._one_tile:
                mask = self._sublane_mask if end > self._rest else None
            elif end > self._rest:
                assert self._sublane is not None
                assert self._weights.depth is not None
                left = b.scalar("sub", self._weights.depth, number * self._sublanes)
                mask = b.compare("lt", self._sublane, left)
        at = self._weights.at + valid
        if last:
            at = Index.of(b.scalar("min", at, product.weights.vectors - 1))
        vector = _load_weight(b, product, at, number % self._share)
        return product.scheme.piece(b, WEIGHTS, vector, self._weights.settings, mask)

    def _first_weights(self) -> None:
        """Push the first step's weights."""
        b, product = self._b, self._product
        settings = product.scheme.settings(b, WEIGHTS, 0)
        valid = min(self._tile, product.weight_rows)
        mask = self._lane_mask if product.transposed else None
        whole = valid - (self._sublane_mask is not None)

        def push(at: int | LoopVariable, half: int, mask: MReg | None) -> None:
            vector = _load_weight(b, product, _piece(b, product, WEIGHTS, 0) + at, half)
            b.push(self._kind, product.scheme.piece(b, WEIGHTS, vector, settings, mask))

        share = self._share
        if whole >= share:
            with b.loop(whole // share) as at:
                for half in range(share):
                    push(at, half, mask)
        for number in range(whole - whole % share, valid):
            push(*divmod(number, share), self._sublane_mask if number == whole else mask)
        if valid < self._tile:
            with b.loop(self._tile - valid):
                if self._constant is None:
                    push(*divmod(valid - 1, share), mask)
                else:
                    b.push(self._kind, self._constant)


def _in_half_step(transfers: Transfers, number: int, last: int) -> None:
    """Before push ``number`` (0 to ``last``) of a half step, wait for transfers and start more."""
    if not number:
        transfers.wait()
    for chunk in range(transfers.started_in_half_step):
        if number == min(2 * chunk + 2, last):
            transfers.start_in_half_step(chunk)


def _divided(product: Product, meanwhile: Meanwhile | None
             ) -> Iterator[tuple[range, Callable[[], None]]]:
    """Yield ranges of steps, each with a function that writes the code to run before the range.

    Together, the ranges contain all steps that pop results, except the last such step.
    ``meanwhile`` is the parameter of `write_product`.
    """
    steps = range(product.lag, product.steps - 1)
    others = {} if meanwhile is None else meanwhile(
        len(steps), product.step_cycles(product.block_rows))
    starts = [0, *others, len(steps)]
    for (first, end), before in zip(pairwise(starts), (lambda: None, *others.values()),
                                    strict=True):
        yield steps[first:end], before


def _piece(b: Builder, product: Product, side: Side, number: Number) -> Index:
    """Return the distance, in vectors, from an operand's first piece to that for pass ``number``.

    ``side`` selects the operand.
    """
    if not product.apart[side.number]:
        return Index(0)
    assert isinstance(product.scheme, Stored)
    return Index.of(product.scheme.stored(b, side, number)) * product.apart[side.number]


def _load_weight(b: Builder, product: Product, at: IndexLike, half: int) -> VReg:
    """Load the vector of a product's weights at ``at``.

    If the weights are packed, return the numbers in one half of its words: ``half`` is 0 (low) or
    1 (high).
    """
    vector = b.load(product.weights, at)
    return unpacked(b, vector, half) if product.packed else vector


class _Sums:
    """The sums to which results are added, in vector registers or in vector memory."""

    def __init__(self, b: Builder, product: Product) -> None:
        self._b, self._product = b, product
        self._registers: list[VReg] | None = None

    def begin(self) -> None:
        """Allocate registers for the sums, as late as possible because registers are scarce."""
        b, product = self._b, self._product
        if product.adds:
            self._zero = b.splat(0)
        if product.adds and not product.in_place:
            self._registers = [b.variable(0) for _ in range(product.block_rows)]

    def decoded(self, tag: SReg, into: "_Results | None" = None) -> "_Results":
        """Unpack a tag, the word that says where the next popped results belong.

        Its fields go to new registers, or to the registers in ``into``.
        """
        b, product = self._b, self._product
        found = into or _Results(b.scalar_variable(0), None, None)
        if not product.adds:
            b.assign(found.at, tag)
            return found
        b.scalar("shr", tag, _TAG_BITS, into=found.at)
        if product.scheme.total_setting(b, 0) is not None:
            found.setting = b.scalar("and", b.scalar("shr", tag, 1), 31, into=found.setting)
        found.started = b.compare("ne", self._zero, b.scalar("and", tag, 1), into=found.started)
        return found

    def known(self, step: int) -> "_Known":
        """Describe a step's results, for a product of one pass that is not `Product.by_depth`."""
        product = self._product
        depth = math.prod(level.count for level in product.sums)
        total, number = divmod(step, depth)
        return _Known(product.result_of(total), not number, number == depth - 1)

    def add(self, result: VReg, number: int, results: "_Results | _Known") -> None:
        """Add ``result``, vector ``number`` of a step's results, to its sum, and store the sum.

        A sum that is known to be incomplete is not stored.
        """
        b, product = self._b, self._product
        at = Index.of(results.at + number * product.block.results)
        into = None if self._registers is None else self._registers[number]
        sum = b.load(product.results, at) if product.in_place else into
        started = setting = None
        if isinstance(results, _Results):
            started, setting = results.started, results.setting
        elif results.begins:
            sum = None
        total = product.scheme.total(b, result, sum, started, setting, into)
        if isinstance(results, _Known) and not results.ends:
            if into is not None and total is not into:
                b.assign(into, total)
            return
        if product.finish is not None:
            total = product.finish(b, total, at)
        b.store(total, product.results, at)


@dataclass
class _Results:
    """Registers that hold the decoded tag of a step.

    ``at`` is the address of the results, ``setting`` the scheme's setting, and ``started`` a mask:
    ones if the sums have begun, else zeros.
    """

    at: SReg
    setting: SReg | None
    started: MReg | None


@dataclass(frozen=True)
class _Known:
    """What the tag of a step would say, if the step's number is known when the code is written.

    ``at`` is the address of the results. ``begins`` and ``ends`` say whether the step is the first,
    and the last, that adds to its sums.
    """

    at: int
    begins: bool
    ends: bool


@dataclass
class _Operand:
    """The address of a step's operand, with its limits and settings.

    ``at`` is the offset of the step's first vector in the operand's buffer, in vectors. The limits
    are ``depth`` and ``most``; a limit is None if no code needs it. ``depth`` is the number of
    elements from the step's first one to the end of the contracted dimension. ``most`` is the
    number of vectors of weights after the step's first one, along the dimension of the sublanes.
    ``settings`` are parameters of `Scheme.piece`.
    """

    at: Number | Index
    depth: Number | Index | None
    most: Number | Index | None
    settings: list[Number]

    def variables(self, b: Builder) -> "_Operand":
        """Copy address, limits and settings to new scalar variables; return these."""
        depth, most = (None if value is None else b.scalar_variable(value)
                       for value in (self.depth, self.most))
        return _Operand(b.scalar_variable(self.at), depth, most,
                        [b.scalar_variable(value) for value in self.settings])

    def assign(self, b: Builder, other: "_Operand") -> None:
        """Assign the values of ``other`` to the variables of this operand."""
        for variable, value in zip((self.at, self.depth, self.most, *self.settings),
                                   (other.at, other.depth, other.most, *other.settings),
                                   strict=True):
            if isinstance(variable, SReg):
                assert value is not None
                b.assign(variable, value)
