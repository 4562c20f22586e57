"""The plan of a clock edge of a grid: registers, where inputs come from, and groups of updates.

A *pure* bit depends only on bits and on values that are the same in all tiles. Pure bits are
computed for 64 tiles at once. Everything else belongs to a group: the registers and memory writes
that share an enable, with the logic that only they use. Where no tile of a vector enables a group,
the vector does not compute it. Here, a vector is a SIMD vector (`sim.kernel`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sim.kernel.ir import ALL, Graph, Node, demands, lane_bits, low, topological
from sim.kernel.netlist.tile import Memory, Read, Register, Tile

__all__ = ["RESET", "Group", "Input", "MemoryWrite", "Plan", "Update", "lane_for", "storage",
           "stored"]

RESET = "rst"


def storage(width: int) -> int:
    """Width of the C++ type that stores a number of ``width`` bits: 16, 32 or 64 bits."""
    return 16 if width <= 16 else 32 if width <= 32 else 64


def stored(width: int) -> int:
    """Mask of the bits that a store of a number of ``width`` bits uses: all bits of its C++ type.

    The stored bits above ``width`` must be zero, so no simplification may change them.
    """
    return low(storage(width))


@dataclass(frozen=True)
class Input:
    """Where a tile input comes from.

    Attributes
    ----------
    kind : str
        ``shared``: from the grid's port ``port``, the same value for all tiles. ``each``: from the
        slice of ``port`` that is wired to the tile. ``east``, ``south``: from register ``source``
        of the tile to the west or the north. At the grid's edge, where there is no such tile: from
        the slice of ``port`` for the tile's row or column, or zero if ``port`` is None.
    """

    kind: str
    width: int
    port: str | None
    source: int | None = None


@dataclass(frozen=True)
class Update:
    """Stores ``value`` in register number ``register``, of ``width`` bits, if ``enable`` is one."""

    register: int
    enable: Node
    value: Node
    width: int


@dataclass(frozen=True)
class MemoryWrite:
    """Stores ``data`` at ``address`` of memory number ``memory`` if ``enable`` is one.

    Entries have ``width`` bits. Only bits under ``mask`` are written; all bits if it is None.
    """

    memory: int
    enable: Node
    address: Node
    data: Node
    mask: Node | None
    width: int


@dataclass
class Group:
    """Updates and memory writes that vector code computes together, in tiles where ``enable`` is 1.

    SIMD lanes of ``lane`` bits compute them. If ``late``, the new values are stored only after all
    groups are computed; such a group has no memory writes.
    """

    enable: Node
    updates: list[Update] = field(default_factory=list)
    writes: list[MemoryWrite] = field(default_factory=list)
    lane: int = 0
    late: bool = False

    @property
    def tasks(self) -> list[Update | MemoryWrite]:
        """The updates of registers, and the writes to memories."""
        return [*self.updates, *self.writes]

    def values(self) -> Iterator[tuple[Node, int]]:
        """Values that the group computes, each with a mask of its bits that are used."""
        for update in self.updates:
            yield update.value, stored(update.width)
        for write in self.writes:
            yield write.address, ALL
            yield write.data, stored(write.width)
            if write.mask is not None:
                yield write.mask, stored(write.width)


@dataclass
class Plan:
    """The plan of a clock edge.

    Attributes
    ----------
    registers : list of Register
        The tile's registers, and one more for each output that is computed from registers.
    inputs : dict of str to Input
        Where each tile input comes from, by its name.
    outputs : dict of str to int
        Number of the register that holds each linked tile output.
    bits : list of (int, Node)
        For each register whose next value is a pure bit, its number and that value.
    lane_enables : list of Node
        Enables that are not pure bits: vector code computes them before the groups.
    groups : list of Group
        In the order of execution.
    active : list of int or None
        Registers that are all 0 in an idle tile (`sim.kernel.plan.idle`); None if idleness
        cannot be proven.
    activity : list of str
        1-bit tile inputs that can make an idle tile change.
    """

    tile: Tile
    graph: Graph
    registers: list[Register]
    memories: list[Memory]
    inputs: dict[str, Input]
    outputs: dict[str, int]
    bits: list[tuple[int, Node]] = field(default_factory=list)
    lane_enables: list[Node] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    active: list[int] | None = None
    activity: list[str] = field(default_factory=list)

    def uniform(self, node: Node) -> bool:
        """Whether a value is the same in all tiles."""
        return self._flags(node)[0]

    def pure(self, node: Node) -> bool:
        """Whether a value is a pure bit: computed only from bits and from `uniform` values."""
        return self._flags(node)[1]

    def __post_init__(self) -> None:
        self._known: dict[Node, tuple[bool, bool]] = {}

    def _flags(self, root: Node) -> tuple[bool, bool]:
        known = self._known
        if root not in known:
            for node in topological([root], lambda node: node in known):
                if node not in known:
                    known[node] = self._flags_of(node)
        return known[root]

    def _flags_of(self, node: Node) -> tuple[bool, bool]:
        if node.op in ("leaf", "leafb"):
            kind, name = node.origin
            shared = kind == "in" and self.inputs[name].kind == "shared"
            return shared, node.is_bit
        if node.op == "read":
            return False, False
        uniform = all(self._known[arg][0] for arg in node.args)
        pure = node.is_bit and (uniform or all(self._known[arg][1] for arg in node.args))
        return uniform, pure


def lane_for(plan: Plan, roots: Sequence[tuple[Node, int]], widths: Sequence[int] = ()) -> int:
    """Width in bits of the SIMD lanes in which ``roots`` are computed.

    ``roots`` pairs each value with a mask of its used bits. A lane is wide enough for all bits on
    which the used bits depend. It is also at least as wide as the storage (`storage`) of each
    register, input and memory entry that the roots read. ``widths`` are the widths of further
    numbers whose storage must fit a lane.
    """
    needed = demands(roots, lambda node: plan.pure(node) or plan.uniform(node))
    widths = [*widths]
    for node in needed:
        if node.op == "leaf" and not plan.uniform(node):
            widths.append(node.bits.bit_length())
        elif isinstance(node.attr, Read):
            widths.append(node.attr.memory.width)
    return max([lane_bits(needed), *map(storage, widths)])
