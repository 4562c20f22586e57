"""A tile as expressions: next values of registers, writes to memories, and outputs."""

from dataclasses import dataclass, field

from sim.kernel.ir import Graph, Node

__all__ = ["Memory", "Read", "Register", "Tile", "Write"]


@dataclass(eq=False)
class Register:
    """A register: the node ``leaf`` is its value, ``next`` its value after the clock edge.

    Its initial value is ``init``.
    """

    name: str
    width: int
    init: int
    leaf: Node
    next: Node


@dataclass(eq=False)
class Write:
    """A write port: if ``enable`` is set, the bits of ``data`` under ``mask`` are stored.

    If ``mask`` is None, all bits are stored.
    """

    enable: Node
    address: Node
    data: Node
    mask: Node | None


@dataclass(eq=False)
class Memory:
    """A memory of ``depth`` entries, addressed by the lowest ``address_bits`` bits of an address.

    ``writes`` happen at the clock edge, in order.
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
    """A module: one clock, inputs as leaves, registers, memories, and outputs as expressions."""

    name: str
    graph: Graph
    inputs: dict[str, Node]
    widths: dict[str, int]
    registers: list[Register]
    memories: list[Memory]
    outputs: dict[str, Node]
