"""The product of tensors, `dot_general`, on the array.

One operand goes through the array as rows, with a contracted dimension along the lanes. The other
one is loaded as weights, with the same dimension along the sublanes, or along the lanes if the
array transposes the weights. Either operand can be the rows; the way with the fewest estimated
cycles, including copies to other tilings, is chosen. In the result, a free dimension of the weights
runs along the lanes, and a free dimension of the rows runs along the sublanes.

All other dimensions are loops around a step of the array; iterations of contracted ones add to the
same sums.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hdl.config import Config
from sim.compiler.graph.ir import DType, Operation, Value
from sim.compiler.kernels.lowering import Choice, Lowering, chooses, lowers
from sim.compiler.kernels.products.ahead import split_ahead
from sim.compiler.kernels.products.pieces import scheme
from sim.compiler.kernels.products.product import Finish, Level, Product
from sim.compiler.kernels.products.steps import write_product
from sim.compiler.kernels.products.transfers import Homes, Plan, Transfers, plan_transfers
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import VmemBuffer, VReg
from sim.compiler.tiling import Tiling, standard

__all__ = ["COPY_CYCLES", "TRANSPOSE_CYCLES", "Dot", "Dots", "cheapest", "dot_cycles", "finisher",
           "loads_itself", "merged", "precision", "relaid", "sent_early",
           "strides", "takes_packed"]

TRANSPOSE_CYCLES = 16
COPY_CYCLES = 64
"""Approximate cycles to copy a vector to another tiling.

