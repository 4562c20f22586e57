"""Gather and scatter: copies of windows whose positions are read at run time.

Here, a *window* is the slice of the operand that one index vector selects.

The indices are copied to scalar memory, a vector at a time; a loop over them copies one window for
each index vector.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.kernels.elementwise import emit_region, region_refusal
from sim.compiler.kernels.lowering import Lowering, Place, Refusal, lowers, refuses
from sim.compiler.kernels.moving.block import Combine, copy_blocks, nest
from sim.compiler.kernels.moving.copy import Axis, copy, prepared, relayout
from sim.compiler.kernels.moving.movement import clamped
from sim.compiler.machine import Index, SReg, VReg
from sim.compiler.machine.ir import IndexLike
from sim.compiler.tiling import standard

__all__: list[str] = []


@dataclass(frozen=True)
class _Indices:
    """Index vectors of a gather or scatter.

    Attributes
    ----------
    value : Value
        The tensor of indices.
    vector : int
        The tensor's dimension along which an index vector lies; the tensor's rank if indices are
        scalars.
    mapped : tuple of int
        For each element of an index vector, the dimension of the operand in which it is an index.
    batching : tuple of (int, int)
        Pairs of a batching dimension of the operand and the corresponding one of the tensor.
    """

    value: Value
    vector: int
    mapped: tuple[int, ...]
    batching: tuple[tuple[int, int], ...]

    @property
    def batch(self) -> list[int]:
        """All dimensions of the tensor of indices but the one along which index vectors lie."""
        return [d for d in range(len(self.value.shape)) if d != self.vector]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Sizes of the `batch` dimensions."""
        return tuple(self.value.shape[d] for d in self.batch)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Dimensions of the operand that are indexed: the mapped ones, then the batching ones."""
        return (*self.mapped, *(d for d, _ in self.batching))

    def for_each(self, at: Lowering, body: Callable[[Index, list[SReg]], None]) -> None:
        """Write a loop over all index vectors, in order.

        Parameters
        ----------
        at : Lowering
            Receives the code, and knows where the values lie.
        body : callable
            Writes the code for an index vector. Its arguments are the number of the vector, and a
            register for each of `dimensions`: the vector's elements, then the indices of the
            batching dimensions.
        """
        b, lanes = at.builder, at.config.lanes
        count, width = math.prod(self.batch_shape), len(self.dimensions)
        if not width:
            with nest(b, [count], {}) as (k,):
                body(Index.of(k), [])
            return
        stride = 1 << (width - 1).bit_length()
        flat = self._flat(at, stride)
        if stride > lanes:
            vectors = stride // lanes
            with nest(b, [count], {}) as (k,):
                found: list[SReg] = []
                for part in range(-(-width // lanes)):
                    window = at.scalars(flat.buffer, Index.of(k) * vectors + part)
                    found += [b.smem_load(window + word)
                              for word in range(min(lanes, width - part * lanes))]
                body(Index.of(k), found)
            return
        each = lanes // stride
        for first, vectors, size in ((0, count // each, each), (count // each, 1, count % each)):
            if not vectors or not size:
                continue
            with nest(b, [vectors], {}) as (t,):
                vector = Index.of(t) + first
                window = at.scalars(flat.buffer, vector)
                with nest(b, [size], {}) as (k,):
                    body(vector * each + k, [b.smem_load(Index.of(k) * stride + window + word)
                                             for word in range(width)])

    def _flat(self, at: Lowering, stride: int) -> Place:
        """Copy all index vectors, in order, to a one-dimensional value; return its place.

        Each index vector takes ``stride`` elements: its own elements, the indices of the batching
        dimensions, and padding.
        """
        source = at.place(self.value)
        shape = self.batch_shape
        count = math.prod(shape)
        tiling = standard((count * stride,), at.config)
        if stride == 1 and not self.batching and source.tiling == tiling:
            return source
        flat = Place(at.scratch(tiling.vectors), tiling)
        if self.mapped:
            axes, step = [], stride
            for d in reversed(self.batch):
                axes.append(Axis(self.value.shape[d], d, 0, 1, step))
                step *= self.value.shape[d]
            if self.vector < len(self.value.shape):
                axes.insert(0, Axis(len(self.mapped), self.vector, 0))
            copy(at, source, flat, axes)
        for number, (_, along) in enumerate(self.batching, len(self.mapped)):
            row = standard((count,), at.config)
            numbers = np.broadcast_to(np.arange(self.value.shape[along], dtype=np.uint32).reshape(
                [-1 if d == along else 1 for d in self.batch]), shape).reshape(-1)
            copy(at, Place(at.constant(row.pack(numbers)), row), flat,
                 [Axis(count, 0, 0, 1, stride)], ([0], [number]))
        return flat


def _batch_and_window(at: Lowering, place: Place,
                      window: Sequence[int]) -> tuple[Place, list[Axis]]:
    """Return a place in scratch with a single batch dimension, and axes to copy it to ``place``.

    The batch dimension is the first; the dimensions of ``place`` listed in ``window`` follow in
    order. If ``place`` has at most one batch dimension, return ``place`` as it is, with its
    dimensions in their present order, and an empty list.
    """
    shape = place.tiling.shape
    batch = [d for d in range(len(shape)) if d not in window]
    if len(batch) <= 1:
        return place, []
    count = math.prod(shape[d] for d in batch)
    tiling = standard((count, *(shape[d] for d in window)), at.config)
    axes, step = [], 1
    for d in reversed(batch):
        axes.append(Axis(shape[d], 0, d, step))
        step *= shape[d]
    axes += [Axis(shape[d], number, d) for number, d in enumerate(window, 1)]
    return Place(at.scratch(tiling.vectors), tiling), axes


def _swap_sides(axes: Sequence[Axis]) -> list[Axis]:
    return [replace(axis, source=axis.destination, destination=axis.source,
                    source_step=axis.destination_step, destination_step=axis.source_step)
            for axis in axes]


def _batch_start(place: Place, window: Sequence[int], number: Index) -> list[IndexLike]:
    """Return the coordinates of a window's first element in ``place``, which holds all windows.

    The coordinate is 0 in the dimensions of a window, listed in ``window``. In the batch dimension,
    it is ``number``, the number of the index vector that selects the window.
    """
    return [0 if d in window else number for d in range(len(place.tiling.shape))]


@lowers("gather")
def _gather(op: Operation, at: Lowering) -> None:
    operand, attributes = op.operands[0], op.attributes
    sizes, rank = attributes["slice_sizes"], len(operand.shape)
    batching = attributes["operand_batching_dims"]
    indices = _Indices(op.operands[1], attributes["index_vector_dim"],
                       attributes["start_index_map"],
                       tuple(zip(batching, attributes["start_indices_batching_dims"],
                                 strict=True)))
    dropped = {*attributes["collapsed_slice_dims"], *batching}
    result, offset = at.place(op.result), attributes["offset_dims"]
    target, last = _batch_and_window(at, result, offset)
    window = list(range(1, len(offset) + 1)) if last else list(offset)
    kept = [d for d in range(rank) if d not in dropped]
    axes = [Axis(sizes[d], d, new) for d, new in zip(kept, window, strict=True)]
    source = prepared(at, at.place(operand), target.tiling, axes)
    dtype = op.operands[1].dtype

    def copy_window(number: Index, found: list[SReg]) -> None:
        starts: list[IndexLike] = [0] * rank
        for d, start in zip(indices.dimensions, found, strict=True):
            limit = operand.shape[d] - sizes[d]
            starts[d] = clamped(at.builder, start, limit, dtype) if limit else 0
        copy_blocks(at.builder, source, target, axes,
                    (starts, _batch_start(target, window, number)))

    indices.for_each(at, copy_window)
    if last:
        copy(at, target, result, last)


@lowers("scatter")
def _scatter(op: Operation, at: Lowering) -> None:
    count = len(op.results)
    for number, region in enumerate(_separate(op.regions[0], count)):
        _scatter_one(op, at, number, region)


def _separate(region: Graph, count: int) -> list[Graph]:
    """Split a scatter's region into a region for each of the scatter's ``count`` results.

    A region for a result has two inputs: an element of the operand that the scatter changes to this
    result, and an element of the updates of this operand.
    """
    found = []
    for number, output in enumerate(region.outputs):
        wanted, operations = {output}, []
        for operation in reversed(region.operations):
            if wanted & set(operation.results):
                operations.append(operation)
                wanted |= set(operation.operands)
        inputs = [region.inputs[number], region.inputs[count + number]]
        found.append(Graph(inputs, operations[::-1], [output]))
    return found


@refuses("scatter")
def _refused(op: Operation) -> Refusal | None:
    """Refuse a scatter in which a result depends on another result's operand or updates."""
    regions = _separate(op.regions[0], len(op.results))
    read = [{value for operation in region.operations for value in operation.operands}
            | set(region.outputs) for region in regions]
    inputs = set(op.regions[0].inputs)
    if all(values & inputs <= set(region.inputs)
           for values, region in zip(read, regions, strict=True)):
        return region_refusal(op)
    return Refusal("scatter whose function combines several operands",
                   "scatter to each operand by itself")


