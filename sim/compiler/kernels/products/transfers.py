"""Transfers within a product: operands arrive while the array runs, and results leave.

The code of a product itself starts the transfers of its operands from HBM. Here, a *chunk* is the
vectors of an operand that one of these transfers loads (not the *chunk* of `sim.kernel`). One
weight tile covers a part of the contracted dimension, a *tile of the depth*, and a part of the
result's columns, a *tile of columns*.

Chunks arrive in the order in which steps need them: first those for the first tile of the depth,
then those for the second, and so on (`Product.by_depth`). Chunks for the first tile are small, so
that the array starts early. Later chunks are larger, because each start of a transfer holds the
core. The weights of the last tile arrive in small chunks again, because no other work is left for
the array while it waits for them.

During the first tile of the depth, the array waits for transfers: it processes rows as fast as they
arrive, and weights must arrive as well. To shorten the wait, the last block of rows may arrive in
two chunks (`Plan.halves`). Its step begins when the first half of the block is in vector memory;
in the middle of the step, the array waits for the other half.

A few chunks are in flight at a time. If a step needs a new chunk, the code at the end of the
previous step starts the transfer of a later chunk, then waits until the one that the step needs has
arrived. A table in scalar memory holds the descriptors; it is written while the first chunks
arrive. In the last tile of the depth, results leave while the array runs
(`sim.compiler.kernels.products.stores`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from hdl.dma.interface import QUEUE_DEPTH, CheckTimes
from sim.compiler.kernels.products.product import Product
from sim.compiler.kernels.products.stores import STORE_WORDS, Stores, address_of
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Fence, SReg, VmemBuffer

__all__ = ["Chunk", "Homes", "Plan", "Transfers", "plan_transfers"]

_LOADED, _STORED = 0, 1
"""Numbers of the semaphores that count transfers of operands, and of results."""
_FLIGHT = 3
"""Number of chunks in flight while the array runs: started, but not yet waited for."""
_ENTRY = DESCRIPTOR_WORDS + 1
"""Number of words of a chunk's entry in the table of descriptors: its descriptor, and one word with
the number of steps until the next wait.
"""
_SPARE = 8
"""Number of words of scalar memory that stay free for the counters of the product's loops."""
_DEPTHS = (1, 2, 4)
"""Numbers of tiles of the depth in a chunk (`Plan.depths_together`) that are tried."""
_SIGNAL = 1 << 12
"""Bit of a descriptor's first word: the transfer adds 1 to a semaphore when it is complete."""


@dataclass(frozen=True)
class Homes:
    """Positions of operands and results in HBM.

    Attributes
    ----------
    rows, weights, results : SReg or None
        Number of the value's first row of HBM; None if the product does not transfer the value.
    """

    rows: SReg | None
    weights: SReg | None
    results: SReg | None


@dataclass(frozen=True)
class Chunk:
    """Vectors of an operand that one transfer loads, in runs of consecutive vectors.

    Attributes
    ----------
    step : int
        The first step that needs the vectors; weights are needed one step before they are used.
    weights : bool
        Whether the vectors are of the weights; otherwise, of the rows.
    first, run, runs, stride : int
        First vector, vectors of a run, number of runs, vectors from one run's start to the next.
    late : bool
        Whether the step needs the vectors only in its second half.
    """

    step: int
    weights: bool
    first: int
    run: int
    runs: int = 1
    stride: int = 0
    late: bool = False

    @property
    def vectors(self) -> int:
        """Number of vectors of the chunk."""
        return self.run * self.runs


