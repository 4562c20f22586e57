"""The matrix unit: the systolic array behind three streams."""

from amaranth import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import instance
from ..config import Config
from ..tiles import TileGrid, instantiate
from .grid import mac_grid
from .lane import mxu_lanes

__all__ = ["COUNTER_BITS", "Mxu", "activation_row", "weight_row"]

COUNTER_BITS = 48
"""Width of a performance counter: enough for eight days at 400 MHz."""


def activation_row(config: Config) -> data.StructLayout:
    """Payload of the activation stream.

    ``data``: one fp32 number per array row. ``swap``: from this row on, the array uses the weights
    that were loaded last.
    """
    return data.StructLayout({"data": unsigned(32 * config.lanes), "swap": 1})


def weight_row(config: Config) -> data.StructLayout:
    """Payload of the weight stream.

    ``data``: one fp32 number per lane. ``transpose``: the rows of this load become the array's
    columns. Only the first row of a load determines ``transpose``.
    """
    return data.StructLayout({"data": unsigned(32 * config.lanes), "transpose": 1})


class Mxu(wiring.Component):
    """Weight-stationary matrix unit: each activation row x gives the result row x @ W.

    A load is ``array`` rows of the weight stream. It fills the shadow weights while the array
    computes with the active ones. An activation row with ``swap`` waits until a load is complete,
    and then makes its weights active. The next load waits for this swap. After a reset, all
    activation rows wait for the first swap. Each activation row gives one result row, in order,
    after ``config.array_latency`` cycles, or later if the result stream is blocked. The unit
    accepts one activation row and one weight row a cycle. Backpressure ensures that no data are
    lost or mixed, whatever the timing of the streams.

    If ``row_skew`` is 1, a load may follow the swap immediately. In deeper cells the wavefront of a
    swap is slower. If the swap is in cycle s, row r of a straight load is delayed to cycle s + 1 +
    (row_skew - 1) * r or later. Transposed loads travel with the wavefront and are not delayed.

    Attributes
    ----------
    w : In(stream of weight_row)
        Weights. Row r of a straight load is row r of W; of a transposed load it is column r.
    x : In(stream of activation_row)
        Activations.
    y : Out(stream of 32 * lanes bits)
        Results, one fp32 number per array column.
    cycles, mxu_active_cycles, weight_load_cycles : Out(COUNTER_BITS)
        Counts since reset: all cycles; cycles in which an activation row entered; cycles in which
        a weight row but no activation row entered.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "w": In(stream.Signature(weight_row(config))),
            "x": In(stream.Signature(activation_row(config))),
            "y": Out(stream.Signature(32 * config.lanes)),
            "cycles": Out(COUNTER_BITS),
            "mxu_active_cycles": Out(COUNTER_BITS),
            "weight_load_cycles": Out(COUNTER_BITS),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        lanes = instantiate(m, platform, "lanes", "mxu_lanes", lambda: mxu_lanes(self._config))
        grid = instantiate(m, platform, "grid", "mac_grid", lambda: mac_grid(self._config))
        for port in ("x", "x_valid", "swap"):
            m.d.comb += getattr(grid, port).eq(getattr(lanes, port))
        m.d.comb += [
            grid.w_north.eq(lanes.w),
            grid.w_north_valid.eq(lanes.w_north_valid),
            grid.w_west.eq(lanes.w),
            grid.w_west_valid.eq(lanes.w_west_valid),
            lanes.p.eq(grid.p),
            lanes.p_valid.eq(grid.p_valid),
        ]

        x_accept = Signal()
        w_accept = Signal()
        swap = Signal()
        m.d.comb += [
            x_accept.eq(self.x.valid & self.x.ready),
            w_accept.eq(self.w.valid & self.w.ready),
            swap.eq(x_accept & self.x.payload.swap),
        ]
        loaded = self._load_weights(m, lanes, w_accept, swap)
        credit = self._collect_rows(m, lanes, x_accept, grid.p_valid[-1])
        # Before the first swap after a reset, the weights in the cells are undefined.
        started = Signal()
        with m.If(swap):
            m.d.sync += started.eq(1)
        m.d.comb += self.x.ready.eq(credit & Mux(self.x.payload.swap, loaded, started))
        self._send_rows(m, lanes, x_accept, swap)

        m.d.sync += self.cycles.eq(self.cycles + 1)
        with m.If(x_accept):
            m.d.sync += self.mxu_active_cycles.eq(self.mxu_active_cycles + 1)
        with m.Elif(w_accept):
            m.d.sync += self.weight_load_cycles.eq(self.weight_load_cycles + 1)
        return m

    def _send_rows(self, m: Module, lanes: TileGrid, accept: Signal, swap: Signal) -> None:
        address = Signal(ceil_log2(self._config.operand_depth), name="x_address")
        m.d.comb += [
            lanes.x_in.eq(self.x.payload.data),
            lanes.x_write.eq(accept),
            lanes.x_write_address.eq(address),
        ]
        with m.If(accept):
            m.d.sync += address.eq(address + 1)
        # One cycle after the weights' token, so that a swap accepted in the cycle after the last
        # weight row reaches every cell after its weight.
        m.d.sync += [lanes.x_token.eq(accept), lanes.swap_token.eq(swap)]

    def _load_weights(self, m: Module, lanes: TileGrid, accept: Signal, swap: Signal) -> Signal:
        """Load weights; return a signal that is set while a complete load waits for its swap.

        ``accept``: a weight row is accepted. ``swap``: an activation row with a swap is accepted.
        """
        rows = self._config.array
        lag = self._config.row_skew - 1
        loaded = Signal()
        address = Signal(ceil_log2(self._config.operand_depth), name="w_address")
        count = Signal(range(rows + 1), name="w_count")
        transpose = Signal(name="w_transpose")
        chosen = Signal(name="w_chosen")
        may_follow = Signal(name="w_may_follow", init=1)
        m.d.comb += [
            loaded.eq(count == rows),
            transpose.eq(Mux(count == 0, self.w.payload.transpose, chosen)),
            self.w.ready.eq(~loaded & (transpose | may_follow)),
            lanes.w_in.eq(self.w.payload.data),
            lanes.w_write.eq(accept),
            lanes.w_write_address.eq(address),
            lanes.w_column_token.eq(accept & ~transpose),
            lanes.w_row_token.eq(accept & transpose),
        ]
        with m.If(accept):
            m.d.sync += [address.eq(address + 1), chosen.eq(transpose)]
        with m.If(swap):
            m.d.sync += count.eq(0)
        with m.Elif(accept):
            m.d.sync += count.eq(count + 1)

        if lag:
            # Row r must not reach row r of the array before the swap does, and a straight row must
            # not overtake a transposed one in the lanes.
            limit = lag * (rows - 1)
            since_swap = Signal(range(limit + 1), init=limit)
            since_transposed = Signal(range(limit + 1), init=limit)
            due = Signal(range(limit + lag + 1))
            with m.If(swap):
                m.d.sync += [since_swap.eq(0), due.eq(0)]
            with m.Else():
                with m.If(since_swap != limit):
                    m.d.sync += since_swap.eq(since_swap + 1)
                with m.If(accept):
                    m.d.sync += due.eq(due + lag)
            with m.If(accept & transpose):
                m.d.sync += since_transposed.eq(0)
            with m.Elif(since_transposed != limit):
                m.d.sync += since_transposed.eq(since_transposed + 1)
            m.d.comb += may_follow.eq((since_swap >= due) & (since_transposed == limit))
        return loaded

    def _collect_rows(self, m: Module, lanes: TileGrid, accept: Signal, arrived: Signal) -> Signal:
        """Collect results; return a signal that is set while there is room for one more result row.

        ``accept``: an activation row is accepted. ``arrived``: the element of the last column has
        arrived, and with it the whole result row.
        """
        depth = self._config.result_depth
        outstanding = Signal(range(depth + 1))
        complete = Signal(range(depth + 1))
        read = Signal(name="y_fetch")
        address = Signal(ceil_log2(depth), name="y_address")
        credit = Signal()
        m.d.comb += [
            credit.eq(outstanding != depth),
            read.eq((complete != 0) & (~self.y.valid | self.y.ready)),
            lanes.y_read.eq(read),
            lanes.y_read_address.eq(address),
            self.y.payload.eq(lanes.y),
        ]
        m.d.sync += [
            outstanding.eq(outstanding + accept - read),
            complete.eq(complete + arrived - read),
        ]
        with m.If(read):
            m.d.sync += [address.eq(address + 1), self.y.valid.eq(1)]
        with m.Elif(self.y.ready):
            m.d.sync += self.y.valid.eq(0)
        return credit