def _scatter_one(op: Operation, at: Lowering, number: int, region: Graph) -> None:
    b, attributes, count = at.builder, op.attributes, len(op.results)
    operand, update = op.operands[number], op.operands[count + 1 + number]
    batching, rank = attributes["input_batching_dims"], len(operand.shape)
    indices = _Indices(op.operands[count], attributes["index_vector_dim"],
                       attributes["scatter_dims_to_operand_dims"],
                       tuple(zip(batching, attributes["scatter_indices_batching_dims"],
                                 strict=True)))
    dropped = {*attributes["inserted_window_dims"], *batching}
    offset = attributes["update_window_dims"]
    result, source = at.place(op.results[number]), at.place(update)
    relayout(at, at.place(operand), result)
    flat, first = _batch_and_window(at, source, offset)
    window = list(range(1, len(offset) + 1)) if first else list(offset)
    if first:
        copy(at, source, flat, _swap_sides(first))
    sizes = dict(zip((d for d in range(rank) if d not in dropped),
                     (update.shape[d] for d in offset), strict=True))
    places = dict(zip(sizes, window, strict=True))
    # Along these dimensions, a part of a window may lie outside: each element has its own check.
    single = [d for d in sizes if d in indices.mapped and sizes[d] > 1]
    axes = [Axis(size, places[d], d) for d, size in sizes.items() if d not in single]
    flat = prepared(at, flat, result.tiling, axes)
    combine = None if region.outputs == region.inputs[1:] else _combine(at, region)

    def store_window(k: Index, found: list[SReg]) -> None:
        with nest(b, [sizes[d] for d in single], {}) as variables:
            starts: list[IndexLike] = [0] * rank
            inside: SReg | None = None
            begin = _batch_start(flat, window, k)
            for d, start in zip(indices.dimensions, found, strict=True):
                within = Index(0)
                if d in single:
                    within = Index.of(variables[single.index(d)])
                    begin[places[d]] = within
                starts[d] = position = b.value(start + within)
                fits = b.scalar("ltu", position, operand.shape[d])
                inside = fits if inside is None else b.scalar("and", inside, fits)
            if inside is None:
                copy_blocks(b, flat, result, axes, (begin, starts), combine=combine)
                return
            with b.when("ne", inside, 0):
                copy_blocks(b, flat, result, axes, (begin, starts), combine=combine)

    indices.for_each(at, store_window)


def _combine(at: Lowering, region: Graph) -> Combine:
    def combine(old: VReg, new: VReg) -> VReg:
        return emit_region(at.builder, region, [old, new])[0]

    return combine