@dataclass(frozen=True)
class Plan:
    """The chunks that a product's code loads, in order, and the steps that start their transfers.

    Attributes
    ----------
    product : Product
    loads : tuple of (bool, bool)
        Whether the product loads its rows, and its weights.
    depths_together : int
        Number of tiles of the depth whose vectors share a chunk. Exceptions: the first tile shares
        no chunk with others; with ``fine_end``, neither do the weights of the last tile.
    columns_together : int
        Number of tiles of columns whose weights share a chunk. It does not apply to the first tile
        of the depth nor, with ``fine_end``, to the last.
    fine_end : bool
        Whether, in the last tile of the depth, each weight tile is a chunk of its own.
    fast : bool
        Whether each chunk of weights in the first tile of the depth is twice as large as the one
        before, and each later chunk has twice as many tiles of the depth as the one before, up to
        ``depths_together``. Otherwise, chunks in the first tile grow by half, and later chunks all
        have ``depths_together`` tiles.
    halves : bool
        Whether the last block of rows of the first tile of the depth arrives in two chunks.
    """

    product: Product
    loads: tuple[bool, bool]
    depths_together: int
    columns_together: int
    fine_end: bool
    fast: bool
    halves: bool = False

    @property
    def blocks(self) -> int:
        """Number of blocks of rows."""
        return self.product.blocks(self.product.block_rows)

    @property
    def columns(self) -> int:
        """Number of tiles of columns."""
        return self.product.others[0].count

    @property
    def depths(self) -> int:
        """Number of tiles of the depth."""
        return self.product.sums[0].count

    @property
    def depth_steps(self) -> int:
        """Number of steps that use one tile of the depth."""
        return self.blocks * self.columns

    @property
    def can_store(self) -> bool:
        """Whether results can leave while the array runs.

        No later step may change them, and their blocks must follow one another in memory.
        """
        product = self.product
        return (self.depth_steps > product.lag
                and (self.columns == 1 or product.others[0].results == product.block.count))

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """Transfers that load the operands, in the order in which steps need their vectors."""
        found = [*self._first(), *self._middle(), *self._last()]
        return tuple(sorted((chunk for chunk in found if self.loads[chunk.weights]),
                            key=lambda chunk: (chunk.step, not chunk.weights, chunk.late)))

    def _first(self) -> Iterator[Chunk]:
        """Yield the transfers that load the first tile of the depth, in increasing sizes."""
        size, count = self.product.block_rows, self.product.block.count
        for block, blocks in _growing(self.blocks, 2):
            first, end = block * size, min((block + blocks) * size, count)
            if block == self.half_step:
                middle = first + size // 2
                yield Chunk(block, False, middle, end - middle, late=True)
                end = middle
            yield Chunk(block, False, first, end - first)
        for column, columns in _growing(self.columns, 1 if self.fast else 2):
            yield self._weights(column, columns, 0, 1)

    def _middle(self) -> Iterator[Chunk]:
        size, together = self.product.block.count, self.columns_together
        end = self.depths - self.fine_end
        depth = 1
        while depth < end:
            depths = min(self.depths_together, end - depth,
                         depth if self.fast else self.depths_together)
            # The last of these chunks of rows includes those of the last tile of the depth.
            last = self.fine_end and depth + depths == end
            step, rows = depth * self.depth_steps, (depths + last) * size
            if self.halves and depth == 1 == depths + last:
                # The array is about to wait for these rows, which it needs block by block.
                part = self.blocks // 2
                first = part * self.product.block_rows
                yield Chunk(step, False, size, first)
                yield Chunk(step + part, False, size + first, rows - first)
            else:
                yield Chunk(step, False, depth * size, rows)
            for column in range(0, self.columns, together):
                yield self._weights(column, min(together, self.columns - column), depth, depths)
            depth += depths

    def _last(self) -> Iterator[Chunk]:
        size, depth = self.product.block.count, self.depths - 1
        if not self.fine_end or not depth:
            return
        if depth == 1:
            yield Chunk(self.depth_steps, False, size, size)
        for column in range(self.columns):
            yield self._weights(column, 1, depth, 1)

    def _weights(self, column: int, columns: int, depth: int, depths: int) -> Chunk:
        """Return the transfer that loads some weight tiles.

        Their numbers along the columns are ``column`` to ``column + columns - 1``, and along the
        depth ``depth`` to ``depth + depths - 1``.
        """
        product = self.product
        levels = ((column, columns, product.others[0]), (depth, depths, product.sums[0]))
        first = sum(at * (level.weights + level.weight_row) for at, _, level in levels)
        # One of the two levels advances along the weights' sublanes, where tiles are consecutive.
        inner, outer = levels if product.transposed else levels[::-1]
        row = inner[0] * inner[2].weight_row
        run = min(inner[1] * product.tile_vectors, product.weight_vectors - row)
        step = depth * self.depth_steps + column * self.blocks - 1
        return Chunk(max(0, step), True, first, run, outer[1], outer[2].weights)

    @property
    def half_step(self) -> int:
        """Number of the step that, halfway through, waits for a chunk; -1 if no step does."""
        return self.blocks - 1 if self.halves else -1

    @property
    def can_halve(self) -> bool:
        """Whether the same plan with ``halves`` set is possible."""
        last, size = self.blocks - 1, self.product.block_rows
        if (not all(self.loads) or self.columns == 1 or last == 0 or size == 1
                or last not in dict(_growing(self.blocks, 2))):
            return False
        halved = replace(self, halves=True)
        [number] = [number for number, chunk in enumerate(halved.chunks) if chunk.late]
        # A wait counts complete transfers, whichever they are: waits must be in order of chunks.
        ordered = number == sum(count for step, count in halved._waits_of.items() if step < last)
        started = halved.started_first + sum(map(len, halved.started.values()))
        return ordered and started == len(halved.chunks)

    @cached_property
    def _waits_of(self) -> dict[int, int]:
        """Map each step that waits at its end to the number of chunks for which it waits.

        Step -1 stands for the wait before the first step.

        A step before the `half_step` waits for all chunks that the next step needs. To wait for
        some of them earlier would stall the array. From the `half_step` on, a step waits for one
        chunk at most: if the next step needs several, earlier steps wait for the others. So enough
        steps wait: a step that waits at its end starts only one chunk.
        """
        found: dict[int, int] = {}
        after = self.product.steps
        for chunk in reversed(self.chunks):
            if not chunk.late:
                natural = chunk.step - 1
                after = max(-1, natural if natural < self.half_step else min(natural, after - 1))
                found[after] = found.get(after, 0) + 1
        return dict(reversed(found.items()))

    @cached_property
    def early(self) -> int:
        """Number of chunks that must arrive before the first step."""
        return self._waits_of[-1]

    @cached_property
    def waiting_steps(self) -> tuple[int, ...]:
        """Steps that end with a wait for chunks, in order."""
        return tuple(step for step in self._waits_of if step >= 0)

    @cached_property
    def waits(self) -> tuple[int, ...]:
        """Number of chunks for which each of the `waiting_steps` waits, in order."""
        return tuple(self._waits_of[step] for step in self.waiting_steps)

    @cached_property
    def started(self) -> dict[int, range]:
        """Map each of the `waiting_steps`, and the `half_step`, to the chunks that it starts.

        A chunk is started only when the DMA queue certainly has room: a start into a full queue
        holds the core. Any start holds the core briefly, so a step starts only one chunk, and the
        `half_step` two.
        """
        found = {}
        arrived, at = self.early, self.started_first
        for step in sorted({*self.waiting_steps, *({self.half_step} if self.halves else ())}):
            half = step == self.half_step
            arrived += half
            room = min(1 + half, QUEUE_DEPTH - (at - arrived), len(self.chunks) - at)
            found[step] = range(at, at + room)
            at += room
            arrived += self._waits_of.get(step, 0)
        return found

    @property
    def started_first(self) -> int:
        """Number of chunks whose transfers are started before the first step."""
        return min(len(self.chunks), self.early + _FLIGHT + self.halves)

    @property
    def started_at_once(self) -> int:
        """Number of chunks whose transfers are started at once: at most the DMA queue's depth."""
        return min(self.started_first, QUEUE_DEPTH)

    @cached_property
    def starts(self) -> tuple[range, ...]:
        """Chunks that each of the `waiting_steps` starts, in order.

        The steps after the last one that starts any are left out.
        """
        found = [self.started[step] if step != self.half_step else range(0)
                 for step in self.waiting_steps]
        while found and not found[-1]:
            found.pop()
        return tuple(found)

    @property
    def started_apart(self) -> tuple[Chunk, ...]:
        """Chunks whose descriptors follow those of `starts` in the table.

        First, those that are started before the first step but not at once, because the DMA queue
        has no room yet; then those that the `half_step` starts.
        """
        more = range(self.started_at_once, self.started_first)
        return tuple(self.chunks[number]
                     for number in (*more, *self.started.get(self.half_step, ())))

    @property
    def words(self) -> int:
        """Number of words of scalar memory that the transfers need."""
        entries = max(1, len(self.waiting_steps), len(self.starts) + len(self.started_apart))
        return _ENTRY * entries + STORE_WORDS + _SPARE

    @property
    def apart(self) -> int:
        """Estimated cycles of all transfers, if none overlapped with the product."""
        product = self.product
        vectors = sum(chunk.vectors for chunk in self.chunks) + product.results.vectors
        return vectors * product.config.sublanes + 3 * _LATENCY

    @cached_property
    def cycles(self) -> int:
        """Estimated cycles of the product with its transfers."""
        config, product = self.product.config, self.product
        step_cycles = product.step_cycles(product.block_rows)
        arrived, arrivals = _LATENCY, []
        for chunk in self.chunks:
            arrived += chunk.vectors * config.sublanes
            arrivals.append(arrived)
        now, before = max([arrivals[self.early - 1], arrivals[0] + config.array]), -1
        arrived = self.early
        for step, waits in zip(self.waiting_steps, self.waits, strict=True):
            chunk = self.chunks[arrived]
            blocks = chunk.vectors * config.sublanes if chunk.runs > 1 else 0
            start = CheckTimes.of(config).total(blocks) + _START_CYCLES
            arrived += waits
            now = max(now + (step - before) * step_cycles + start, arrivals[arrived - 1])
            if step == self.half_step - 1:
                now = max(now, arrivals[arrived] - step_cycles // 2)
                arrived += 1
            before = step
        rows = product.block_rows * config.sublanes
        last = config.array_latency + self.can_store * rows + _LATENCY
        return now + (product.steps - before - 1) * step_cycles + last


_LATENCY, _START_CYCLES = 110, 2
"""``_LATENCY``: cycles from a program's start until an operand's first row arrives.
``_START_CYCLES``: the cycles to start a transfer, without those in which its descriptor is read and
checked."""


def _growing(count: int, part: int) -> Iterator[tuple[int, int]]:
    """Divide a count into growing ranges, each as (first, size).

    The size of a range is its first number divided by ``part``, rounded down, but at least 1.
    """
    first = 0
    while first < count:
        size = min(max(1, first // part), count - first)
        yield first, size
        first += size


def plan_transfers(product: Product, loads: tuple[bool, bool], smem: range) -> Plan | None:
    """Plan the transfers of a product that is computed by depth (`Product.by_depth`).

    Parameters
    ----------
    product : Product
    loads : tuple of (bool, bool)
        Whether the product loads its rows, and its weights.
    smem : range
        Words of scalar memory that the product may use.

    Returns
    -------
    Plan or None
        None if the product cannot transfer its operands, for one of these reasons: it has several
        passes, an epilogue (`Product.finish`), too few steps, or other levels than a product of
        two matrices; or ``smem`` has too few words.
    """
    block = product.block
    matrices = (len(product.sums) == 1 and len(product.others) == 1
                and (block.count == 1 or block.rows == block.results == 1)
                and product.sums[0].rows in (0, block.count)
                and product.others[0].rows == 0)
    if (not matrices or product.scheme.passes > 1 or product.finish is not None
            or product.steps < product.lag + 3):
        return None
    columns, depths = product.others[0].count, product.sums[0].count
    together = sorted({1, -(-columns // 2), columns})
    found = [plan for size in _DEPTHS if size < max(2, depths) for width in together
             for fine_end in (True, False) for fast in (False, True)
             if (plan := Plan(product, loads, size, width, fine_end, fast)).words <= len(smem)]
    found += [halved for plan in found if plan.can_halve
              and (halved := replace(plan, halves=True)).words <= len(smem)]
    return min(found, key=lambda plan: (plan.cycles, len(plan.chunks)), default=None)


class Transfers:
    """Writes the code of a product's transfers.

    A method that waits, or starts a transfer, writes code that does so.

    Parameters
    ----------
    b : Builder
    plan : Plan
        The transfers, and the steps that start them and wait for them.
    homes : Homes
        The first HBM rows of operands and results.
    smem : range
        Words of scalar memory; the last `Plan.words` of them are used.

    Attributes
    ----------
    stores : Stores or None
        Stores of the results; None if the product does not store them.
    """

    def __init__(self, b: Builder, plan: Plan, homes: Homes, smem: range) -> None:
        self._b, self._plan, self._homes = b, plan, homes
        self._product, self._config = plan.product, plan.product.config
        words = smem[len(smem) - plan.words + _SPARE:]
        self._table = words[STORE_WORDS:]
        self.stores = None if homes.results is None else Stores(
            b, plan.product, homes.results, words[:STORE_WORDS], _STORED << 8 | _SIGNAL)

    @property
    def half_step(self) -> int:
        """Number of the step that, halfway through, waits for a chunk; -1 if no step does."""
        return self._plan.half_step

    @property
    def waiting_steps(self) -> tuple[tuple[int, bool, int], ...]:
        """Steps that wait for chunks at their end, in order.

        Each is (step, whether it starts a transfer before the wait, number of chunks for which it
        waits).
        """
        plan = self._plan
        return tuple((step, number < len(plan.starts) and len(plan.starts[number]) > 0, waits)
                     for number, (step, waits) in enumerate(zip(plan.waiting_steps, plan.waits,
                                                                strict=True)))

    def begin(self) -> None:
        """Start the first transfers, and write the table of descriptors for the later ones."""
        b, plan = self._b, self._plan
        for chunk in plan.chunks[:plan.started_at_once]:
            self._describe(chunk, self._table.start)
            b.dma(self._table.start)
        for number, started in enumerate(plan.starts):
            for chunk in plan.chunks[started.start:started.stop]:
                self._describe(chunk, self._table[number * _ENTRY])
        for number, other in enumerate(plan.started_apart, len(plan.starts)):
            self._describe(other, self._table[number * _ENTRY])
        runs = [after - before - 1 for before, after in pairwise(plan.waiting_steps)] + [0]
        for number, run in enumerate(runs if plan.waiting_steps else ()):
            b.smem_store(run, self._table[number * _ENTRY] + DESCRIPTOR_WORDS)
        self._pointer = b.scalar_variable(self._table.start)
        if self.stores is not None:
            self.stores.begin()

    def _describe(self, chunk: Chunk, at: int) -> None:
        """Write the descriptor of a chunk to address ``at`` of scalar memory."""
        b, config = self._b, self._config
        home = self._homes.weights if chunk.weights else self._homes.rows
        buffer: VmemBuffer = self._product.weights if chunk.weights else self._product.rows
        assert home is not None
        low, high = address_of(b, b.value(home + chunk.first * config.sublanes), config)
        several = chunk.runs > 1
        what = DmaSpace.HBM.value | DmaSpace.VMEM.value << 4 | _LOADED << 8 | _SIGNAL
        words: list[SReg | int] = [
            what, chunk.vectors * config.sublanes, low, high,
            chunk.run * config.sublanes * several,
            chunk.stride * config.sublanes * config.row_bytes * several,
            buffer.address + chunk.first, 0, chunk.run * several, chunk.stride * several]
        for word, value in enumerate(words):
            b.smem_store(value, at + word)

    def wait_first_weights(self) -> None:
        """Wait for the weights of the first step."""
        if self._plan.loads[1]:
            self._b.wait(_LOADED, 1)

    def start_more(self) -> None:
        """Start the transfers for which the DMA queue had no room in `begin`; now it has room."""
        for number in range(self._plan.started_first - self._plan.started_at_once):
            self._start_apart(number)

    @property
    def started_in_half_step(self) -> int:
        """Number of chunks whose transfers the `half_step` starts."""
        return len(self._plan.started[self._plan.half_step])

    def start_in_half_step(self, number: int) -> None:
        """Start the transfer of chunk ``number``, from 0, of those that the `half_step` starts."""
        plan = self._plan
        self._start_apart(plan.started_first - plan.started_at_once + number)

    def _start_apart(self, number: int) -> None:
        """Start the transfer of chunk ``number`` of `Plan.started_apart`."""
        at = self._table[(len(self._plan.starts) + number) * _ENTRY]
        self._b.dma(at, fence=Fence())

    def wait_first_rows(self) -> None:
        """Wait for the chunks that the first step needs, except those of `wait_first_weights`."""
        if self._plan.early > self._plan.loads[1]:
            self._b.wait(_LOADED, self._plan.early - self._plan.loads[1])

    def start(self) -> None:
        """Start the transfer of the next chunk."""
        self._b.dma(self._pointer, fence=Fence())

    def wait(self, chunks: int = 1) -> None:
        """Wait for ``chunks`` chunks, which the next step or the rest of the current one needs."""
        self._b.wait(_LOADED, chunks, fence=Fence(before=True))

    def next_waiting_step(self) -> SReg:
        """Advance to the next entry of the table; return the number of steps to the next wait."""
        b = self._b
        found = b.smem_load(self._pointer + DESCRIPTOR_WORDS)
        b.assign(self._pointer, self._pointer + _ENTRY)
        return found

    def end(self) -> None:
        """Wait until all transfers of results are complete."""
        if self.stores is not None:
            self._b.wait(_STORED, self.stores.transfers)
