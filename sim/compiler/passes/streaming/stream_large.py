"""Writes streams of blocks in place of operations that do not fit vector memory as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import lcm

import numpy as np

from hdl.config import Config
from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.kernels.lowering import choose
from sim.compiler.passes.expansion import Expansion
from sim.compiler.passes.fuse import fuse
from sim.compiler.passes.streaming import elements, indexed, reductions
from sim.compiler.passes.streaming.axes import Axis, Block, axes_of, resized
from sim.compiler.passes.streaming.in_hbm import leave_in_hbm
from sim.compiler.passes.streaming.rewrites import rewrite
from sim.compiler.tiling import standard

__all__ = ["stream_large"]

_RULES = elements, indexed, reductions
"""Modules that register rules of axes when they are imported."""
_SCRATCH = {"sort": 3, "reduce_window": 3, "select_and_scatter": 3, "convolution": 2,
            "phase_convolution": 1, "gather": 1, "scatter": 1, "dot_general": 1,
            "reduce": 1, "reshape": 1, "transpose": 1}
"""Estimated room for a kernel's scratch and for copies in other tilings, as a multiple of the
kernel's largest operand or result."""
_DENSER = frozenset({"dot_general", "line_convolution"})
"""Kinds whose rules choose tilings that may need fewer vectors than the standard tilings."""
_BLOCKS = 16
"""Preferred number of blocks. The first read and the last write of a stream do not overlap with
computation. With few blocks, they take a large share of the time."""
_MOST_PARTS = 8
"""Maximum number of regions of a stream (`_Blocks`): each has code of its own, for blocks of one
shape."""
_SMALLEST = 16
"""Blocks of less than 1/16 of vector memory are not made smaller to get `_BLOCKS` blocks."""


