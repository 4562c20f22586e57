"""The transposer: a tile of lanes x lanes words, written by rows and read by columns.

Row r is stored rotated by r lanes: element (r, c) lies in bank (c + r) modulo the number of lanes,
at address r. So the elements of a row lie in different banks, and so do the elements of a column.
A row is written, and a column read, in one access.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..config import Config
from ..sram import Sram
from ..tiles import Each, Link, Shared, TileGrid, instantiate

__all__ = ["TransposeBank", "transpose_banks"]


class TransposeBank(wiring.Component):
    """One lane's memory bank of the transposer. All outputs are registered.

    Parameters
    ----------
    config : Config
        ``lanes`` is the number of banks, and the number of words in each.

    Attributes
    ----------
    lane : In(log2 lanes)
        The number of the bank; constant.
    write, write_row, write_data : In(1), In(log2 lanes), In(32)
        ``write`` stores the element at row ``write_row``, column ``lane - write_row`` (modulo
        ``lanes``).
    read, read_column : In(1), In(log2 lanes)
        ``read`` reads the element at row ``lane - read_column`` (modulo ``lanes``), column
        ``read_column``. A read in the cycle of a write to the same element returns the old value.
    read_data : Out(32)
        The element that was read last, from the cycle after ``read`` on.
    """

    def __init__(self, config: Config) -> None:
        self._lanes = config.lanes
        address = ceil_log2(config.lanes)
        super().__init__({
            "lane": In(address),
            "write": In(1), "write_row": In(address), "write_data": In(32),
            "read": In(1), "read_column": In(address), "read_data": Out(32),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        buffer = instantiate(m, platform, "buffer", Sram.module(32, self._lanes),
                             lambda: Sram(32, self._lanes))
        row = Signal(len(self.lane) + 1)
        wrapped = Signal(len(self.lane))
        m.d.comb += [
            # The highest bit is the sign of the row: if it is negative, add the number of lanes.
            row.eq(self.lane - self.read_column),
            wrapped.eq(row + Mux(row[-1], self._lanes, 0)),
            buffer.write.eq(self.write),
            buffer.write_address.eq(self.write_row),
            buffer.write_data.eq(self.write_data),
            buffer.read.eq(self.read),
            buffer.read_address.eq(wrapped),
            self.read_data.eq(buffer.read_data),
        ]
        return m


LINKS: tuple[Link, ...] = (
    *(Shared(port) for port in ("write", "write_row", "read", "read_column")),
    *(Each(port) for port in ("lane", "write_data", "read_data")),
)


def transpose_banks(config: Config) -> TileGrid:
    """Return the grid of ``lanes`` banks in one row, as module ``xlu_transpose``."""
    return TileGrid("xlu_transpose", "xlu_bank", lambda: TransposeBank(config), 1, config.lanes,
                    LINKS)
