"""Convolutions over two dimensions whose columns are split into phases.

A line of an image with *P* · *Q* columns is split into *Q* phases of *P* columns: column *p* ·
*Q* + *q* is at *position* *p* of *phase* *q*. A vector holds one phase: its sublanes are the
positions, and its lanes the features. So the next column is in the same sublane of another vector.
After the last phase, however, it is in the next sublane of the vector of phase 0. Therefore, few
rotations produce the input rows for all column offsets of the filter, and a convolution with a
stride reads only some of the phases.

Values have the shape (lines, images, phases, positions, features). The rows of one line of all
images are consecutive in memory. So a line offset is the same distance in vectors for all images.

The output features of several adjacent columns may be computed together (attribute ``columns``).
Then a row of results holds several phases of the result, which are consecutive vectors.

The code first copies the rows for each column offset to scratch, with zeros around them, and then
multiplies (`sim.compiler.kernels.products.product`). If an input with few features leaves lanes
free, the rows for several column offsets share a vector: each has its own *lane range*.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hdl.config import Config
from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.lowering import Choice, Lowering, chooses, lowers
from sim.compiler.kernels.products.ahead import split_ahead
from sim.compiler.kernels.products.dot import cheapest, finisher, merged, precision, relaid, strides
from sim.compiler.kernels.products.pieces import scheme
from sim.compiler.kernels.products.product import Finish, Level, Product
from sim.compiler.kernels.products.steps import write_product
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import Index, MReg, VmemBuffer, VReg
from sim.compiler.tiling import Tiling, standard

__all__ = ["PhaseConvolution"]


@dataclass(frozen=True, eq=False)
class PhaseConvolution:
    """The computation of a `phase_convolution`, which the module's docstring describes.

    Unless `is_direct` is true, the product multiplies *copies* of the input in scratch, with zeros
    around them. One copy serves `together` column offsets of the filter. A copy has `parts` parts,
    each of `lines` lines. Each of these lines has `phases` phases.

    Attributes
    ----------
    operation : Operation
    config : Config
    weights : Tiling
        Tiling of the filter.
    """

    operation: Operation
    config: Config
    weights: Tiling

    @cached_property
    def windows(self) -> tuple[int, int]:
        """Number of lines and number of columns of the convolution's filter."""
        attributes, shape = self.operation.attributes, self.operation.operands[1].shape
        lines, columns = attributes["kernel_spatial_dimensions"]
        return shape[lines], shape[columns]

    @cached_property
    def features(self) -> int:
        """Number of the input's features."""
        return self.operation.operands[0].shape[4]

    @cached_property
    def columns(self) -> int:
        """Number of adjacent columns whose output features one row of results holds."""
        found: int = self.operation.attributes["columns"]
        return found

    @cached_property
    def phases(self) -> int:
        """Number of *row phases*: phases into which the product's rows are split."""
        return self.operation.result.shape[2] // self.columns

    @cached_property
    def is_direct(self) -> bool:
        """Whether the product reads its rows directly from the input, without copies in scratch."""
        attributes = self.operation.attributes
        return (self.windows == attributes["window_strides"] == attributes["lhs_dilation"] == (1, 1)
                and not any(map(any, attributes["padding"])))

    @cached_property
    def transposed(self) -> bool:
        """Whether the weights' input features run along the lanes."""
        return (self.weights.lane_dimension
                == self.operation.attributes["kernel_input_feature_dimension"])

    @cached_property
    def together(self) -> int:
        """Number of the filter's column offsets that share a vector.

        The input features of these offsets lie side by side along the vector's lanes.
        """
        columns = self.operation.attributes["kernel_spatial_dimensions"][1]
        fits = (not self.transposed and self.weights.lane_tiles == 1
                and self.features % self.config.sublanes == 0
                and self.config.lanes % self.features == 0
                and not self.operation.attributes["window_reversal"][1]
                and strides(self.weights).get(columns) == self.weights.row_tiles)
        return min(self.windows[1], self.config.lanes // self.features) if fits else 1

    @cached_property
    def copies(self) -> int:
        """Number of copies of the input in scratch.

        A copy holds the input columns for up to `together` column offsets of the filter.
        """
        return -(-self.windows[1] // self.together)

    @cached_property
    def lane_tiles(self) -> int:
        """Number of tiles of the input's features along the lanes."""
        return -(-self.features // self.config.lanes)

    @cached_property
    def line(self) -> int:
        """Number of vectors that a copy has for one line of all images and one tile of features."""
        return self.operation.result.shape[1] * self.phases

    @cached_property
    def by_offset(self) -> bool:
        """Whether each line offset of the filter has a part of its own in each copy of the input.

        Such a part has the lines that the offset needs. Otherwise, all offsets use the same part.
        """
        return self.operation.attributes["window_strides"][0] > 1

    @cached_property
    def lines(self) -> int:
        """Number of image lines in a part (`parts`) of a copy (`copies`) of the input."""
        count = self.operation.result.shape[0]
        if self.by_offset:
            return count
        return count + (self.windows[0] - 1) * self.operation.attributes["rhs_dilation"][0]

    @cached_property
    def parts(self) -> int:
        """Number of parts of a copy (`copies`) of the input.

        One for each line offset of the filter if `by_offset`, otherwise one in all.
        """
        return self.windows[0] if self.by_offset else 1

    @cached_property
    def vectors(self) -> int:
        """Number of vectors of the scratch that holds all copies."""
        return self.copies * self.parts * self.lane_tiles * self.lines * self.line

    def first_vector(self, copy: int, part: int) -> int:
        """Return the offset, in vectors from the start of the scratch, of a part of a copy.

        ``copy`` is less than `copies`, and ``part`` less than `parts`. The part begins with its
        first tile of features.
        """
        return (copy * self.parts + part) * self.lane_tiles * self.lines * self.line

    def product(self, rows: VmemBuffer, weights: VmemBuffer, results: VmemBuffer,
                finish: Finish | None = None) -> Product:
        """Return the product that computes the convolution on these buffers.

        ``finish`` writes the code that converts a sum to the vector that is stored; None if sums
        are stored as they are.
        """
        operation, config, tiling = self.operation, self.config, self.weights
        attributes, tile = operation.attributes, config.tile_vregs
        lhs, rhs = operation.operands
        outputs = self.columns * -(-operation.result.shape[4] // config.lanes)
        height, width, images = *self.windows, operation.result.shape[1]
        distances = strides(tiling)
        lines, columns = (distances.get(dimension, 0)
                          for dimension in attributes["kernel_spatial_dimensions"])
        near = 1 if self.is_direct else self.lines * self.line
        if self.transposed:
            sums = [Level(self.lane_tiles, near, tiling.row_tiles, depth=config.lanes)]
            others = Level(-(-tiling.row_tiles // tile), weight_row=tile, results=1)
        else:
            sums = [Level(self.lane_tiles, near, weight_row=tile, depth=config.lanes)]
            others = Level(tiling.lane_tiles, weights=tiling.row_tiles, results=1)
        depth, weight_rows, first = self.features, tiling.row_tiles, 0
        if self.together > 1:
            depth, weight_rows = depth * width, weight_rows * width
            sums = [Level(self.copies, self.first_vector(1, 0), weight_row=tile,
                          depth=config.lanes)]
        elif width > 1:
            sums.append(Level(width, self.first_vector(1, 0), columns))
        if height > 1:
            step = (self.first_vector(0, 1) if self.by_offset
                    else self.line * attributes["rhs_dilation"][0])
            if attributes["window_reversal"][0]:
                first, step = step * (height - 1), -step
            sums.append(Level(height, step, lines))
        many = [Level(operation.result.shape[0] * images * self.phases,
                      self.lane_tiles if self.is_direct else 1, results=outputs)]
        return cheapest(
            Product(config, rows, weights, results,
                    scheme(lhs.dtype, rhs.dtype, precision(operation)), tuple(merged(sums)),
                    (others,), Level(1), depth, self.transposed, weight_rows, finish, first), many)


class _Copies:
    """Writes the copies of the input that the product multiplies."""

    def __init__(self, b: Builder, way: PhaseConvolution, source: VmemBuffer, target: VmemBuffer
                 ) -> None:
        self._b, self._way, self._source, self._target = b, way, source, target
        self._attributes = way.operation.attributes
        self._lhs = way.operation.operands[0].shape
        self._zero = b.splat(0)
        self._sublane, self._lane = b.vector("sublane"), b.vector("lane")
        self._masks: dict[int, MReg] = {}
        # Compute the masks here, before the loops that use them.
        for _, _, _, shift in self._entries():
            self._mask(shift)
        self._lane_ranges = {number: b.compare("ge", self._lane, number * way.features)
                             for number in range(1, way.together)}

    def write(self) -> None:
        """Write the code that copies all lines."""
        way, attributes = self._way, self._attributes
        low, dilation = attributes["padding"][0][0], attributes["lhs_dilation"][0]
        if dilation > 1:
            self._clear(0, way.vectors)
        for part in range(way.parts):
            stride, begin = 1, low
            if way.by_offset:
                stride = attributes["window_strides"][0]
                begin = low - part * attributes["rhs_dilation"][0]
            # Line l of the copy is line (l * stride - begin) / dilation of the input.
            valid = [line for line in range(way.lines) if (line * stride - begin) % dilation == 0
                     and 0 <= line * stride - begin < self._lhs[0] * dilation]
            if dilation == 1:
                first, end = (valid[0], valid[-1] + 1) if valid else (0, 0)
                self._clear_lines(part, 0, first)
                self._clear_lines(part, end, way.lines)
            if valid:
                self._copy(part, valid, (valid[0] * stride - begin) // dilation, stride)

    def _clear(self, first: int | Index, count: int) -> None:
        if count:
            with self._b.loop(count) as i:
                self._b.store(self._zero, self._target, first + i)

    def _clear_lines(self, part: int, first: int, end: int) -> None:
        way = self._way
        if first == end:
            return
        with self._b.loop(way.copies) as copy, self._b.loop(way.lane_tiles) as tile:
            self._clear(way.first_vector(0, part) + copy * way.first_vector(1, 0)
                        + tile * (way.lines * way.line) + first * way.line,
                        (end - first) * way.line)

    def _copy(self, part: int, lines: list[int], source: int, stride: int) -> None:
        """Copy lines of the input, from line ``source`` on, to part ``part`` of each copy.

        ``lines`` are the numbers that the copied lines get within the part, at equal distances. If
        these numbers are consecutive, every ``stride``-th line of the input is copied. Otherwise,
        every line of the input is copied, and the lines of the part between two of them stay zero.
        """
        b, way, images = self._b, self._way, self._lhs[1]
        phases, step = self._lhs[2], lines[1] - lines[0] if len(lines) > 1 else 1
        vectors = phases * way.lane_tiles
        inner = way.phases
        with b.loop(way.lane_tiles) as tile:
            base = tile * (way.lines * way.line) + way.first_vector(0, part) + lines[0] * way.line
            first = tile + source * images * vectors
            if step == stride == 1:
                with b.loop(len(lines) * images) as row:
                    self._rows(first + row * vectors, base + row * inner)
                return
            with b.loop(len(lines)) as line, b.loop(images) as image:
                self._rows(
                    first + line * (stride if step == 1 else 1) * images * vectors
                    + image * vectors, base + line * (step * way.line) + image * inner)

    def _rows(self, source: Index, target: Index) -> None:
        """Copy one line of an image, for one tile of features, to all copies of the input.

        ``source`` is the index of the line's first vector in the input, and ``target`` the index
        of its first vector in the first copy.
        """
        b, way = self._b, self._way
        moved: dict[tuple[int, int, int], VReg] = {}
        loaded: dict[int, VReg] = {}
        merged: dict[tuple[int, int], VReg] = {}
        for offset, row_phase, phase, shift in self._entries():
            lane_range = offset % way.together
            if phase < 0:
                vector = self._zero
            else:
                if phase not in loaded:
                    loaded[phase] = b.load(self._source, source + phase * way.lane_tiles)
                key = phase, shift, lane_range
                if key not in moved:
                    moved[key] = self._moved(loaded[phase], shift, lane_range)
                vector = moved[key]
            copy = offset // way.together
            if lane_range:
                vector = b.vector("select", vector, merged[copy, row_phase],
                                  self._lane_ranges[lane_range])
            merged[copy, row_phase] = vector
            if lane_range + 1 == way.together or offset + 1 == way.windows[1]:
                b.store(vector, self._target, target + way.first_vector(copy, 0) + row_phase)

    def _entries(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the source of each phase of the copies, for each column offset of the filter.

        A source is (offset, row_phase, phase, shift): ``row_phase`` is a phase of the copy for
        column offset ``offset``, and ``phase`` is a phase of the input. Position p (a sublane) of
        ``row_phase`` gets the elements at position p + ``shift`` of ``phase``. If ``phase`` is -1,
        ``row_phase`` gets zeros.
        """
        way, attributes = self._way, self._attributes
        phases = way.phases
        stride, low = attributes["window_strides"][1], attributes["padding"][1][0]
        dilation = attributes["lhs_dilation"][1]
        for row_phase in range(phases):
            for offset in range(way.windows[1]):
                at = way.windows[1] - 1 - offset if attributes["window_reversal"][1] else offset
                column = row_phase * stride + at * attributes["rhs_dilation"][1] - low
                shift, phase = divmod(column, phases * stride)
                if phase % dilation or abs(shift) >= self._lhs[3]:
                    yield offset, row_phase, -1, 0
                else:
                    yield offset, row_phase, phase // dilation, shift

    def _moved(self, vector: VReg, shift: int, lane_range: int) -> VReg:
        """Move a vector's elements along the sublanes, and its features to a range of lanes.

        Sublane p gets the elements of sublane p + ``shift``, or zeros if there is none. Feature f
        moves from lane f to lane n + f, where n is ``lane_range`` times the number of features.
        """
        b = self._b
        if shift:
            sublanes = self._way.config.sublanes
            vector = b.cross("rotate_sublanes", vector, -shift % sublanes)
            vector = b.vector("select", vector, self._zero, self._mask(shift))
        if lane_range:
            vector = b.cross("rotate_lanes", vector, lane_range * self._way.features)
        return vector

    def _mask(self, shift: int) -> MReg:
        """Return the mask of the sublanes p for which the input has a position p + ``shift``."""
        if shift and shift not in self._masks:
            self._masks[shift] = (self._b.compare("lt", self._sublane, self._lhs[3] - shift)
                                  if shift > 0 else self._b.compare("ge", self._sublane, -shift))
        return self._masks.get(shift, self._b.all_ones)


@chooses("phase_convolution")
def _choose(operation: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    attributes, made = operation.attributes, operation.result.shape[4]
    if attributes["columns"] > 1 and made % config.lanes:
        raise ValueError(f"output features must be a multiple of {config.lanes}, not {made}, if a "
                         "row of results holds several columns")
    shape = operation.operands[1].shape
    pair = (attributes["kernel_input_feature_dimension"],
            attributes["kernel_output_feature_dimension"])
    weights, _ = min((relaid(shape, operands[1], *order, config=config)
                      for order in (pair, pair[::-1])), key=lambda way: way[1])
    return Choice((standard(operation.operands[0].shape, config), weights),
                  (standard(operation.result.shape, config),))


@lowers("phase_convolution")
def _lower(operation: Operation, at: Lowering) -> None:
    b = at.builder
    lhs, rhs = (at.place(value) for value in operation.operands)
    result = at.place(operation.result)
    way = PhaseConvolution(operation, at.config, rhs.tiling)
    rows = lhs.buffer
    if not way.is_direct:
        rows = at.scratch(way.vectors)
        _Copies(b, way, lhs.buffer, rows).write()
    product = way.product(rows, rhs.buffer, result.buffer, finisher(b, operation.result.dtype))
    write_product(b, split_ahead(product, at), at.smem)
