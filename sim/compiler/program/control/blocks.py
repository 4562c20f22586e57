"""Code of streams: loops over blocks of operands in HBM.

Each region of a stream becomes one loop, which executes the region once for each of its blocks.
The blocks of a loop have the same shape. The loops follow one another.

While one block is computed, the next block is read to *staging* vectors, and the results of the
previous block are written from staging vectors to HBM. Kernels always work on the same vectors, so
there is one copy of their code. Copying blocks between these vectors and staging vectors takes at
most an eighth of the transfers' time.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from hdl.isa import Slot
from sim.asm.operands import s, sem
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.machine import VmemBuffer
from sim.compiler.program.code.reserved import BLOCK_READ, BLOCK_WRITTEN, WORK
from sim.compiler.program.code.transfers import Rows, Vectors
from sim.compiler.program.context import Context
from sim.compiler.program.control.counters import advance
from sim.compiler.program.control.loops import move_vectors
from sim.compiler.program.places.places import Home, Splat, VectorMemoryError
from sim.compiler.program.tilings import CONTROL
from sim.compiler.tiling import Tiling

__all__ = ["BlockLoops", "Host", "cut_rows"]

_ROOM = 8
"""Staging vectors must leave at least 1/8 of vector memory for kernels."""


class Host(Protocol):
    """Interface through which `BlockLoops` writes regions; `ControlFlow` implements it."""

    fixed: set[Value]

    def write(self, graph: Graph, early: Mapping[Value, Sequence[Rows]]) -> None:
        """Write the code of a graph's operations.

        ``early`` maps values to the HBM rows to which each is copied as soon as it is computed.
        """

    def fill(self, values: Mapping[VmemBuffer, Value]) -> None:
        """Write code that copies values to buffers in vector memory, and waits for the copies.

        The copies act as if they were simultaneous: a destination may hold a value that is copied
        to another destination.
        """


def cut_rows(home: Rows, tiling: Tiling, along: int, size: int, start: int,
             term: tuple[int, int] | None = None, *, exact: bool = False) -> Rows:
    """Return the HBM rows of a block: a value's elements in a range of indices of one dimension.

    Parameters
    ----------
    home : Rows
        Rows of the whole value.
    tiling : Tiling
        The value's tiling, which must be standard.
    along : int
        Dimension along which the block is a range.
    size, start : int
        Size of the block along that dimension, and its first index.
    term : tuple of (int, int), optional
        Pair (address, factor): the word of scalar memory at the address, times the factor, is added
        to ``start`` while the program runs.
    exact : bool
        Whether to leave out the rows of padding at the end of each column of tiles.
    """
    sizes = tiling.shape[:max(len(tiling.shape) - 2, 0)]
    strides = home.strides or _strides(sizes, tiling)
    tile = 1
    if along == tiling.lane_dimension:
        unit, tile = strides[-1], tiling.lanes
    else:
        unit = 1 if along == tiling.sublane_dimension else strides[along]
    assert start % tile == 0, (start, tile)
    moved = home.moved(start // tile * unit,
                       None if term is None else (term[0], term[1] // tile * unit))
    shape = (*tiling.shape[:along], size, *tiling.shape[along + 1:])
    block = Tiling(shape, tiling.order, tiling.along_lanes, tiling.sublanes, tiling.lanes)
    counts = (*shape[:len(sizes)], block.lane_tiles)
    # The rows of a column of tiles are consecutive, so they form one run. Columns and dimensions
    # that are consecutive, too, extend the run. In a value of one dimension, all sublanes are
    # equal.
    run = block.row_tiles * block.sublanes
    if exact and block.sublane_dimension is not None:
        run = block.rows
    levels: list[tuple[int, int]] = []
    for count, stride in reversed(list(zip(counts, strides, strict=True))):
        if exact:
            levels.insert(0, (count, stride))
        elif count == 1:
            continue
        elif not levels and stride == run:
            run *= count
        elif levels and stride == levels[0][0] * levels[0][1]:
            levels[0] = count * levels[0][0], levels[0][1]
        else:
            levels.insert(0, (count, stride))
    return replace(moved, run=run if levels else 0, levels=tuple(levels), strides=strides)


def _strides(sizes: Sequence[int], tiling: Tiling) -> tuple[int, ...]:
    """Return the distances, in rows, between consecutive indices of each outer dimension.

    ``sizes`` are the sizes of these dimensions in a value of tiling ``tiling``. The last item of
    the result is the distance between consecutive columns of tiles.
    """
    found = [tiling.row_tiles * tiling.sublanes]
    step = found[0] * tiling.lane_tiles
    for size in reversed(sizes):
        found.insert(0, step)
        step *= size
    return tuple(found)


class BlockLoops:
    """Writes the code of a stream.

    Here, a *part* of a stream is what one of its regions computes: consecutive blocks of equal
    shapes, in one loop.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    host : Host
        Writes the code of one block: a region of the stream.
    operation : Operation
        The stream; its operands must have homes.
    results : sequence of Rows or None
        HBM rows of each result; None for a result that is carried from block to block.
    """

    def __init__(self, context: Context, host: Host, operation: Operation,
                 results: Sequence[Rows | None]) -> None:
        self._context = context
        self._host = host
        self._places = context.places
        self._stream = context.stream
        self._operation = operation
        self._attributes: Mapping[str, Any] = operation.attributes
        self._cut = self._attributes["operand_dimensions"]
        self._results = results
        # Buffers of operands that are not divided and of carried values, by number of the input.
        self._held: dict[int, VmemBuffer] = {}

    def write(self) -> list[VmemBuffer | None]:
        """Write the stream; return the buffer of each carried result, None for other results.

        The caller must have evicted all values that are not pinned from vector memory.
        """
        operation, places = self._operation, self._places
        leaf = all(_is_leaf(region) for region in operation.regions)
        for number, value in enumerate(operation.operands):
            carried = number >= len(self._cut)
            if not carried and (self._cut[number] >= 0 or not leaf
                                or isinstance(places.homes[value], Splat)):
                continue
            self._held[number] = places.allocate("held", self._context.tilings[value].vectors)
            places.load_to(value, self._held[number])
        places.memory.wait_all()
        places.memory.settle(self._held.values())
        done = [0] * len(operation.results)
        for part, region in enumerate(operation.regions):
            self._part(part, region, done)
            for number, along in enumerate(self._attributes["result_dimensions"]):
                if along >= 0:
                    done[number] += (self._attributes["counts"][part]
                                     * region.outputs[number].shape[along])
        for number in range(len(self._cut)):
            if number in self._held:
                places.memory.release(self._held[number])
        carried_buffers = iter(range(len(self._cut), len(operation.operands)))
        return [self._held[next(carried_buffers)] if rows is None else None
                for rows in self._results]

    # ---- loops

    def _part(self, part: int, region: Graph, done: Sequence[int]) -> None:
        """Write the loop over the blocks of part number ``part`` of the stream.

        ``done`` has, for each result, the number of indices along its divided dimension that the
        loops of earlier parts have computed.
        """
        host, count = self._host, self._attributes["counts"][part]
        now, ahead = self._context.counters.take(2)
        once = count == 1
        sources = self._sources(part, region, None if once else now)
        wanted = self._wanted(region, done, None if once else now)
        for number, home in sources.items():
            self._places.homes[region.inputs[number]] = home
        for number, buffer in self._held.items():
            self._places.pin(region.inputs[number], buffer)
            if number < len(self._cut):
                host.fixed.add(region.inputs[number])
        staged = None
        if not once and _is_leaf(region):
            later = {number: home for number, home in self._sources(part, region, ahead).items()
                     if isinstance(home, Rows)}
            with suppress(VectorMemoryError):
                staged = _Staging(self._context, host, region, later, wanted)
        if staged is None:
            self._loop(count, now, lambda: host.write(region, _by_value(region, wanted)), region)
        else:
            staged.start(count, ahead)
            self._loop(count, now, lambda: staged.block(count, ahead), region)
            staged.finish()
        for buffer in self._held.values():
            self._places.unpin(buffer)
        self._context.counters.give(2)

    def _sources(self, part: int, region: Graph, counter: int | None) -> dict[int, Home]:
        """Return the home of the block that each operand has in one iteration, by operand number.

        The loop is that for ``region``, region number ``part``. An operand that is not divided has
        its own home. Operands that stay in vector memory are left out. ``counter`` is the address
        of the word that counts the loop's blocks; None if there is one block.
        """
        starts, steps = self._attributes["starts"][part], self._attributes["steps"][part]
        found: dict[int, Home] = {}
        for number, along in enumerate(self._cut):
            if number in self._held:
                continue
            value = self._operation.operands[number]
            home = self._places.homes[value]
            if along >= 0 and isinstance(home, Rows):
                home = cut_rows(home, self._context.tilings[value], along,
                                region.inputs[number].shape[along], starts[number],
                                None if counter is None else (counter, steps[number]))
            found[number] = home
        return found

    def _wanted(self, region: Graph, done: Sequence[int], counter: int | None) -> dict[int, Rows]:
        """Return the HBM rows of each result's block, by result number; leave out carried results.

        ``region`` computes one block. ``done`` is as in `_part`. ``counter`` is the address of the
        word that counts the loop's blocks; None if there is one block.
        """
        found = {}
        for number, along in enumerate(self._attributes["result_dimensions"]):
            rows = self._results[number]
            if rows is not None:
                size = region.outputs[number].shape[along]
                found[number] = cut_rows(
                    rows, self._context.tilings[self._operation.results[number]], along, size,
                    done[number], None if counter is None else (counter, size))
        return found

    def _loop(self, count: int, counter: int, block: Callable[[], None], region: Graph) -> None:
        """Write a loop over ``count`` blocks; ``counter`` is the address of its counter.

        Each iteration runs the code that ``block`` writes, which computes a block by ``region``,
        and then updates the carried values.
        """
        stream, again = self._stream, self._stream.label("block")
        if count > 1:
            stream.bundle((Slot.S0, "store", (s[0], s[0], counter)))
        stream.bind(again)
        block()
        carried = [number for number in self._held if number >= len(self._cut)]
        outputs = [value for value, rows in zip(region.outputs, self._results, strict=True)
                   if rows is None]
        self._host.fill({self._held[number]: value
                         for number, value in zip(carried, outputs, strict=True)
                         if value is not region.inputs[number]})
        self._places.evict_all(lambda value: False)
        if count > 1:
            advance(stream, counter)
            stream.branch("blt", WORK.number, count, again)


class _Staging:
    """Double buffers for a loop over blocks of a stream.

    There is a pair for each operand whose blocks are loaded, and for each result that is not
    carried. Kernels use one buffer of a pair; transfers from or to HBM use the other.

    Raises
    ------
    VectorMemoryError
        If vector memory has too little room; no vectors are allocated then.
    """

    def __init__(self, context: Context, host: Host, region: Graph, sources: Mapping[int, Rows],
                 wanted: Mapping[int, Rows]) -> None:
        self._context = context
        self._places = context.places
        self._stream = context.stream
        self._host = host
        self._region = region
        self._sources = sources
        self._wanted = wanted
        self._reads = sum(rows.transfers for rows in sources.values())
        self._writes = sum(rows.transfers for rows in wanted.values())
        self._taken: list[VmemBuffer] = []
        self._require_room()
        outputs = [region.outputs[number] for number in wanted]
        try:
            self._read = {number: self._take_pair(region.inputs[number]) for number in sources}
            self._written = {number: self._take_pair(value)
                             for number, value in zip(wanted, outputs, strict=True)}
        except VectorMemoryError:
            self._release()
            raise
        # Results that kernels write directly to the vectors of the block that is computed.
        self._direct = {
            value: self._written[number][0] for number, value in zip(wanted, outputs, strict=True)
            if value not in region.inputs and region.outputs.count(value) == 1}

    def _require_room(self) -> None:
        """Raise `VectorMemoryError` if staging leaves too few vectors for kernels."""
        region, context = self._region, self._context
        needed = 2 * sum(context.tilings[value].vectors for value in (
            *(region.inputs[number] for number in self._sources),
            *(region.outputs[number] for number in self._wanted)))
        if needed > self._places.memory.free_vectors - context.config.vmem_vectors // _ROOM:
            raise VectorMemoryError

    def _take_pair(self, value: Value) -> tuple[VmemBuffer, VmemBuffer]:
        """Allocate two buffers for a block of a value: one for computation, one for transfer."""
        return self._take(value), self._take(value)

    def _take(self, value: Value) -> VmemBuffer:
        buffer = self._places.allocate("block", self._context.tilings[value].vectors)
        self._taken.append(buffer)
        return buffer

    def _release(self) -> None:
        for buffer in self._taken:
            self._places.memory.release(buffer)

    def start(self, count: int, ahead: int) -> None:
        """Write the code that starts the transfers of the first block; it stands before the loop.

        ``count`` is the number of blocks, ``ahead`` the address of the counter of blocks read.
        """
        stream = self._stream
        stream.bundle((Slot.S0, "store", (s[0], s[0], ahead)))
        self._start_reads()
        if self._written:
            stream.bundle((Slot.MISC, "signal", (sem[BLOCK_WRITTEN], self._writes)))

    def finish(self) -> None:
        """Write the code after the loop; this code waits until the last results are written."""
        if self._written:
            self._stream.wait(BLOCK_WRITTEN, self._writes)
        self._release()

    def block(self, count: int, ahead: int) -> None:
        """Write the loop's body, which computes one block and starts to read the next one.

        ``count`` is the number of blocks, ``ahead`` the address of the counter of blocks read.
        """
        places, stream = self._places, self._stream
        if self._read:
            stream.wait(BLOCK_READ, self._reads)
            self._copy({work: stage for stage, work in self._read.values()})
            end = stream.label("read")
            advance(stream, ahead)
            stream.branch("bge", WORK.number, count, end)
            self._start_reads()
            stream.bind(end)
        for number, (_, work) in self._read.items():
            places.homes.pop(self._region.inputs[number], None)
            places.pin(self._region.inputs[number], work)
        places.assigned.update(self._direct)
        self._host.write(self._region, {})
        self._host.fill({self._written[number][0]: self._region.outputs[number]
                   for number in self._written
                   if places.buffer(self._region.outputs[number]) != self._written[number][0]})
        if self._written:
            stream.wait(BLOCK_WRITTEN, self._writes)
            self._copy({stage: work for work, stage in self._written.values()})
        for number, (_, stage) in self._written.items():
            places.memory.start_transfer(Vectors(stage.address), self._wanted[number],
                                         self._rows(stage), BLOCK_WRITTEN)
        for value in self._direct:
            places.assigned.pop(value, None)
            if value in places.pinned:
                places.unpin(places.pinned[value])
        for _, work in self._read.values():
            places.unpin(work)

    def _start_reads(self) -> None:
        for number, (stage, _) in self._read.items():
            self._places.memory.start_transfer(self._sources[number], Vectors(stage.address),
                                               self._rows(stage), BLOCK_READ)

    def _rows(self, stage: VmemBuffer) -> int:
        return stage.vectors * self._context.config.sublanes

    def _copy(self, moves: Mapping[VmemBuffer, VmemBuffer]) -> None:
        code = move_vectors(moves, self._context.config)
        if code is not None:
            self._stream.kernel(code)


def _is_leaf(region: Graph) -> bool:
    return not any(operation.kind in CONTROL for operation in region.operations)


def _by_value(region: Graph, wanted: Mapping[int, Rows]) -> dict[Value, list[Rows]]:
    found: dict[Value, list[Rows]] = {}
    for number, rows in wanted.items():
        found.setdefault(region.outputs[number], []).append(rows)
    return found
