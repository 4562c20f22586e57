"""Reductions: any reducer, over any dimensions.

Vector operations first combine all vectors that contribute to the same vector of the result, in
several accumulators. Then rotations combine the sublanes of this vector, and the cross-lane unit's
tree or rotations combine its lanes. The order of operations is fixed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from hdl.config import Config
from sim.compiler.graph.ir import DType, Operation
from sim.compiler.graph.semantics.reductions import reducer_kind
from sim.compiler.kernels.elementwise import emit_region
from sim.compiler.kernels.lowering import Choice, Lowering, chooses, lowers
from sim.compiler.kernels.moving.block import coalesce, nest, outer_strides
from sim.compiler.kernels.moving.span import divide, source_of
from sim.compiler.machine import Index, LoopVariable, MReg, VReg
from sim.compiler.tiling import Tiling, standard

__all__ = ["Reducer", "identity"]

_ACCUMULATORS = 4
"""Number of accumulators of a reduction of one operand. An addition takes 4 cycles: with four
accumulators, an addition can start in each cycle."""


def identity(kind: str, dtype: DType) -> int:
    """Return the word of the neutral element of reducer ``kind`` for elements of type ``dtype``.

    Combining an element with the neutral element leaves the element unchanged. ``kind`` is `add`,
    `multiply`, `maximum`, `minimum`, `and`, `or` or `xor`.
    """
    one = 0x3F800000 if dtype.is_float else 1
    low, high = {DType.S32: (0x80000000, 0x7FFFFFFF), DType.U32: (0, 0xFFFFFFFF)}.get(
        dtype, (0xFF800000, 0x7F800000) if dtype.is_float else (0, 1))
    if dtype in (DType.S8, DType.S16):
        high = (1 << (dtype.bits - 1)) - 1
        low = -1 - high & 0xFFFFFFFF
    elif dtype in (DType.U8, DType.U16):
        high = (1 << dtype.bits) - 1
    return {"add": 0x80000000 if dtype.is_float else 0, "multiply": one, "maximum": low,
            "minimum": high, "or": 0, "xor": 0,
            "and": high if dtype is DType.PRED or not dtype.is_signed else 0xFFFFFFFF}[kind]


class Reducer:
    """Writes code that combines vectors with the reducer of an operation.

    Sequences of vectors, such as `initial`, have one vector for each input of the operation. Sums
    and products of bf16 numbers are computed in fp32, until `finish` rounds them.

    Parameters
    ----------
    op : Operation
        The operation. Its operands are the inputs, followed by an initial value for each; its first
        region is the reducer.
    at : Lowering
        Receives the code, and knows where the values lie.
    """

    def __init__(self, op: Operation, at: Lowering) -> None:
        self._b = at.builder
        self._region = op.regions[0]
        count = len(op.operands) // 2
        self.dtype = op.operands[0].dtype
        self.kind = reducer_kind(self._region)
        self._wide = self.dtype is DType.BF16 and self.kind in ("add", "multiply")
        self.initial: list[VReg] = [self._b.load(at.place(value).buffer, 0)
                                    for value in op.operands[count:]]
        """The initial values, as vectors with all elements equal."""
        self.neutral = self.initial
        """The neutral values, as vectors; for a reducer of unknown kind, the initial values."""
        if self.kind is not None:
            self.neutral = [self._b.splat(identity(self.kind, self.dtype))]

    def __call__(self, left: Sequence[VReg], right: Sequence[VReg]) -> list[VReg]:
        """Combine two tuples of vectors, ``left`` and ``right``, element by element."""
        if self._wide:
            name = "fadd" if self.kind == "add" else "fmul"
            return [self._b.vector(name, left[0], right[0])]
        return emit_region(self._b, self._region, [*left, *right])

    def finish(self, total: Sequence[VReg]) -> list[VReg]:
        """Combine the initial values with ``total``; round sums and products of bf16 numbers."""
        combined = self(self.initial, total)
        return [self._b.vector("bf16", vector) for vector in combined] if self._wide else combined

    def where(self, mask: MReg | None, vectors: Sequence[VReg]) -> list[VReg]:
        """Return ``vectors`` with neutral values where ``mask`` is 0; None changes no element."""
        if mask is None:
            return list(vectors)
        return [self._b.vector("select", vector, neutral, mask)
                for vector, neutral in zip(vectors, self.neutral, strict=True)]

    def sublanes(self, vectors: Sequence[VReg]) -> list[VReg]:
        """Combine all sublanes of ``vectors``; every sublane of the result holds the total."""
        return self._rotated(list(vectors), "sublane", self._b.config.sublanes)

    def lanes(self, vectors: Sequence[VReg]) -> list[VReg]:
        """Combine all lanes of ``vectors``; every lane of the result holds the total."""
        b = self._b
        if self.kind == "add" and self.dtype.is_float:
            return [b.cross("sum_lanes", vectors[0])]
        if self.kind == "maximum" and self.dtype.is_float:
            return [b.cross("max_lanes", vectors[0])]
        if self.kind == "minimum" and self.dtype.is_float:
            return [b.vector("fneg", b.cross("max_lanes", b.vector("fneg", vectors[0])))]
        return self._rotated(list(vectors), "lane", b.config.lanes)

    def _rotated(self, vectors: list[VReg], along: str, size: int) -> list[VReg]:
        def rotated(distance: int) -> list[VReg]:
            return [self._b.cross(f"rotate_{along}s", vector, distance) for vector in vectors]

        if size & (size - 1):
            total, given = vectors, vectors
            for _ in range(size - 1):
                given = [self._b.cross(f"rotate_{along}s", vector, 1) for vector in given]
                total = self(total, given)
            vectors = total
        else:
            distance = size // 2
            while distance:
                # Partial results repeat every 2 * distance: rotating either way gives the same
                # result. Backwards, the cross-lane unit skips fewer sublanes.
                backwards = along == "sublane" and self.kind is not None
                vectors = self(vectors, rotated(size - distance if backwards else distance))
                distance //= 2
            if self.kind is not None:
                return vectors
        # Each lane combines the elements in a different order; lane 0's result becomes that of all.
        return [self._b.cross(f"broadcast_{along}", vector, 0) for vector in vectors]


def result_tiling(operand: Tiling, dimensions: Sequence[int]) -> Tiling:
    """Return the tiling of the result of a reduction over ``dimensions`` of an operand."""
    kept = [d for d in range(len(operand.shape)) if d not in dimensions]
    order = tuple(kept.index(d) for d in operand.order if d in kept)
    return replace(operand, shape=tuple(operand.shape[d] for d in kept), order=order,
                   along_lanes=operand.lane_dimension in kept)


@chooses("reduce")
def _tilings(op: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    count = len(operands) // 2
    given = operands[:count]
    tiling = given[0] if len(set(given)) == 1 else standard(given[0].shape, config)
    result = result_tiling(tiling, op.attributes["dimensions"])
    return Choice((tiling,) * count + (standard((), config),) * count, (result,) * count)


@lowers("reduce")
def _reduce(op: Operation, at: Lowering) -> None:
    _Reduction(op, at).write()


class _Reduction:
    """Writes the loops of a reduction."""

    def __init__(self, op: Operation, at: Lowering) -> None:
        self._b = b = at.builder
        count = len(op.results)
        self._operands = [at.place(value) for value in op.operands[:count]]
        self._results = [at.place(value) for value in op.results]
        self._reducer = Reducer(op, at)
        self._old, self._new = self._operands[0].tiling, self._results[0].tiling
        self._dimensions = op.attributes["dimensions"]
        self._kept = [d for d in range(len(self._old.shape)) if d not in self._dimensions]
        self._counts: dict[LoopVariable, int] = {}
        old = self._old
        lanes = old.lane_dimension in self._dimensions and old.columns % old.lanes
        rows = old.sublane_dimension in self._dimensions and old.rows % old.sublanes
        self._lane_mask = b.compare("lt", b.vector("lane"), lanes) if lanes else None
        self._row_mask = b.compare("lt", b.vector("sublane"), rows) if rows else None
        self._both = b.mask("mand", self._lane_mask, self._row_mask) if lanes and rows else None
        self._sublane: VReg | None = None
        if self._scattered:
            self._sublane = b.vector("sublane")

    @property
    def _scattered(self) -> bool:
        """Whether an outer dimension of the operand runs along the result's sublanes."""
        new = self._new.sublane_dimension
        return new is not None and self._kept[new] != self._old.sublane_dimension

    def write(self) -> None:
        """Write loops over the kept dimensions around loops over the reduced ones."""
        old, new = self._old, self._new
        outer = [d for d in old.outer_dimensions if d in self._kept]
        lane_kept = old.lane_dimension is not None and old.lane_dimension in self._kept
        row_kept = old.sublane_dimension is not None and old.sublane_dimension in self._kept
        sizes = [old.shape[d] for d in outer]
        sizes += [old.lane_tiles if lane_kept else 1, old.row_tiles if row_kept else 1]
        strides, target = outer_strides(old), outer_strides(new)
        with nest(self._b, sizes, self._counts) as variables:
            source, destination, row = Index(0), Index(0), Index(0)
            for d, variable in zip(outer, variables, strict=False):
                source = source + Index.of(variable) * strides[d]
                if self._kept.index(d) == new.sublane_dimension:
                    row = Index.of(variable)
                else:
                    destination = destination + Index.of(variable) * target[self._kept.index(d)]
            lane_tile, row_tile = Index.of(variables[-2]), Index.of(variables[-1])
            source = source + lane_tile * old.row_tiles + row_tile
            mask = None
            if self._scattered:
                assert self._sublane is not None
                row_tile, within = divide(self._b, row, new.sublanes)
                if new.rows > 1:
                    mask = self._b.compare("eq", self._sublane, source_of(within))
            destination = destination + lane_tile * new.row_tiles + row_tile
            for place, vector in zip(self._results, self._value(source), strict=True):
                self._b.store(vector, place.buffer, destination, mask)

    def _value(self, first: Index) -> list[VReg]:
        """Write code that computes one vector of each result; return these vectors.

        ``first`` is the index of the operand's first vector that contributes to them.
        """
        old, reducer = self._old, self._reducer
        loops = [(old.shape[d], (stride, stride)) for d, stride in outer_strides(old).items()
                 if d in self._dimensions]
        lanes = self._pieces(old.lane_dimension, old.columns, old.lanes)
        rows = self._pieces(old.sublane_dimension, old.rows, old.sublanes)
        total: list[VReg] | None = None
        for (lane, lane_count, ragged), (row, row_count, short) in product(lanes, rows):
            part = self._accumulate(first + lane * old.row_tiles + row, [
                *loops, (lane_count, (old.row_tiles, old.row_tiles)), (row_count, (1, 1))])
            mask = self._both if ragged and short else (
                self._lane_mask if ragged else self._row_mask if short else None)
            part = reducer.where(mask, part)
            total = part if total is None else reducer(total, part)
        assert total is not None
        if old.sublane_dimension in self._dimensions:
            total = reducer.sublanes(total)
        if old.lane_dimension in self._dimensions:
            total = reducer.lanes(total)
        return reducer.finish(total)

    def _pieces(self, dimension: int | None, size: int,
                unit: int) -> list[tuple[int, int, bool]]:
        """Divide the tiles of a tiled dimension into full tiles and a padded one.

        ``dimension`` has ``size`` elements, in tiles of ``unit`` lanes or sublanes. Returns a list
        of ranges of tiles to combine: (first tile, number of tiles, whether they contain padding).
        If the dimension is kept or None, the list is [(0, 1, False)]: loops around this code visit
        the other tiles, and padding becomes padding of the result.
        """
        if dimension not in self._dimensions:
            return [(0, 1, False)]
        full, rest = divmod(size, unit)
        return ([(0, full, False)] if full else []) + ([(full, 1, True)] if rest else [])

    def _accumulate(self, first: Index,
                    loops: list[tuple[int, tuple[int, int]]]) -> list[VReg]:
        """Write loops that combine vectors of each operand, element by element; return the totals.

        The loops start at the operands' vector ``first``. ``loops`` has the format of `coalesce`:
        (number of iterations, (stride, stride)), with two equal strides in vectors.
        """
        b, reducer = self._b, self._reducer
        loops = coalesce(loops)
        if not loops:
            return self._load(first)
        *around, (count, (stride, _)) = loops
        width = min(count, _ACCUMULATORS if len(self._operands) == 1 else 2)
        totals = [[b.variable(vector) for vector in reducer.neutral] for _ in range(width)]

        def add(number: int, index: Index) -> None:
            combined = reducer(totals[number], self._load(index))
            for variable, value in zip(totals[number], combined, strict=True):
                b.assign(variable, value)

        with nest(b, [size for size, _ in around], self._counts) as variables:
            for variable, (_, (step, _)) in zip(variables, around, strict=True):
                first = first + Index.of(variable) * step
            with nest(b, [count // width], self._counts) as (i,):
                for number in range(width):
                    add(number, first + Index.of(i) * (width * stride) + number * stride)
            for number in range(count % width):
                add(number, first + (count - count % width + number) * stride)
        while len(totals) > 1:
            half = (len(totals) + 1) // 2
            totals = [reducer(totals[i], totals[i + half]) if i + half < len(totals)
                      else totals[i] for i in range(half)]
        return totals[0]

    def _load(self, index: Index) -> list[VReg]:
        return [self._b.load(place.buffer, index) for place in self._operands]