def stream_large(graph: Graph, config: Config, share: int = 1) -> None:
    """Replace operations that do not fit vector memory by streams, including those in regions.

    Parameters
    ----------
    graph : Graph
        The graph; it is changed in place.
    config : Config
        The chip.
    share : int
        Operations may use at most 1/``share`` of vector memory for operands and results; kernels
        need the remaining vectors as scratch.
    """
    leave_in_hbm(graph, config)
    _Streams(config, config.vmem_vectors // share).apply(graph)


class _Way(Enum):
    """The way in which vector memory holds blocks.

    STAGED: there is room for two blocks, so that one is transferred while the other is computed.
    PLAIN: there is room for one block. NESTED: a block does not fit, and is divided into smaller
    blocks.
    """

    STAGED = 0
    PLAIN = 1
    NESTED = 2


@dataclass(frozen=True)
class _Plan:
    """An axis and the size of its blocks.

    ``waste`` is a tuple of costs, of which the first is the most important. Of several plans, the
    one with the smallest ``waste`` is chosen.
    """

    axis: Axis
    size: int
    waste: tuple[int, ...]


class _Streams:
    """Replaces operations that do not fit a given number of vectors; streams take their place."""

    def __init__(self, config: Config, vectors: int) -> None:
        self._config = config
        self._vectors = vectors
        self._scalars: dict[Value, Array] = {}

    def apply(self, graph: Graph) -> None:
        """Replace the operations of a graph that do not fit."""
        operations, graph.operations = graph.operations, []
        replaced: dict[Value, Value] = {}

        def current(value: Value) -> Value:
            while value in replaced:
                value = replaced[value]
            return value

        while operations:
            operation = operations.pop(0)
            operation.operands = tuple(map(current, operation.operands))
            if operation.kind == "constant" and not operation.result.shape:
                self._scalars[operation.result] = operation.attributes["value"]
            if operation.kind in ("while", "case"):
                for region in operation.regions:
                    self.apply(region)
            plan, made = self._plan(operation), Graph()
            results = self._rewrite(operation, made) if plan is None else (
                self._stream(graph, operation, plan))
            operations = [*made.operations, *operations]
            if results is None:
                graph.operations.append(operation)
            else:
                replaced.update(zip(operation.results, results, strict=True))
        graph.outputs = list(map(current, graph.outputs))

    def _rewrite(self, operation: Operation, graph: Graph) -> Sequence[Value] | None:
        """Replace an operation that neither fits nor can be divided.

        The new operations fit or can be divided. Return their results; None if the operation fits,
        or cannot be replaced.
        """
        if not self._can_divide(operation) or self._needed(operation) <= self._vectors:
            return None
        return rewrite(operation, Expansion(graph, operation.location), self._config, self._scalars)

    # The choice of an axis.

    def _plan(self, operation: Operation) -> _Plan | None:
        """Choose a plan to compute an operation block by block.

        None if the operation fits vector memory, or has no plan.
        """
        if not self._can_divide(operation):
            return None
        if self._needed(operation) <= self._vectors or (
                operation.kind in _DENSER and self._chosen(operation) <= self._vectors):
            return None
        plans = [plan for axis in map(self._aligned, axes_of(operation)) for way in _Way
                 if (plan := self._sized(operation, axis, way)) is not None]
        return min(plans, key=lambda plan: plan.waste, default=None)

    @staticmethod
    def _can_divide(operation: Operation) -> bool:
        """Return whether a kernel computes an operation in vector memory; no other is divided."""
        return operation.kind not in (
            "while", "case", "constant", "device_constant", "pod_sum", "stream") and not (
            operation.attributes.get("in_hbm")) and not any(
            0 in value.shape for value in (*operation.operands, *operation.results))

    def _needed(self, operation: Operation) -> int:
        values = dict.fromkeys((*operation.operands, *operation.results))
        return sum(self._size(value.type) for value in values)

    def _chosen(self, operation: Operation) -> int:
        """Return how many vectors operands and results take in the tilings that the kernel needs.

        These tilings are chosen as if the operands were in the standard tiling.
        """
        choice = choose(operation, tuple(standard(value.shape, self._config)
                                         for value in operation.operands), self._config)
        tilings = dict(zip((*operation.operands, *operation.results),
                           (*choice.operands, *choice.results), strict=True))
        return sum(tiling.vectors for tiling in tilings.values())

    def _size(self, kind: TensorType) -> int:
        return standard(kind.shape, self._config).vectors

    def _aligned(self, axis: Axis) -> Axis:
        """If an axis is `loose`, let its operands' parts begin at lane 0; return the new axis.

        Where a part is cut along the lanes, its start moves down to a multiple of ``lanes``, and
        its window grows by the same number. The new axis's ``extra`` has this number for each
        operand. An axis that is not `loose` is returned unchanged.
        """
        if not axis.loose:
            return axis
        inputs, extra = list(axis.inputs), [0] * len(axis.inputs)
        for number, (value, part) in enumerate(inputs):
            if part is not None and part.stride > 0:
                more = extra[number] = part.start % self._tile(value.type, part.along, 1)
                inputs[number] = value, replace(part, start=part.start - more,
                                                window=part.window + more)
        return replace(axis, inputs=tuple(inputs), extra=tuple(extra))

    def _sized(self, operation: Operation, axis: Axis, way: _Way) -> _Plan | None:
        """Choose the size of an axis's blocks so that vector memory holds them as ``way`` says.

        Return None if no size fits.
        """
        unit = self._unit(operation, axis)
        if unit is None or (unit >= axis.size and not _narrows(axis)):
            return None
        unit = min(unit, axis.size)
        whole = sum(self._size(value.type) for value, part in axis.inputs if part is None)
        carried = sum(self._size(value.type) for value, along
                      in zip(operation.results, axis.results, strict=True) if along is None)
        scratch = _SCRATCH.get(operation.kind, 0)
        room = self._vectors * 3 // 4 - whole - (2 + scratch) * carried
        if way is _Way.NESTED:
            if carried > self._vectors // 4:
                return None
            room = self._vectors // 2

        def cost(size: int) -> int:
            blocks = self._blocks(operation, axis, size)
            times = 2 if way is _Way.STAGED else 1
            return times * sum(blocks) + (
                scratch * max(blocks, default=0) if way is not _Way.NESTED else 0)

        if cost(unit) > room and way is not _Way.NESTED:
            return None
        low, high = 1, 1 if axis.smallest else -(-axis.size // unit)
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if cost(middle * unit) <= room else (low, middle)
        most = low * unit
        size = self._pleasant(operation, axis, most, unit)
        if _pads(axis):
            parts = _parts(axis, size)
            if len(parts) > _MOST_PARTS or (
                    not axis.outside and any(part.outside for part in parts)):
                return None
        rest = axis.size % size
        runs = 0 if self._consecutive(operation, axis) else 1
        # Prefer, in this order: no nested loop, no carried results, blocks that do not need their
        # number, consecutive rows, no smaller last block, few blocks.
        return _Plan(axis, size, (way.value, carried, int(axis.numbered), runs, int(rest > 0),
                                  -(-axis.size // size)))

    def _pleasant(self, operation: Operation, axis: Axis, most: int, unit: int) -> int:
        """Choose the size of an axis's blocks: a multiple of ``unit``, at most ``most``.

        The aim is about `_BLOCKS` blocks, if possible all of the same size.
        """
        wanted = max(axis.size // _BLOCKS // unit * unit, unit)
        least = self._vectors // _SMALLEST
        while wanted < most and sum(self._blocks(operation, axis, wanted)) < least:
            wanted += unit
        size = min(wanted, most)
        for even in range(size, size // 2, -unit):
            if axis.size % even == 0:
                return even
        return size

    def _blocks(self, operation: Operation, axis: Axis, size: int) -> list[int]:
        """Return the numbers of vectors that hold a block of ``size`` indices of an axis.

        The list has an item for each operand and each result that the axis divides.
        """
        found = []
        for value, part in axis.inputs:
            if part is not None:
                first, last = part.range(0, size)
                width = min(last - first, value.shape[part.along])
                found.append(self._size(resized(value.type, part.along, width)))
        for value, along in zip(operation.results, axis.results, strict=True):
            if along is not None:
                found.append(self._size(resized(value.type, along, size * axis.scale)))
        return found

    def _unit(self, operation: Operation, axis: Axis) -> int | None:
        """Return the smallest size of an axis's blocks with which all parts begin at whole vectors.

        The multiples of this size have the same property. Return None if no size has it.
        """
        unit = axis.unit
        for value, along in zip(operation.results, axis.results, strict=True):
            if along is not None:
                tile = self._tile(value.type, along, self._config.sublanes)
                unit = lcm(unit, tile // np.gcd(tile, axis.scale))
        for value, part in axis.inputs:
            if part is not None:
                tile = self._tile(value.type, part.along, 1)
                if part.stride > 0:
                    if part.start % tile:
                        return None
                elif tile > 1:
                    return None
                unit = lcm(unit, tile // np.gcd(tile, part.stride))
        return int(unit)

    def _tile(self, kind: TensorType, along: int, sublanes: int) -> int:
        """Return the alignment of blocks along dimension ``along`` of a value of type ``kind``.

        The first index of each block must be a multiple of this number. ``sublanes`` is the
        alignment along the dimension that lies in the sublanes.
        """
        if along == kind.rank - 1:
            return self._config.lanes
        return sublanes if along == kind.rank - 2 else 1

    def _consecutive(self, operation: Operation, axis: Axis) -> bool:
        """Return whether the rows of each of the axis's blocks are consecutive in HBM."""
        cut = [(value.type, part.along) for value, part in axis.inputs if part is not None]
        cut += [(value.type, along) for value, along
                in zip(operation.results, axis.results, strict=True) if along is not None]
        return all(self._is_outermost(kind, along) for kind, along in cut)

    def _is_outermost(self, kind: TensorType, along: int) -> bool:
        tiling = standard(kind.shape, self._config)
        if along == tiling.lane_dimension:
            return tiling.outer == 1
        if along == tiling.sublane_dimension:
            return tiling.outer * tiling.lane_tiles == 1
        return all(size == 1 for size in kind.shape[:along])

    # The stream.

    def _stream(self, graph: Graph, operation: Operation, plan: _Plan) -> Sequence[Value]:
        at = Expansion(graph, operation.location)
        axis = plan.axis
        initial = list(axis.initial(at))
        if axis.numbered:
            initial.append(at.constant(0, DType.S32))
        parts = _parts(axis, plan.size)
        regions = [self._region(operation, axis, initial, part) for part in parts]
        # A carried result has the type of its initial value, in which it is summed.
        sums = iter(initial)
        types = [next(sums).type if along is None else value.type
                 for value, along in zip(operation.results, axis.results, strict=True)]
        if axis.numbered:
            types.append(TensorType((), DType.S32))
        made = graph.add("stream", [*(value for value, _ in axis.inputs), *initial], types, {
            "counts": tuple(part.count for part in parts),
            "operand_dimensions": tuple(-1 if part is None else part.along
                                        for _, part in axis.inputs),
            "result_dimensions": (*(-1 if along is None else along for along in axis.results),
                                  *([-1] if axis.numbered else [])),
            "starts": tuple(part.starts for part in parts),
            "steps": tuple(part.steps for part in parts)}, regions, operation.location).results
        return [at.convert(result, value.dtype) for result, value
                in zip(made, operation.results, strict=False)]

    def _region(self, operation: Operation, axis: Axis, initial: Sequence[Value],
                part: "_Blocks") -> Graph:
        region = Graph(name="block")
        for (value, cut), width in zip(axis.inputs, part.widths, strict=True):
            region.inputs.append(Value(value.type if cut is None else resized(
                value.type, cut.along, width)))
        carried = [Value(value.type) for value in initial]
        region.inputs += carried
        at = Expansion(region, operation.location)
        first = carried.pop() if axis.numbered else None
        made = axis.write(at, region.inputs[:len(axis.inputs)],
                          Block(part.size, part.padding, first, tuple(carried), axis.extra))
        region.outputs = list(made)
        if first is not None:
            region.outputs.append(at.binary("add", first, at.constant(part.size, DType.S32)))
        fuse(region, self._config)
        self.apply(region)
        return region


# Blocks.


def _narrows(axis: Axis) -> bool:
    """Return whether an operand has indices that no block of the axis needs."""
    return any(part is not None and part.range(0, axis.size)[1] - part.range(0, axis.size)[0]
               < value.shape[part.along] for value, part in axis.inputs)


def _pads(axis: Axis) -> bool:
    """Return whether blocks of the axis need indices outside of an operand, that is, padding."""
    return any(part is not None and (
        part.range(0, axis.size)[0] < 0 or part.range(0, axis.size)[1] > value.shape[part.along])
        for value, part in axis.inputs)


@dataclass
class _Blocks:
    """Successive blocks of one shape, at equal distances.

    Attributes
    ----------
    size, count : int
        Number of axis indices in a block, and number of blocks.
    starts, steps, widths : tuple of int
        For each operand: the first index of the first block's part, the distance between the parts
        of successive blocks, and the number of indices of a part. All three are 0 for an operand
        that each block uses as a whole.
    padding : tuple of (int, int)
        For each operand, how many of the indices that a block needs lie before the operand's first
        index, and how many after its last.
    outside : bool
        Whether a block's part of at least one operand consists of padding alone.
    """

    size: int
    count: int
    starts: tuple[int, ...]
    steps: tuple[int, ...]
    widths: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    outside: bool


def _parts(axis: Axis, size: int) -> list[_Blocks]:
    """Divide an axis into blocks of at most ``size`` indices.

    Successive blocks that have the same shape and are equally spaced form one `_Blocks`.
    """
    found: list[_Blocks] = []
    for first in range(0, axis.size, size):
        new = _block(axis, first, min(size, axis.size - first))
        last = found[-1] if found else None
        if last is None or (last.size, last.widths, last.padding) != (
                new.size, new.widths, new.padding):
            found.append(new)
            continue
        steps = tuple(b - a for a, b in zip(last.starts, new.starts, strict=True))
        if last.count == 1:
            last.steps, last.count = steps, 2
        elif steps == tuple(last.count * step for step in last.steps):
            last.count += 1
        else:
            found.append(new)
    return found


def _block(axis: Axis, first: int, size: int) -> _Blocks:
    starts, widths, padding, outside = [], [], [], False
    for value, part in axis.inputs:
        if part is None:
            starts.append(0)
            widths.append(0)
            padding.append((0, 0))
            continue
        low, high = part.range(first, size)
        extent = value.shape[part.along]
        inside = min(max(low, 0), extent - 1), max(min(high, extent), 1)
        # A part that consists of padding alone becomes one element, which the block does not use.
        out = high <= 0 or low >= extent
        outside |= out
        begin, end = (0, 1) if out else inside
        starts.append(begin)
        widths.append(end - begin)
        padding.append((max(-low, 0) if high > 0 else high - low, max(high - extent, 0)
                        if low < extent else high - low))
    return _Blocks(size, 1, tuple(starts), (0,) * len(starts), tuple(widths), tuple(padding),
                   outside)


