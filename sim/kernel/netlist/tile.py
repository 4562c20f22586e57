"""A tile as expressions: next values of registers, writes to memories, and outputs."""

from dataclasses import dataclass, field

from sim.kernel.ir import Graph, Node

__all__ = ["Memory", "Read", "Register", "Tile", "Write"]


@dataclass(eq=False)
class Register:
    """A register of ``width`` bits with the initial value ``init``.

    The node ``leaf`` is its value before a clock edge, ``next`` its value after the edge.
    """

    name: str
    width: int
    init: int
    leaf: Node
    next: Node


@dataclass(eq=False)
class Write:
    """A write port: if ``enable`` is one, it stores the bits of ``data`` under ``mask``.

    If ``mask`` is None, it stores all bits.
    """

    enable: Node
    address: Node
    data: Node
    mask: Node | None


@dataclass(eq=False)
class Memory:
    """A memory of ``depth`` entries of ``width`` bits; addresses have ``address_bits`` bits.

    ``init`` lists the entries' initial values. All ``writes`` take effect at the clock edge; where
    several store to one entry, a later one in the list overwrites an earlier one.
    """

    name: str
    width: int
    depth: int
    address_bits: int
    init: list[int]
    writes: list[Write] = field(default_factory=list)


@dataclass(frozen=True)
class Read:
    """The attribute of a ``read`` node: the memory that it reads."""

    memory: Memory


@dataclass
class Tile:
    """A module with one clock, as expressions in ``graph``.

    ``inputs`` has a leaf for each input except the clock, ``outputs`` an expression for each
    output; ``widths`` gives the number of bits of each port.
    """

    name: str
    graph: Graph
    inputs: dict[str, Node]
    widths: dict[str, int]
    registers: list[Register]
    memories: list[Memory]
    outputs: dict[str, Node]
