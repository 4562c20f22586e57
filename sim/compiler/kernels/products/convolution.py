"""Convolutions on the array, as products over shifted rows.

The *filter* is the convolution's second operand, its weights. A convolution is a product in which
each sum also runs over the offsets within the filter. The steps for an offset push the input's
rows, shifted by that offset. Input features run along the lanes. The sublanes hold the batch, or a
spatial dimension in which the filter has size 1 and stride 1. All other dimensions are outer: a
shift or a stride in them is a distance of whole vectors.

The rule supports convolutions without padding, without dilated inputs, without reversed filters and
without groups of features or of the batch; `sim.compiler.passes` expands all others into such
convolutions and copies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hdl.config import Config
from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.lowering import Choice, Lowering, chooses, lowers
from sim.compiler.kernels.products.ahead import split_ahead
from sim.compiler.kernels.products.dot import (
    COPY_CYCLES,
    cheapest,
    finisher,
    merged,
    precision,
    relaid,
    strides,
)
from sim.compiler.kernels.products.pieces import scheme
from sim.compiler.kernels.products.product import Finish, Level, Product
from sim.compiler.kernels.products.steps import write_product
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.tiling import Tiling, standard

__all__ = ["Convolution", "is_plain"]


def is_plain(operation: Operation) -> bool:
    """Whether a convolution has no padding, dilated input, reversed filter or groups.

    Only such a convolution can be computed without a pass that expands it first.
    """
    attributes = operation.attributes
    return (not any(map(any, attributes["padding"]))
            and all(step == 1 for step in attributes["lhs_dilation"])
            and not any(attributes["window_reversal"])
            and attributes["feature_group_count"] == attributes["batch_group_count"] == 1)


@dataclass(frozen=True, eq=False)
class Convolution:
    """One way to compute a convolution on the array.

    Attributes
    ----------
    operation : Operation
    rows, weights, result : Tiling
        Tilings of the input, of the filter, which is loaded as weights, and of the result.
    """

    operation: Operation
    rows: Tiling
    weights: Tiling
    result: Tiling

    def product(self, config: Config, rows: VmemBuffer, weights: VmemBuffer, results: VmemBuffer,
                finish: Finish | None = None) -> Product:
        """Return the product that computes the convolution on these buffers.

        ``finish`` writes the code that converts a sum to the vector that is stored; None if sums
        are stored as they are.
        """
        operation, attributes = self.operation, self.operation.attributes
        filters = operation.operands[1].shape
        tile = config.tile_vregs
        transposed = self.weights.lane_dimension == attributes["kernel_input_feature_dimension"]
        if transposed:
            sums = [Level(self.rows.lane_tiles, self.rows.row_tiles, self.weights.row_tiles,
                          depth=config.lanes)]
            columns = Level(-(-self.weights.row_tiles // tile), weight_row=tile,
                            results=self.result.row_tiles)
        else:
            sums = [Level(self.rows.lane_tiles, self.rows.row_tiles, weight_row=tile,
                          depth=config.lanes)]
            columns = Level(self.weights.lane_tiles, weights=self.weights.row_tiles,
                            results=self.result.row_tiles)
        source, offset, target = map(strides, (self.rows, self.weights, self.result))
        many = [Level(self.result.row_tiles, 1, results=1)]
        for number, dimension in enumerate(attributes["input_spatial_dimensions"]):
            if dimension not in source:
                continue
            filter_dimension = attributes["kernel_spatial_dimensions"][number]
            result_dimension = attributes["output_spatial_dimensions"][number]
            sums.append(Level(filters[filter_dimension],
                              source[dimension] * attributes["rhs_dilation"][number],
                              offset[filter_dimension]))
            many.append(Level(operation.result.shape[result_dimension],
                              source[dimension] * attributes["window_strides"][number],
                              results=target[result_dimension]))
        batch = attributes["input_batch_dimension"]
        if batch in source:
            many.append(Level(self.rows.shape[batch], source[batch],
                              results=target[attributes["output_batch_dimension"]]))
        lhs, rhs = (value.dtype for value in operation.operands)
        return cheapest(
            Product(config, rows, weights, results, scheme(lhs, rhs, precision(operation)),
                    tuple(merged(sums)), (columns,), Level(1), self.rows.columns, transposed,
                    self.weights.row_tiles, finish), many)


def _ways(operation: Operation, tilings: Sequence[Tiling], config: Config
          ) -> Iterator[tuple[int, Convolution]]:
    """Yield each way to compute a convolution, as (cycles of the copies that it needs, way).

    ``tilings`` are the current tilings of the operands.
    """
    attributes = operation.attributes
    lhs, rhs = (value.shape for value in operation.operands)
    shape = operation.result.shape
    along = [(attributes["input_batch_dimension"], attributes["output_batch_dimension"])]
    along += [pair[:2] for pair in zip(
        attributes["input_spatial_dimensions"], attributes["output_spatial_dimensions"],
        attributes["kernel_spatial_dimensions"], attributes["window_strides"], strict=True)
        if rhs[pair[2]] == 1 and pair[3] == 1]
    features = (attributes["kernel_input_feature_dimension"],
                attributes["kernel_output_feature_dimension"])
    usual = standard(shape, config)
    for sublane, to in along:
        rows, cycles = relaid(lhs, tilings[0], sublane, attributes["input_feature_dimension"],
                              config)
        result, _ = relaid(shape, usual, to, attributes["output_feature_dimension"], config)
        if result != usual:
            cycles += COPY_CYCLES * max(result.vectors, usual.vectors)
        for pair in (features, features[::-1]):
            weights, copies = relaid(rhs, tilings[1], *pair, config=config)
            yield cycles + copies, Convolution(operation, rows, weights, result)


@chooses("convolution")
def _choose(operation: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    if not is_plain(operation):
        raise ValueError("convolution must have no padding, no dilated input, no reversed filter, "
                         f"no feature groups and no batch groups, not {operation.attributes!r}")
    nowhere = VmemBuffer("", 0, 0)
    _, way = min(_ways(operation, operands, config), key=lambda pair: pair[0] + pair[1].product(
        config, nowhere, nowhere, nowhere).cycles)
    return Choice((way.rows, way.weights), (way.result,))


@lowers("convolution")
def _lower(operation: Operation, at: Lowering) -> None:
    lhs, rhs = (at.place(value) for value in operation.operands)
    result = at.place(operation.result)
    way = Convolution(operation, lhs.tiling, rhs.tiling, result.tiling)
    product = way.product(at.config, lhs.buffer, rhs.buffer, result.buffer,
                          finisher(at.builder, operation.result.dtype))
    write_product(at.builder, split_ahead(product, at), at.smem)
