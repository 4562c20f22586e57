"""Convolutions of inputs with few features: the filter is pushed as rows, the input as weights.

Where an input has few features, its rows would fill few of the array's lanes. So the roles are
exchanged. The filter is pushed as rows, one for each output feature. Each row of a weight tile is
one feature of a whole line of the input, as needed at one offset within the filter. The input's
columns run along the lanes. `sim.compiler.passes.convolutions.split_lines` writes such
convolutions.
"""

from dataclasses import dataclass

from hdl.config import Config
from sim.compiler.graph.ir import Operation
from sim.compiler.kernels.lowering import Choice, Lowering, chooses, lowers
from sim.compiler.kernels.products.ahead import split_ahead
from sim.compiler.kernels.products.dot import cheapest, finisher, precision
from sim.compiler.kernels.products.pieces import scheme
from sim.compiler.kernels.products.product import Finish, Level, Product
from sim.compiler.kernels.products.steps import write_product
from sim.compiler.machine.ir import VmemBuffer
from sim.compiler.tiling import Tiling, standard

__all__ = ["LineConvolution"]


@dataclass(frozen=True, eq=False)
class LineConvolution:
    """The computation of a `line_convolution` on the array.

    Attributes
    ----------
    operation : Operation
        Its first operand is the input, shape (images, lines, features, offsets, columns). Its
        second operand is the filter, shape (outputs, filter lines * offsets * features).
        With a stride of s columns, s adjacent columns of the filter form a group. ``offsets`` is
        the number of groups, and ``features`` counts the features of all s columns of a group. The
        input has a copy of each line for each group.
    config : Config
    """

    operation: Operation
    config: Config

    @property
    def tilings(self) -> tuple[Tiling, Tiling]:
        """Tilings of the input and the filter.

        The input's features, and the filter's output features, run along the sublanes. The vectors
        of an image that contribute to the same sums are consecutive.
        """
        lines, filters = (value.shape for value in self.operation.operands)
        config = self.config
        return (Tiling(lines, (0, 1, 3, 2, 4), True, config.sublanes, config.lanes),
                standard(filters, config))

    def product(self, lines: VmemBuffer, filters: VmemBuffer, results: VmemBuffer,
                finish: Finish | None = None) -> Product:
        """Return the product that computes the convolution on these buffers.

        ``finish`` writes the code that converts a sum to the vector that is stored; None if sums
        are stored as they are.
        """
        operation, config = self.operation, self.config
        (left, right), tile = operation.operands, config.tile_vregs
        images, count, features, offsets, _ = left.shape
        line = offsets * (features // config.sublanes)
        rows = self.tilings[1]
        sums = (Level(rows.lane_tiles, rows.row_tiles, weight_row=tile, depth=config.lanes),)
        tiles = rows.row_tiles
        others = (Level(operation.result.shape[0], weights=operation.attributes["stride"] * line,
                        results=images * tiles),
                  Level(images, weights=count * line, results=tiles))
        return cheapest(
            Product(config, filters, lines, results,
                    scheme(right.dtype, left.dtype, precision(operation)), sums, others, Level(1),
                    rows.columns, False, rows.columns // config.sublanes, finish),
            [Level(tiles, 1, results=1)])


@chooses("line_convolution")
def _choose(operation: Operation, operands: tuple[Tiling, ...], config: Config) -> Choice:
    features, columns = operation.operands[0].shape[2], operation.operands[0].shape[4]
    if features % config.sublanes or columns > config.lanes:
        raise ValueError(f"features must be a multiple of {config.sublanes}, and columns at "
                         f"most {config.lanes}, not {features} and {columns}")
    return Choice(LineConvolution(operation, config).tilings,
                  (standard(operation.result.shape, config),))


@lowers("line_convolution")
def _lower(operation: Operation, at: Lowering) -> None:
    lines, filters = (at.place(value).buffer for value in operation.operands)
    b = at.builder
    product = LineConvolution(operation, at.config).product(
        lines, filters, at.place(operation.result).buffer, finisher(b, operation.result.dtype))
    write_product(b, split_ahead(product, at), at.smem)
