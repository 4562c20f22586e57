"""CRC-32 of a whole frame in one cycle."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .format import CHECK_BITS, LinkConfig, frame_body, frame_check

__all__ = ["FrameCheck"]


class FrameCheck(wiring.Component):
    """Computes `frame_check`, the checksum of a frame; combinational.

    A CRC is affine. The checksum of a frame is the checksum of zeros, exclusive-ored with one
    constant for each bit that is set in the frame. So each bit of the checksum is the parity of
    some bits of the frame. The parity is inverted if the checksum of zeros has a 1 in this bit.

    Parameters
    ----------
    config : LinkConfig

    Attributes
    ----------
    body : In(frame_body)
        The frame without its checksum.
    check : Out(32)
        The checksum.
    """

    combinational = True

    def __init__(self, config: LinkConfig) -> None:
        self._config = config
        self._bits = frame_body(config).size
        super().__init__({"body": In(self._bits), "check": Out(CHECK_BITS)})

    @staticmethod
    def module(config: LinkConfig) -> str:
        """Name of the Verilog module of a `FrameCheck` with these parameters."""
        return f"frame_check_{frame_body(config).size}"

    def elaborate(self, platform: object) -> Module:
        m = Module()
        zero = frame_check(self._config, 0)
        effects = [frame_check(self._config, 1 << bit) ^ zero for bit in range(self._bits)]
        for place in range(CHECK_BITS):
            mask = sum((effect >> place & 1) << bit for bit, effect in enumerate(effects))
            m.d.comb += self.check[place].eq((self.body & mask).xor() ^ (zero >> place & 1))
        return m
