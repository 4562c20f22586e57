"""Memory layout of a kernel: C++ names and addresses of ports, registers and inputs.

The state of a grid is a structure of arrays. A register of one bit is an array of 64-bit masks, one
for each *chunk*: 64 adjacent tiles of a row. A wider register is an array with an entry for each
tile. Row 0 of both kinds of array, and the entry before tile 0 of each row, hold the values beyond
the north and the west edge of the grid. So every tile finds its neighbour's output in the same way.
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
"""Number of tiles of a row that are stepped or skipped together: the bits of a 64-bit mask."""

MAX_SKIP_CHUNKS = 8
"""Maximum number of chunks in a row, if idle ones are skipped: one byte has a flag for each."""


@dataclass(frozen=True)
class Port:
    """A port of the grid as the C functions see it.

    ``width`` is the number of its bits, and ``variable`` its name in C++.
    """

    name: str
    width: int
    variable: str

    @property
    def is_bit(self) -> bool:
        """Whether the port has one bit, which C functions take as a byte."""
        return self.width == 1


class Ports:
    """The ports of a grid by name: ``inputs``, of which the reset is the first, and ``outputs``."""

    def __init__(self, grid: TileGrid) -> None:
        inputs = {RESET: 1, **port_widths(grid, In)}
        self.inputs = {name: Port(name, width, f"in{index}")
                       for index, (name, width) in enumerate(inputs.items())}
        self.outputs = {name: Port(name, width, f"out{index}")
                        for index, (name, width) in enumerate(port_widths(grid, Out).items())}


def linked_port(link: Link) -> str | None:
    """Name of the grid's port that belongs to ``link``.

    For a chain, this is the output that its last tiles drive; None if they drive no output.
    """
    return link.last if isinstance(link, Chain) else link.port


def linked_register(plan: Plan, link: Link) -> int:
    """Index in `Plan.registers` of the register that drives the tile output of ``link``."""
    return plan.outputs[link.source if isinstance(link, Chain) else link.port]


def storage_type(width: int) -> str:
    """C++ type that stores a number of ``width`` bits."""
    return f"uint{storage(width)}_t"


def padding(width: int) -> int:
    """Number of entries before tile 0, in each row of the array of a register with ``width`` bits.

    They take 64 bytes, the alignment of rows, so that tile 0 is aligned, too. The last of them is
    the value beyond the west edge.
    """
    return 512 // storage(width)


def input_index(plan: Plan, name: str) -> int:
    """Number that C++ names use for the tile input ``name``, which need not be a C++ identifier."""
    return list(plan.inputs).index(name)


def register_pointer(plan: Plan, register: int | None, row: str = "row + 1",
                     lane: str = "lane") -> str:
    """C++ pointer to an entry in the array of register number ``register``.

    The register is wider than one bit.
    ``row`` and ``lane`` are C++ expressions: a row of the array, and the column of a tile. Row 0
    holds the values that enter the grid at its north edge, and row n + 1 those of the grid's row n.
    """
    assert register is not None
    return f"&g.r{register}[{row}][{padding(plan.registers[register].width)} + {lane}]"


def can_skip(grid: TileGrid, plan: Plan) -> bool:
    """Whether the kernel skips idle chunks: idleness is proven, and a row's flags fit a byte."""
    return plan.active is not None and grid.cols <= CHUNK * MAX_SKIP_CHUNKS


def wakers(plan: Plan) -> set[str]:
    """Names of the tile inputs that can change an idle tile: activity inputs and the reset."""
    return {*plan.activity, RESET}
