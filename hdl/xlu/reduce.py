"""Sum or maximum of a row of fp32 numbers, by a pipelined binary tree of equal nodes."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import instance
from ..config import Config
from ..mxu.mac import F32_FRACTION, F32_NAN
from ..tiles import Each, Link, TileGrid, instantiate
from ..vpu.float import FloatAdd
from ..vpu.interface import row_bits

__all__ = ["NODE_LATENCY", "FloatLarger", "Reduce", "ReduceNode", "reduce_latency", "reduce_nodes"]

NODE_LATENCY = FloatAdd.latency
"""Cycles from a node's operands to its result."""

F32_MINUS_ZERO = 0x80000000
F32_MINUS_INF = 0xFF800000


def _levels(config: Config) -> int:
    return ceil_log2(config.lanes)


def reduce_latency(config: Config) -> int:
    """Return the cycles from a row at the input of `Reduce` to its result at the output."""
    return NODE_LATENCY * _levels(config)


class FloatLarger(wiring.Component):
    """The larger of two fp32 numbers; combinational.

    If an operand is NaN, the result is the NaN 0x7FC00000. A subnormal operand counts as zero of
    the same sign; +0 is larger than -0.

    Attributes
    ----------
    a, b : In(32)
        Operands.
    o : Out(32)
        Result.
    """

    combinational = True

    a: In(32)
    b: In(32)
    o: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()

        class Operand:
            def __init__(self, name: str, bits: Signal) -> None:
                self.sign = bits[31]
                self.magnitude = Signal(31, name=f"{name}_magnitude")
                self.nan = Signal(name=f"{name}_nan")
                exponent = Signal(8, name=f"{name}_exponent")
                m.d.comb += [
                    exponent.eq(bits[F32_FRACTION:31]),
                    self.magnitude.eq(Mux(exponent == 0, 0, bits[:31])),
                    self.nan.eq(exponent.all() & bits[:F32_FRACTION].any()),
                ]

        a = Operand("a", self.a)
        b = Operand("b", self.b)
        greater = Signal()
        take_b = Signal()
        larger = Signal(32)
        m.d.comb += [
            greater.eq(b.magnitude > a.magnitude),
            # The less negative one has the smaller magnitude; for equal ones, either may be chosen.
            take_b.eq(Mux(a.sign ^ b.sign, a.sign, greater ^ a.sign)),
            larger.eq(Mux(take_b, Cat(b.magnitude, b.sign), Cat(a.magnitude, a.sign))),
            self.o.eq(Mux(a.nan | b.nan, F32_NAN, larger)),
        ]
        return m


class ReduceNode(wiring.Component):
    """A node of the tree: adds two numbers, or returns the larger. All outputs are registered.

    A node keeps its state in a cycle in which neither its input nor any of its stages is valid.

    Attributes
    ----------
    valid, maximum, a, b : In(1), In(1), In(32), In(32)
        The operands, if ``valid``; ``maximum``: compute the maximum instead of the sum.
    result_valid, result_maximum, result : Out(1), Out(1), Out(32)
        The result, and ``valid`` and ``maximum`` for the next node, `NODE_LATENCY` cycles later.
    """

    valid: In(1)
    maximum: In(1)
    a: In(32)
    b: In(32)
    result_valid: Out(1)
    result_maximum: Out(1)
    result: Out(32)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        adder = instantiate(m, platform, "adder", "vpu_float_add", FloatAdd)
        compare = instantiate(m, platform, "compare", "xlu_float_larger", FloatLarger)
        valid = Signal()
        maximum = Signal()
        m.d.sync += [
            valid.eq(self.valid), self.result_valid.eq(valid),
            maximum.eq(self.maximum), self.result_maximum.eq(maximum),
        ]
        m.d.comb += [
            adder.a.eq(self.a),
            adder.b.eq(self.b),
            adder.subtract.eq(0),
            adder.enable.eq(Cat(self.valid & ~self.maximum, valid & ~maximum)),
            compare.a.eq(self.a),
            compare.b.eq(self.b),
        ]
        # The maximum takes one stage; a second one makes its latency equal to that of the sum.
        assert NODE_LATENCY == 2
        early = Signal(32, name="larger_early", reset_less=True)
        larger = Signal(32, reset_less=True)
        with m.If(self.valid & self.maximum):
            m.d.sync += early.eq(compare.o)
        with m.If(valid & maximum):
            m.d.sync += larger.eq(early)
        m.d.comb += self.result.eq(Mux(self.result_maximum, larger, adder.sum))
        return m


LINKS: tuple[Link, ...] = tuple(Each(port) for port in (
    "valid", "maximum", "a", "b", "result_valid", "result_maximum", "result"))


def reduce_nodes(config: Config) -> TileGrid:
    """Return all nodes of the tree as a grid of one row, module ``xlu_reduce_nodes``.

    Within the grid, nodes are not connected to each other; `Reduce` connects them into a tree.
    """
    return TileGrid("xlu_reduce_nodes", "xlu_reduce_node", ReduceNode, 1,
                    (1 << _levels(config)) - 1, LINKS)


class Reduce(wiring.Component):
    """Sum or maximum of a row by a binary tree: neighbouring elements first, then their results.

    Accepts one row a cycle; the result follows after `reduce_latency` cycles. If the number of
    lanes is not a power of two, some inputs of the tree are missing. They are -0 for a sum and
    minus infinity for a maximum, so they do not affect the result.

    Parameters
    ----------
    config : Config
        ``lanes`` is the length of a row.

    Attributes
    ----------
    valid, maximum, row : In(1), In(1), In(32 * lanes)
        The row, if ``valid``; ``maximum``: compute its maximum instead of its sum.
    result : Out(32)
        The result, `reduce_latency` cycles after a valid row; undefined in other cycles.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._config = config
        super().__init__({
            "valid": In(1), "maximum": In(1), "row": In(row_bits(config)), "result": Out(32),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        nodes = instantiate(m, platform, "nodes", "xlu_reduce_nodes",
                            lambda: reduce_nodes(self._config))
        leaves = 1 << _levels(self._config)
        absent = Signal(32)
        m.d.comb += absent.eq(Mux(self.maximum, F32_MINUS_INF, F32_MINUS_ZERO))
        # All words: first those of the row, then the nodes' results, level by level. Node k reads
        # words 2k and 2k + 1; its result is word leaves + k.
        words = [*(self.row.word_select(lane, 32) for lane in range(self._config.lanes)),
                 *[absent] * (leaves - self._config.lanes),
                 *(nodes.result.word_select(node, 32) for node in range(leaves - 1))]
        valid = [*[self.valid] * leaves, *nodes.result_valid]
        maximum = [*[self.maximum] * leaves, *nodes.result_maximum]
        m.d.comb += [
            nodes.a.eq(Cat(*words[:-1:2])),
            nodes.b.eq(Cat(*words[1:-1:2])),
            nodes.valid.eq(Cat(*valid[:-1:2])),
            nodes.maximum.eq(Cat(*maximum[:-1:2])),
            self.result.eq(words[-1]),
        ]
        return m
