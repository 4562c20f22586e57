"""Where a kernel keeps things: names and places, in C++, of ports, registers and inputs.

The state of a grid is a structure of arrays. A register of one bit is an array of 64-bit masks, one
for each *chunk*: 64 adjacent tiles of a row. A wider register is an array with an entry for each
tile. Row 0 of either, and the entry before tile 0, hold the values beyond the north and the west
edge of the grid, so that every tile finds its neighbour's output in the same way.
"""

from dataclasses import dataclass

from amaranth.lib.wiring import In, Out

from hdl.tiles import Chain, Link, TileGrid, port_widths
from sim.kernel.plan.plan import RESET, Plan, storage

__all__ = [
    "CHUNK",
    "MAX_SKIP_CHUNKS",
    "Port",
    "Ports",
    "can_skip",
    "input_index",
    "linked_port",
    "linked_register",
    "padding",
    "register_pointer",
    "storage_type",
    "wakers",
]

CHUNK = 64
"""Tiles of a row that are stepped or skipped together: the bits of a 64-bit mask."""

MAX_SKIP_CHUNKS = 8
"""Most chunks in a row of a grid that skips idle chunks: one byte holds a row's activity."""


@dataclass(frozen=True)
class Port:
    """A port of the grid as the C functions see it."""

    name: str
    width: int
    variable: str

    @property
    def is_bit(self) -> bool:
        """Whether the port has one bit, which C functions take as a byte."""
        return self.width == 1


class Ports:
    """The ports of a grid: inputs, the reset first, and outputs, each by name."""

    def __init__(self, grid: TileGrid) -> None:
        inputs = {RESET: 1, **port_widths(grid, In)}
        self.inputs = {name: Port(name, width, f"in{index}")
                       for index, (name, width) in enumerate(inputs.items())}
        self.outputs = {name: Port(name, width, f"out{index}")
                        for index, (name, width) in enumerate(port_widths(grid, Out).items())}


def linked_port(link: Link) -> str | None:
    """The grid output that a link drives, or the port of the same name; None if there is none."""
    return link.last if isinstance(link, Chain) else link.port


def linked_register(plan: Plan, link: Link) -> int:
    """Number of the register that holds a link's tile output."""
    return plan.outputs[link.source if isinstance(link, Chain) else link.port]


def storage_type(width: int) -> str:
    """C++ type of an entry of ``width`` bits."""
    return f"uint{storage(width)}_t"


def padding(width: int) -> int:
    """Entries of ``width`` bits before tile 0 of each row: they keep rows aligned to 64 bytes."""
    return 512 // storage(width)


def input_index(plan: Plan, name: str) -> int:
    """Number of a tile input: names of ports need not be C++ identifiers."""
    return list(plan.inputs).index(name)


def register_pointer(plan: Plan, register: int | None, row: str = "row + 1",
                     lane: str = "lane") -> str:
    """A pointer to the entry of a register wider than one bit; row and lane are expressions."""
    assert register is not None
    return f"&g.r{register}[{row}][{padding(plan.registers[register].width)} + {lane}]"


def can_skip(grid: TileGrid, plan: Plan) -> bool:
    """Whether idle chunks are skipped."""
    return plan.active is not None and grid.cols <= CHUNK * MAX_SKIP_CHUNKS


def wakers(plan: Plan) -> set[str]:
    """Inputs of a tile that can make it change when it is idle."""
    return {*plan.activity, RESET}
