"""Sort: a bitonic network along the lanes (K. E. Batcher, AFIPS 1968).

Operands are copied to a tiling in which the sorted dimension runs along the lanes. The index of
each element is sorted along with the element. Equal elements are ordered by their indices, which
makes the sort stable. Padding is recognised by its indices, and sorted to the end.
"""

from collections.abc import Sequence

from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.elementwise import emit_region
from sim.compiler.kernels.lowering import Lowering, Place, lowers
from sim.compiler.kernels.moving.block import nest
from sim.compiler.kernels.moving.copy import Axis, copy
from sim.compiler.machine import Index, MReg, SReg, VReg
from sim.compiler.tiling import Tiling

__all__: list[str] = []


@lowers("sort")
def _sort(op: Operation, at: Lowering) -> None:
    _Sort(op, at).write()


class _Sort:
    """Writes the code of a sort.

    The index of an element along the sorted dimension is lanes * tile + lane.
    """

    def __init__(self, op: Operation, at: Lowering) -> None:
        self._op, self._at, self._b = op, at, at.builder
        shape, dimension = op.operands[0].shape, op.attributes["dimension"]
        self._length = shape[dimension]
        self._stages = (self._length - 1).bit_length()
        lanes = at.config.lanes
        if lanes & (lanes - 1):
            raise ValueError(f"lanes must be a power of two for a sort, not {lanes!r}")
        wide = [1 << self._stages if d == dimension else size for d, size in enumerate(shape)]
        order = [d for d in range(len(shape)) if d != dimension] + [dimension]
        self._tiling = Tiling(tuple(wide), tuple(order), True, at.config.sublanes, lanes)
        self._within = min(self._stages, lanes.bit_length() - 1)
        # Copies of the operands; then, the index of each element along the sorted dimension.
        self._places = [Place(at.scratch(self._tiling.vectors), self._tiling)
                        for _ in range(len(op.operands) + 1)]
        self._lane = self._b.vector("lane")

    def write(self) -> None:
        """Write the code of the sort."""
        axes = [Axis(size, d, d) for d, size in enumerate(self._op.operands[0].shape)]
        for value, place in zip(self._op.operands, self._places, strict=False):
            copy(self._at, self._at.place(value), place, axes)
        if self._stages:
            self._number()
            with self._b.loop(self._stages) as stage:
                self._merge(self._b.value(stage + 1))
        for value, place in zip(self._op.results, self._places, strict=False):
            copy(self._at, place, self._at.place(value), axes)

    def _number(self) -> None:
        b, tiling = self._b, self._tiling
        with nest(b, [tiling.outer, tiling.lane_tiles, tiling.row_tiles], {}) as (o, t, r):
            vector = b.vector("add", self._lane, b.value(Index.of(t) * tiling.lanes))
            b.store(vector, self._places[-1].buffer, self._vector(o, t) + r)

    def _vector(self, outer: object, tile: object) -> Index:
        tiling = self._tiling
        first = Index.of(outer) * tiling.lane_tiles + Index.of(tile)  # type: ignore[arg-type]
        return first * tiling.row_tiles

    def _merge(self, stage: SReg) -> None:
        """Merge sorted runs of 2**(stage - 1) elements into runs of 2**stage.

        The new runs are alternately ascending and descending.
        """
        b = self._b
        merged = b.scalar("shl", b.value(1), stage)
        if self._stages > self._within:
            with b.when("lt", b.value(self._within), stage), \
                    b.loop(b.value(stage - self._within)) as i:
                # `_across` takes the distance, 2**(stage - 1 - i) elements, as a number of tiles.
                self._across(b.scalar("shl", b.value(1), b.value(stage - i - 1 - self._within)),
                             merged)
        steps = b.scalar("min", stage, self._within)
        with b.loop(steps) as i:
            self._inside(b.scalar("shl", b.value(1), b.value(steps - i - 1)), merged)

    def _load(self, index: Index) -> list[VReg]:
        return [self._b.load(place.buffer, index) for place in self._places]

    def _store(self, vectors: Sequence[VReg], index: Index) -> None:
        for place, vector in zip(self._places, vectors, strict=True):
            self._b.store(vector, place.buffer, index)

    def _across(self, distance: SReg, merged: SReg) -> None:
        """Sort pairs of elements in the same lane of two tiles that are ``distance`` tiles apart.

        Elements in the wrong order are exchanged. ``merged`` is the number of elements in each run
        that this stage produces.
        """
        b, tiling = self._b, self._tiling
        pairs = b.value(tiling.lane_tiles // 2)
        with nest(b, [tiling.outer], {}) as (o,), b.loop(pairs) as pair:
            # The lower tile of a pair: the pair's number with a 0 inserted at the distance's bit.
            number = b.value(pair)
            low = b.scalar("and", number, b.value(distance - 1))
            tile = b.value(number * 2 - low)
            down = b.scalar("and", b.scalar("mul", tile, tiling.lanes), merged)
            flip = b.compare("ne", b.splat(down), 0)
            with nest(b, [tiling.row_tiles], {}) as (r,):
                first = self._vector(o, tile) + r
                second = first + b.scalar("mul", distance, tiling.row_tiles)
                left, right = self._load(first), self._load(second)
                keep = b.mask("mxor", self._before(left, right), flip)
                self._store([b.vector("select", x, y, keep)
                             for x, y in zip(left, right, strict=True)], first)
                self._store([b.vector("select", y, x, keep)
                             for x, y in zip(left, right, strict=True)], second)

    def _inside(self, distance: SReg, merged: SReg) -> None:
        """Sort pairs of elements of the same tile that are ``distance`` lanes apart.

        Elements in the wrong order are exchanged. ``merged`` is the number of elements in each run
        that this stage produces.
        """
        b, tiling = self._b, self._tiling
        upper = b.compare("ne", b.vector("and", self._lane, distance), 0)
        back = b.value(tiling.lanes - Index.of(distance))
        with nest(b, [tiling.outer, tiling.lane_tiles], {}) as (o, t):
            position = b.vector("add", self._lane, b.value(Index.of(t) * tiling.lanes))
            down = b.compare("ne", b.vector("and", position, merged), 0)
            flip = b.mask("mxor", upper, down)
            with nest(b, [tiling.row_tiles], {}) as (r,):
                index = self._vector(o, t) + r
                mine = self._load(index)
                other = [b.vector("select", b.cross("rotate_lanes", x, distance),
                                  b.cross("rotate_lanes", x, back), upper) for x in mine]
                keep = b.mask("mxor", self._before(mine, other), flip)
                self._store([b.vector("select", x, y, keep)
                             for x, y in zip(mine, other, strict=True)], index)

    def _before(self, left: list[VReg], right: list[VReg]) -> MReg:
        """Return the mask of positions at which ``left``'s element sorts before ``right``'s."""
        b, region = self._b, self._op.regions[0]

        def less(x: list[VReg], y: list[VReg]) -> MReg:
            sides = [side for pair in zip(x[:-1], y[:-1], strict=True) for side in pair]
            return b.compare("ne", emit_region(b, region, sides)[0], 0)

        earlier = b.compare("lt", left[-1], right[-1])
        tie = b.mask("mandn", earlier, less(right, left))
        found = b.mask("mor", less(left, right), tie)
        padding = b.mask("mor", b.compare("ge", left[-1], self._length),
                         b.compare("ge", right[-1], self._length))
        return b.mask("mor", b.mask("mandn", found, padding), b.mask("mand", earlier, padding))
