"""Vector memory and HBM of a core's share of a product: the addresses that its code uses."""

from dataclasses import dataclass

from sim.asm.assembler import Assembler
from sim.compiler.handwritten import registers as r
from sim.compiler.handwritten.code import Code
from sim.compiler.handwritten.matmul import Matmul
from sim.compiler.handwritten.plan import Share, ceil_div, even
from sim.compiler.layout import TAIL_VECTORS

__all__ = ["LEAST", "Frame", "Places"]

LEAST = float("-inf")
"""``fmax`` with it changes no number: the floor of a product without a ReLU."""


@dataclass(frozen=True)
class Places:
    """Where the matrices of a product begin in HBM: byte addresses, multiples of a row's bytes.

    Attributes
    ----------
    a, b, c : int
        The matrices.
    tail : int
        Operands of the epilogue, if there is one.
    """

    a: int
    b: int
    c: int
    tail: int


class Frame(Code):
    """Sizes and addresses of a share."""

    def __init__(self, job: Matmul, share: Share, places: Places, asm: Assembler,
                 prefix: str) -> None:
        super().__init__(asm, prefix, r.COUNT)
        config = job.config
        blocking = job.blocking
        self._job, self._share, self._config = job, share, config
        self._epilogue = job.has_epilogue
        self._delay = job.delay
        self._floor = 0.0 if job.relu else LEAST
        self._tile = config.tile_vregs
        self._groups = blocking.group_rows
        self._slots = blocking.slots
        self._kept = blocking.kept and share.columns > 1
        self._passes = share.blocks * share.columns * job.depth_tiles
        # Results lag as far behind as the array needs at full rate, if it can hold that many.
        wanted = even(ceil_div(config.array_latency + 2 * config.sublanes + 8, config.sublanes))
        holds = (config.result_vregs - 1) // 2 * 2
        self._lag = max(2, min(wanted, holds, self._groups))
        # Pairs of weights pushed between rows: after the swap, and before the results change.
        self._between = min(self._tile // 2, self._lag // 2 - 1)

        self._zero = 0
        self._sums = [1 + self._delay, 1 + 2 * self._delay + self._groups]
        self._rows = self._sums[1] + self._groups
        self._weights = self._rows + self._slots * self._groups
        self._tail = self._weights + 2 * self._tile

        # Rows of HBM: where the share begins, and the distance to the next block, panel or tile.
        a_row, b_row, c_row, tail_row = (
            address // config.row_bytes for address in (places.a, places.b, places.c, places.tail))
        block = self._groups * config.sublanes
        self._block = block
        self._panel = job.a_layout.panels[1]
        self._a_first = a_row + share.first_block * block
        self._c_first = c_row + share.first_block * block + share.first_column * self._panel
        along, across = config.array, config.array * job.depth_tiles
        if job.transpose_b:
            along, across = config.array * job.column_tiles, config.array
        self._b_first = b_row + share.first_column * across
        self._b_deeper = along
        self._b_across = across - (job.depth_tiles - 1) * along
        self._tail_rows = TAIL_VECTORS * config.sublanes
        self._tail_first = tail_row + share.first_column * self._tail_rows
