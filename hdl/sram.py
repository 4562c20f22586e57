"""A memory with one write port and one read port, as in a block RAM or an SRAM macro."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from .checks import integer

__all__ = ["Sram"]


class Sram(wiring.Component):
    """Simple dual-port memory; read data follow the read by one cycle.

    A read in the cycle of a write to the same address returns the old value. The initial contents
    are undefined.

    Parameters
    ----------
    width : int
        Bits of an entry, at least 1.
    depth : int
        Number of entries, at least 2.

    Attributes
    ----------
    write, write_address, write_data : In(1), In(address), In(width)
        Write port.
    read, read_address : In(1), In(address)
        Read port.
    read_data : Out(width)
        The entry that the last ``read`` selected, held until the next ``read``.
    """

    def __init__(self, width: int, depth: int) -> None:
        self.width = width = integer("width", width, 1)
        self.depth = depth = integer("depth", depth, 2)
        self.address_bits = ceil_log2(depth)
        super().__init__({
            "write": In(1), "write_address": In(self.address_bits), "write_data": In(width),
            "read": In(1), "read_address": In(self.address_bits), "read_data": Out(width),
        })

    @staticmethod
    def module(width: int, depth: int) -> str:
        """Name of the Verilog module of a memory of ``depth`` entries of ``width`` bits."""
        return f"sram_{depth}x{width}"

    def verilog(self) -> str:
        """Return the behavioural Verilog module; a macro of the target can replace it."""
        address = self.address_bits - 1
        word = self.width - 1
        return f"""\
module {self.module(self.width, self.depth)} (
  input clk,
  input rst,  // unused: a memory has no reset
  input write,
  input [{address}:0] write_address,
  input [{word}:0] write_data,
  input read,
  input [{address}:0] read_address,
  output reg [{word}:0] read_data
);
  reg [{word}:0] words [0:{self.depth - 1}];
  always @(posedge clk) begin
    if (write) words[write_address] <= write_data;
    if (read) read_data <= words[read_address];
  end
endmodule
"""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.words = words = Memory(shape=self.width, depth=self.depth, init=[])
        write = words.write_port()
        read = words.read_port()
        m.d.comb += [
            write.en.eq(self.write),
            write.addr.eq(self.write_address),
            write.data.eq(self.write_data),
            read.en.eq(self.read),
            read.addr.eq(self.read_address),
            self.read_data.eq(read.data),
        ]
        return m
