"""Rotation of a row of words over the lanes, by any distance."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..checks import instance
from ..config import Config
from ..vpu.interface import row_bits

__all__ = ["DIGIT_BITS", "Rotator", "rotation_latency"]

DIGIT_BITS = 2
"""Bits of the distance that a step handles.

Two, because a 4-to-1 multiplexer takes one lookup table of an FPGA for each bit of the row."""


def rotation_latency(config: Config) -> int:
    """Return the cycles from the input of `Rotator` to its output: one for each step."""
    return -(-ceil_log2(config.lanes) // DIGIT_BITS)


class Rotator(wiring.Component):
    """Moves lane l of a row to lane (l + distance) modulo the number of lanes.

    The rotator has a step for each digit of the distance in base 4. Each step ends in registers
    that load only valid rows. The rotator accepts one row a cycle, and takes `rotation_latency`
    cycles from input to output. The number of lanes need not be a power of two: the distances of
    the steps add up modulo the number of lanes.

    Parameters
    ----------
    config : Config
        ``lanes`` is the length of a row.

    Attributes
    ----------
    valid, row, distance : In(1), In(32 * lanes), In(log2 lanes)
        The row, if ``valid``, and the distance of its rotation in lanes, less than ``lanes``.
    rotated : Out(32 * lanes)
        The rotated row, `rotation_latency` cycles after a valid row; undefined in other cycles.
    """

    def __init__(self, config: Config) -> None:
        instance("config", config, Config)
        self._lanes = config.lanes
        self._steps = rotation_latency(config)
        super().__init__({
            "valid": In(1), "row": In(row_bits(config)), "distance": In(ceil_log2(config.lanes)),
            "rotated": Out(row_bits(config)),
        })

    def elaborate(self, platform: object) -> Module:
        m = Module()
        row: Value = self.row
        valid: Value = self.valid
        distance: Value = self.distance
        # Each step rotates by one digit of the distance, and is one pipeline stage.
        for step in range(self._steps):
            stride = 1 << DIGIT_BITS * step
            digit = Signal(min(DIGIT_BITS, len(distance)), name=f"digit_{step}")
            turned = Signal(len(self.row), name=f"row_{step}", reset_less=True)
            m.d.comb += digit.eq(distance[:DIGIT_BITS])
            # One choice of four, not two successive choices of two: without signals in between,
            # a simulator need not compute it for a row that is not valid.
            choices = [self._turned(row, number * stride) for number in range(1 << len(digit))]
            for bit in digit:
                choices = [Mux(bit, odd, even)
                           for even, odd in zip(choices[::2], choices[1::2], strict=True)]
            with m.If(valid):
                m.d.sync += turned.eq(choices[0])
            if step < self._steps - 1:
                left = Signal(len(distance) - DIGIT_BITS, name=f"distance_{step}", reset_less=True)
                moving = Signal(name=f"valid_{step}")
                m.d.sync += [left.eq(distance[DIGIT_BITS:]), moving.eq(valid)]
                distance, valid = left, moving
            row = turned
        m.d.comb += self.rotated.eq(row)
        return m

    def _turned(self, row: Value, lanes: int) -> Value:
        """Return ``row`` rotated by the constant distance ``lanes``."""
        cut = 32 * (self._lanes - lanes % self._lanes)
        return Cat(row[cut:], row[:cut])
