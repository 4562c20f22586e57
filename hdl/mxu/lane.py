"""A lane at the array's edge: feeds one row and one column, and collects one column's sums.

The lanes' memories produce the skew of the systolic array. All lanes write their element of an
operand row in the same cycle, and each lane reads it when the wavefront arrives. The read enable
passes as a token from lane to lane, delayed by the skew.
"""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..bf16 import RoundToBf16
from ..config import Config
from ..sram import Sram
from ..tiles import Chain, Each, Link, Shared, TileGrid, instantiate

__all__ = ["MxuLane", "mxu_lanes"]


class MxuLane(wiring.Component):
    """Operand and result FIFOs of lane i, for array row i and column i. Outputs are registered.

    The FIFOs have no full or empty flags. All lanes do the same work with fixed delays, so one
    counter in `hdl.mxu.mxu.Mxu` prevents overflow in all of them.

    Parameters
    ----------
    config : Config
        ``row_skew`` is the delay between neighbours; ``operand_depth`` and ``result_depth`` size
        the memories.

    Attributes
    ----------
    x_write, x_write_address, x_in : In(1), In(log2 operand_depth), In(32)
        Stores an activation (fp32), rounded to bfloat16.
    x_token, x_token_next : In(1), Out(1)
        ``x_token`` sends the oldest stored activation into the array, two cycles later.
        ``x_token_next`` is ``x_token`` for the next lane, delayed by ``row_skew`` cycles.
    swap_token, swap_token_next : In(1), Out(1)
        ``swap_token`` sends the swap bit into the array, one cycle later. ``swap_token_next`` is
        ``swap_token`` for the next lane, delayed by ``row_skew`` cycles.
    w_write, w_write_address, w_in : In(1), In(log2 operand_depth), In(32)
        Stores a weight (fp32), rounded to bfloat16.
    w_column_token, w_column_token_next : In(1), Out(1)
        ``w_column_token`` sends the oldest stored weight down this lane's column (a straight load),
        two cycles later. ``w_column_token_next``: the token for the next lane, one cycle later.
    w_row_token, w_row_token_next : In(1), Out(1)
        ``w_row_token`` sends the oldest stored weight along this lane's row (a transposed load),
        two cycles later. ``w_row_token_next``: the token for the next lane, ``row_skew`` cycles
        later.
    x, x_valid, swap, w, w_north_valid, w_west_valid : Out
        Operands, valid bits and swap bit to the array.
    p, p_valid : In(32), In(1)
        Sum from the array, which is stored if ``p_valid`` is set.
    y_read, y_read_address : In(1), In(log2 result_depth)
        Reads a stored result.
    y : Out(32)
        The result of the last ``y_read``, from the next cycle on.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        operand_address = ceil_log2(config.operand_depth)
        super().__init__({
            "x_write": In(1), "x_write_address": In(operand_address), "x_in": In(32),
            "x_token": In(1), "x_token_next": Out(1),
            "swap_token": In(1), "swap_token_next": Out(1),
            "w_write": In(1), "w_write_address": In(operand_address), "w_in": In(32),
            "w_column_token": In(1), "w_column_token_next": Out(1),
            "w_row_token": In(1), "w_row_token_next": Out(1),
            "x": Out(16), "x_valid": Out(1), "swap": Out(1),
            "w": Out(16), "w_north_valid": Out(1), "w_west_valid": Out(1),
            "p": In(32), "p_valid": In(1),
            "y_read": In(1), "y_read_address": In(ceil_log2(config.result_depth)),
            "y": Out(32),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        skew = self._config.row_skew

        def delayed(name: str, token: Signal, token_next: Signal, cycles: int) -> Signal:
            """Drive ``token_next`` with ``token`` delayed by ``cycles``, for the next lane.

            Return the token delayed by one cycle, for this lane.
            """
            line = Signal(cycles, name=f"{name}_line")
            m.d.sync += line.eq(Cat(token, line[:-1]))
            m.d.comb += token_next.eq(line[-1])
            return line[0]

        send_x = delayed("x", self.x_token, self.x_token_next, skew)
        send_swap = delayed("swap", self.swap_token, self.swap_token_next, skew)
        send_column = delayed("w_column", self.w_column_token, self.w_column_token_next, 1)
        send_row = delayed("w_row", self.w_row_token, self.w_row_token_next, skew)

        self._buffer(m, platform, "x", send_x, self.x)
        self._buffer(m, platform, "w", send_column | send_row, self.w)
        m.d.comb += self.swap.eq(send_swap)
        m.d.sync += [
            self.x_valid.eq(send_x),
            self.w_north_valid.eq(send_column),
            self.w_west_valid.eq(send_row),
        ]
        self._collect(m, platform)
        return m

    def _buffer(self, m: Module, platform: object, name: str, read: Signal, out: Signal) -> None:
        """Instantiate the operand FIFO ``name``, which rounds its input and is read in order.

        ``read`` removes the oldest operand, which drives ``out`` from the next cycle on.
        """
        depth = self._config.operand_depth
        round_ = instantiate(m, platform, f"{name}_round", "round_to_bf16", RoundToBf16)
        buffer = instantiate(m, platform, f"{name}_buffer", Sram.module(16, depth),
                             lambda: Sram(16, depth))
        head = Signal(ceil_log2(depth), name=f"{name}_head")
        m.d.comb += [
            round_.i.eq(getattr(self, f"{name}_in")),
            buffer.write.eq(getattr(self, f"{name}_write")),
            buffer.write_address.eq(getattr(self, f"{name}_write_address")),
            buffer.write_data.eq(round_.o),
            buffer.read.eq(read),
            buffer.read_address.eq(head),
            out.eq(buffer.read_data),
        ]
        with m.If(read):
            m.d.sync += head.eq(head + 1)

    def _collect(self, m: Module, platform: object) -> None:
        """Instantiate the result FIFO, written in order and read at the controller's address."""
        depth = self._config.result_depth
        buffer = instantiate(m, platform, "y_buffer", Sram.module(32, depth),
                             lambda: Sram(32, depth))
        tail = Signal(ceil_log2(depth), name="y_tail")
        m.d.comb += [
            buffer.write.eq(self.p_valid),
            buffer.write_address.eq(tail),
            buffer.write_data.eq(self.p),
            buffer.read.eq(self.y_read),
            buffer.read_address.eq(self.y_read_address),
            self.y.eq(buffer.read_data),
        ]
        with m.If(self.p_valid):
            m.d.sync += tail.eq(tail + 1)


LINKS: tuple[Link, ...] = (
    *(Shared(port) for port in ("x_write", "x_write_address", "w_write", "w_write_address",
                                "y_read", "y_read_address")),
    *(Chain(f"{token}_next", token, "east", first=token)
      for token in ("x_token", "swap_token", "w_column_token", "w_row_token")),
    *(Each(port) for port in ("x_in", "w_in", "x", "x_valid", "swap", "w", "w_north_valid",
                              "w_west_valid", "p", "p_valid", "y")),
)


def mxu_lanes(config: Config) -> TileGrid:
    """Return the grid of ``lanes`` lanes in one row, as module ``mxu_lanes``."""
    return TileGrid("mxu_lanes", "mxu_lane", lambda: MxuLane(config), 1, config.lanes, LINKS)