``TRANSPOSE_CYCLES`` if lanes and sublanes are exchanged, ``COPY_CYCLES`` if the same dimension
stays along the lanes, and twice ``COPY_CYCLES`` otherwise."""
WIDEN_CYCLES = 2
"""Cycles to copy a packed vector to two vectors."""


@dataclass(frozen=True)
class Dots:
    """The dimensions of a `dot_general`.

    Attributes
    ----------
    shapes : pair of tuple of int
        Shapes of both operands.
    batch, contracting : pair of tuple of int
        For each operand, its batch and contracted dimensions; those at the same position
        correspond.
    """

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    contracting: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, operation: Operation) -> "Dots":
        """Return the dimensions of a `dot_general` operation."""
        lhs, rhs = operation.operands
        attributes = operation.attributes
        pairs = [(tuple(attributes[f"lhs_{name}_dimensions"]),
                  tuple(attributes[f"rhs_{name}_dimensions"]))
                 for name in ("batching", "contracting")]
        return cls((lhs.shape, rhs.shape), *pairs)

    @cached_property
    def free(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For each operand, its dimensions that are neither batch nor contracted ones."""
        lhs, rhs = (tuple(dimension for dimension in range(len(shape))
                          if dimension not in (*batch, *contracting))
                    for shape, batch, contracting in zip(self.shapes, self.batch, self.contracting,
                                                         strict=True))
        return lhs, rhs

    @cached_property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the result: batch dimensions, then free ones of the left and right operand."""
        lhs, rhs = self.shapes
        return (*(lhs[dimension] for dimension in self.batch[0]),
                *(lhs[dimension] for dimension in self.free[0]),
                *(rhs[dimension] for dimension in self.free[1]))

    def result_dimension(self, side: int, dimension: int) -> int:
        """Return the result's dimension that corresponds to a free dimension of an operand.

        ``side`` is 0 for the left operand and 1 for the right one; ``dimension`` is the number of
        the dimension in this operand.
        """
        place = len(self.batch[0]) + self.free[side].index(dimension)
        return place + (len(self.free[0]) if side else 0)


@dataclass(frozen=True)
class Dot:
    """One way to compute a `dot_general` on the array.

    Attributes
    ----------
    dots : Dots
        Dimensions of the `dot_general`.
    rows : int
        Number, 0 or 1, of the operand that goes through the array as rows; the other one is loaded
        as weights.
    tilings : pair of Tiling
        Tilings of both operands.
    result : Tiling
        Tiling of the result.
    """

    dots: Dots
    rows: int
    tilings: tuple[Tiling, Tiling]
    result: Tiling

    @property
    def transposed(self) -> bool:
        """Whether the weights' contracted dimension runs along the lanes."""
        lane = self.tilings[1 - self.rows].lane_dimension
        return lane in self.dots.contracting[1 - self.rows]

    def product(self, config: Config, operands: Sequence[VmemBuffer], results: VmemBuffer,
                dtypes: Sequence[DType], accuracy: str, finish: Finish | None = None) -> Product:
        """Return the product that computes the `dot_general` on these buffers.

        Parameters
        ----------
        config : Config
        operands : pair of VmemBuffer
            Buffers of the operands.
        results : VmemBuffer
            Buffer of the result.
        dtypes : pair of DType
            Types of the operands.
        accuracy : str
            The precision: DEFAULT, HIGH or HIGHEST.
        finish : callable or None
            Writes the code that converts a sum to the vector that is stored; None if sums are
            stored as they are.
        """
        dots, side, other = self.dots, self.rows, 1 - self.rows
        rows, weights = self.tilings[side], self.tilings[other]
        distances = [strides(tiling) for tiling in self.tilings]
        to = strides(self.result)
        tile = config.tile_vregs // (1 + weights.packed)
        lane = rows.lane_dimension
        assert lane is not None
        if self.transposed:
            sums = [Level(rows.lane_tiles, rows.row_tiles, weights.column_vectors,
                          depth=config.lanes)]
            columns = Level(-(-weights.column_vectors // tile), weight_row=tile,
                            results=self.result.row_tiles)
        else:
            sums = [Level(rows.lane_tiles, rows.row_tiles, weight_row=tile, depth=config.lanes)]
            columns = Level(weights.lane_tiles, weights=weights.column_vectors,
                            results=self.result.row_tiles)
        for dimensions in zip(dots.contracting[side], dots.contracting[other], strict=True):
            if dimensions[0] != lane:
                sums.append(Level(dots.shapes[side][dimensions[0]], distances[side][dimensions[0]],
                                  distances[other][dimensions[1]]))
        others = [columns]
        for dimension in _outer(weights, dots.free[other]):
            others.append(Level(
                dots.shapes[other][dimension], 0, distances[other][dimension],
                to[dots.result_dimension(other, dimension)]))
        for number, dimensions in enumerate(zip(dots.batch[side], dots.batch[other], strict=True)):
            others.append(Level(dots.shapes[side][dimensions[0]], distances[side][dimensions[0]],
                                distances[other][dimensions[1]], to[number]))
        many = [Level(rows.row_tiles, 1, results=1)]
        for dimension in _outer(rows, dots.free[side]):
            many.append(Level(dots.shapes[side][dimension], distances[side][dimension],
                              results=to[dots.result_dimension(side, dimension)]))
        return cheapest(
            Product(config, operands[side], operands[other], results,
                    scheme(dtypes[side], dtypes[other], accuracy), tuple(merged(sums)),
                    tuple(others), Level(1), rows.columns, self.transposed, weights.row_tiles,
                    finish, packed=weights.packed), many)


def cheapest(product: Product, many: Sequence[Level]) -> Product:
    """Choose `Product.block` such that the product takes the fewest cycles; return that product.

    ``many`` are the levels (loops around a step) that advance both rows and results. One of them
    becomes the block, and all others become loops around it.
    """
    levels = merged(many)
    return min((replace(product, block=block,
                        others=tuple(merged([*product.others, *levels[:number],
                                             *levels[number + 1:]])))
                for number, block in enumerate(levels)), key=lambda product: product.cycles)


def strides(tiling: Tiling) -> dict[int, int]:
    """Return the distance, in vectors, between consecutive indices of each outer dimension."""
    found, stride = {}, tiling.lane_tiles * tiling.column_vectors
    for dimension in reversed(tiling.outer_dimensions):
        found[dimension] = stride
        stride *= tiling.shape[dimension]
    return found


def _outer(tiling: Tiling, dimensions: Sequence[int]) -> Iterator[int]:
    """Yield those of ``dimensions`` that are outer dimensions of the tiling."""
    return (dimension for dimension in dimensions if dimension in tiling.outer_dimensions)


def merged(levels: Sequence[Level]) -> list[Level]:
    """Merge pairs of levels (loops around a step) that one level can replace.

    ``levels`` and the returned levels are in order, from the innermost to the outermost. Two levels
    become one if one iteration of the outer level advances all operands as far as all iterations of
    the inner level together. Levels of one iteration are dropped.
    """
    found: list[Level] = []
    for level in levels:
        if level.count == 1:
            continue
        for number, inner in enumerate(found):
            scaled = replace(level, count=inner.count, **{
                name: getattr(inner, name) * inner.count
                for name in ("rows", "weights", "results", "weight_row", "depth")})
            if replace(level, count=inner.count) == scaled:
                found[number] = replace(inner, count=inner.count * level.count)
                break
        else:
            found.append(level)
    return found or [Level(1)]


def relaid(shape: Sequence[int], tiling: Tiling, sublane: int | None, lane: int | None,
            config: Config) -> tuple[Tiling, int]:
    """Return a tiling of ``shape`` for a product, and the estimated cycles of a copy to it.

    In the returned tiling, dimension ``sublane`` runs along the sublanes and ``lane`` along the
    lanes; either may be None. The copy is made from ``tiling``.
    """
    if tiling.sublane_dimension == sublane and tiling.lane_dimension == lane:
        return tiling, 0
    last = tuple(dimension for dimension in (sublane, lane) if dimension is not None)
    order = (*(dimension for dimension in range(len(shape)) if dimension not in last), *last)
    wanted = Tiling(tuple(shape), order, lane is not None, config.sublanes, config.lanes)
    turned = (tiling.lane_dimension, tiling.sublane_dimension) == (sublane, lane)
    cycles = (TRANSPOSE_CYCLES if turned else
              COPY_CYCLES if tiling.lane_dimension == lane else 2 * COPY_CYCLES)
    return wanted, max(wanted.vectors, tiling.vectors) * cycles


def _ways(dots: Dots, tilings: Sequence[Tiling], config: Config) -> Iterator[tuple[int, Dot]]:
    """Yield each way to compute a product, as (cycles of the copies that it needs, way).

    ``tilings`` are the current tilings of the operands. There is no way if the product has no
    contracted dimension, or if an operand of several dimensions has no free one.
    """
    for side, other in ((0, 1), (1, 0)):
        for depth, depth_other in zip(dots.contracting[side], dots.contracting[other], strict=True):
            for row in dots.free[side] or (None,):
                if row is None and len(dots.shapes[side]) > 1:
                    continue
                rows, row_cycles = relaid(dots.shapes[side], tilings[side].widened, row, depth,
                                          config)
                row_cycles += WIDEN_CYCLES * tilings[side].vectors * tilings[side].packed
                for column in dots.free[other] or (None,):
                    if column is None and len(dots.shapes[other]) > 1:
                        continue
                    result, result_cycles = _result(dots, side, row, column, config)
                    if result is None:
                        continue
                    for sublane, lane in ((depth_other, column), (column, depth_other)):
                        weights, cycles = relaid(dots.shapes[other], tilings[other], sublane,
                                                  lane, config)
                        both = (weights, rows) if side else (rows, weights)
                        yield (row_cycles + cycles + result_cycles,
                               Dot(dots, side, both, result))


def _result(dots: Dots, side: int, row: int | None, column: int | None, config: Config
            ) -> tuple[Tiling | None, int]:
    """Return the tiling of a product's result, and the cycles of a copy to the standard tiling.

    ``side`` is the number of the operand that is used as rows. ``row`` is the free dimension of
    this operand that runs along the result's sublanes; ``column`` is the free dimension of the
    other operand that runs along the result's lanes; either may be None. The returned tiling is
    None if none is possible.
    """
    shape = dots.result_shape
    sublane = None if row is None else dots.result_dimension(side, row)
    lane = None if column is None else dots.result_dimension(1 - side, column)
    last = tuple(dimension for dimension in (sublane, lane) if dimension is not None)
    if sublane is None and len(shape) > len(last):
        return None, 0
    order = (*(dimension for dimension in range(len(shape)) if dimension not in last), *last)
    tiling = Tiling(shape, order, lane is not None, config.sublanes, config.lanes)
    standard = Tiling(shape, tuple(range(len(shape))), bool(shape), config.sublanes, config.lanes)
    turned = {tiling.lane_dimension, tiling.sublane_dimension} == {
        standard.lane_dimension, standard.sublane_dimension}
    cycles = 0 if tiling == standard else TRANSPOSE_CYCLES if turned else COPY_CYCLES
    return tiling, cycles * max(tiling.vectors, standard.vectors)


def precision(operation: Operation) -> str:
    """Return the precision of a product: the highest that is requested for an operand."""
    names = ("DEFAULT", "HIGH", "HIGHEST")
    asked = operation.attributes.get("precision_config") or ("DEFAULT",)
    return max(asked, key=names.index)


def finisher(b: Builder, dtype: DType) -> Finish | None:
    """Return the conversion from a sum to the result's type ``dtype``; None if none is needed."""
    if dtype is DType.BF16:
        return lambda b, value, index: b.vector("bf16", value)
    if dtype is DType.PRED:
        one = b.splat(1)
        return lambda b, value, index: b.vector("select", one, 0, b.compare("ne", value, 0))
    if dtype.is_integer and dtype.bits < 32:
        return lambda b, value, index: _narrow(b, value, dtype)
    return None


def _narrow(b: Builder, value: VReg, dtype: DType) -> VReg:
    unused = 32 - dtype.bits
    return b.vector("sar" if dtype.is_signed else "shr", b.vector("shl", value, unused), unused)


def _choose(operation: Operation, tilings: Sequence[Tiling], config: Config
            ) -> tuple[int, Dot] | None:
    """Return the fewest estimated cycles, and the way that takes them; None if there is no way.

    ``tilings`` are the current tilings of the operands. The cycles include those of copies to other
    tilings.
    """
    dtypes = [value.dtype for value in operation.operands]
    nowhere = VmemBuffer("", 0, 0)
    best = None
    for copies, dot in _ways(Dots.of(operation), tilings, config):
        product = dot.product(config, (nowhere, nowhere), nowhere, dtypes, precision(operation))
        if best is None or copies + product.cycles < best[0]:
            best = copies + product.cycles, dot
    return best


def dot_cycles(operation: Operation, operands: Sequence[Tiling], config: Config) -> int:
    """Estimate the cycles of a product whose operands have these tilings in vector memory.

    Only ways that copy neither operands nor the result are considered; there must be one.
    """
    dtypes = [value.dtype for value in operation.operands]
    nowhere = VmemBuffer("", 0, 0)
    return min(dot.product(config, (nowhere, nowhere), nowhere, dtypes,
                           precision(operation)).cycles
               for copies, dot in _ways(Dots.of(operation), operands, config) if not copies)


def takes_packed(operation: Operation, value: Value, config: Config) -> bool:
    """Return whether a product loads a packed operand as weights, without a copy to another tiling.

    It is assumed that both operands have the standard tiling, and that ``value`` is packed.

    Parameters
    ----------
    operation : Operation
        The `dot_general`.
    value : Value
        The operand; its type is bf16.
    config : Config
    """
    tilings = [standard(operand.shape, config) for operand in operation.operands]
    side = operation.operands.index(value)
    # A weight tile must begin with the first half of a vector.
    if config.tile_vregs % 2 or tilings[side].row_tiles < 2 or (
            operation.operands[0] is operation.operands[1]):
        return False
    tilings[side] = replace(tilings[side], packed=True)
    best = _choose(operation, tilings, config)
    return best is not None and best[1].tilings[side].packed


@chooses("dot_general")
def _choose_dot(operation: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    best = _choose(operation, operands, config)
    if best is None:
        raise ValueError("dot_general must have a contracted dimension, and a free dimension in "
                         "each operand with more than one dimension, not "
                         f"{Dots.of(operation)}")
    return Choice(best[1].tilings, (best[1].result,))


def _cheapest(operation: Operation, tilings: Sequence[Tiling], buffers: Sequence[VmemBuffer],
              config: Config, finish: Finish | None) -> tuple[Product, int]:
    """Return the product with the fewest cycles, and the number of the operand used as rows.

    ``tilings`` and ``buffers`` are those of both operands and of the result; only products without
    copies to other tilings are considered. ``finish`` converts a sum to the vector that is stored,
    or is None if sums are stored as they are.
    """
    ways = [dot for copies, dot in _ways(Dots.of(operation), tilings[:2], config)
            if dot.tilings == tuple(tilings[:2]) and dot.result == tilings[2]]
    dtypes = [value.dtype for value in operation.operands]
    products = [dot.product(config, buffers[:2], buffers[2], dtypes, precision(operation), finish)
                for dot in ways]
    return min(((product, dot.rows) for product, dot in zip(products, ways, strict=True)),
               key=lambda way: way[0].cycles)


def loads_itself(operation: Operation, value: Value, tilings: Mapping[Value, Tiling],
                 config: Config, smem: range) -> bool:
    """Whether the code of a product can load operand ``value`` from HBM, with the other in vmem.

    Parameters
    ----------
    operation : Operation
        The `dot_general`.
    value : Value
        The operand.
    tilings : mapping of Value to Tiling
        Tilings of operands and result.
    config : Config
    smem : range
        Words of scalar memory that a kernel may use.
    """
    if finisher(Builder(config), operation.result.dtype) is not None:
        return False
    taken = [tilings[item] for item in (*operation.operands, operation.result)]
    product, rows = _cheapest(operation, taken,
                              [VmemBuffer("", 0, tiling.vectors) for tiling in taken], config, None)
    values = operation.operands[rows], operation.operands[1 - rows]
    return _planned(product, values, (values[0] is value, values[1] is value), smem) is not None


def sent_early(operation: Operation, tilings: Mapping[Value, Tiling], config: Config) -> int:
    """Return how many vectors of a product's result are complete before its last step.

    These are the first vectors of the result; they can be sent to another core before that step
    (`Lowering.send`). ``tilings`` has the tilings of the operands and of the result.
    """
    taken = [tilings[value] for value in (*operation.operands, operation.result)]
    buffers = [VmemBuffer("", 0, tiling.vectors) for tiling in taken]
    return _cheapest(operation, taken, buffers, config, None)[0].early


@lowers("dot_general")
def _lower_dot(operation: Operation, at: Lowering) -> None:
    places = [at.place(value) for value in (*operation.operands, operation.result)]
    product, rows = _cheapest(operation, [place.tiling for place in places],
                              [place.buffer for place in places], at.config,
                              finisher(at.builder, operation.result.dtype))
    values = operation.operands[rows], operation.operands[1 - rows], operation.result
    product, smem, transfers = _with_transfers(split_ahead(product, at), values, at)
    write_product(at.builder, product, smem, transfers, None if transfers else at.send,
                  None if transfers else at.meanwhile)


def _planned(product: Product, values: tuple[Value, Value], loads: tuple[bool, bool],
             smem: range) -> Plan | None:
    """Plan the transfers that a product's own code starts.

    Return None if they are impossible, or slower than transfers before the product.
    ``values`` are the rows and the weights, and ``loads`` says which of them may be loaded. The
    code may use the words ``smem`` of scalar memory.
    """
    if not any(loads) or values[0] is values[1]:
        return None
    plan = plan_transfers(replace(product, by_depth=True), loads, smem)
    return None if plan is None or plan.cycles > product.cycles + plan.apart else plan


def _with_transfers(product: Product, values: tuple[Value, Value, Value], at: Lowering
                    ) -> tuple[Product, range, Transfers | None]:
    """Let a product load its operands itself, if that is possible and faster.

    ``values`` are the rows, the weights, and the result. Returns the product, the words of scalar
    memory that its code may use, and its transfers, if any: arguments of `write_product`.
    """
    loads = at.can_transfer(values[0]), at.can_transfer(values[1])
    plan = _planned(product, values[:2], loads, at.smem)
    if plan is None:
        return product, at.smem, None
    at.predict(plan.cycles)
    does = *loads, plan.can_store and at.can_transfer(values[2])
    homes = Homes(*(at.transfer(value) if transfers else None
                    for value, transfers in zip(values, does, strict=True)))
    return plan.product, at.smem, Transfers(at.builder, plan, homes, at.smem)
