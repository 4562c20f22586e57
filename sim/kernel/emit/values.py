"""C++ expressions for values that need no vectors: uniform ones, bits of a chunk, constants."""

from dataclasses import dataclass

from sim.kernel.emit.layout import input_index
from sim.kernel.ir import Node, topological
from sim.kernel.plan.plan import Plan

__all__ = ["ChunkBits", "Constants", "Scope", "UniformValues"]

_UNIFORM = {
    "and": "{0} & {1}", "andb": "{0} & {1}", "or": "{0} | {1}", "orb": "{0} | {1}",
    "xor": "{0} ^ {1}", "xorb": "{0} ^ {1}", "notb": "{0} ^ 1",
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}",
    "shl": "{0} << {attr}", "shr": "{0} >> {attr}",
    "shlv": "{1} < 64 ? {0} << {1} : 0", "shrv": "{1} < 64 ? {0} >> {1} : 0",
    "clz": "scalar_clz({0}, {attr[0]}, {attr[1]})",
    "sel": "{0} ? {1} : {2}", "selb": "{0} ? {1} : {2}",
    "test": "({0} & {attr:#x}ull) != 0", "eq": "{0} == {1}", "ltu": "{0} < {1}",
}
"""C++ expression of each operation on 64-bit numbers, and on bits as C++ integers 0 and 1."""

_BITWISE = {
    "andb": "{0} & {1}", "orb": "{0} | {1}", "xorb": "{0} ^ {1}", "notb": "~{0}",
    "selb": "({0} & {1}) | (~{0} & {2})",
}
"""C++ expression of each bit operation on masks, which have a bit for each tile of a chunk."""


class UniformValues:
    """Values that are the same in all tiles, computed once in each step of the grid.

    ``lines`` are the C++ statements that compute them.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names: dict[Node, str] = {}
        self.lines: list[str] = []

    def name(self, root: Node) -> str:
        """C++ expression of the uniform value ``root``: a number, or a bit as 0 or 1."""
        for node in topological([root], lambda node: node in self._names):
            if node not in self._names:
                self._names[node] = self._add(node)
        return self._names[root]

    def _add(self, node: Node) -> str:
        if node.op in ("const", "bit"):
            return f"{node.number:#x}ull"
        name = f"s{len(self.lines)}"
        self.lines.append(f"u.{name} = {self._expression(node)};")
        return f"u.{name}"

    def _expression(self, node: Node) -> str:
        if node.op in ("leaf", "leafb"):
            return f"port{input_index(self._plan, node.origin[1])}"
        return _UNIFORM[node.op].format(*(self._names[arg] for arg in node.args), attr=node.attr)


class ChunkBits:
    """Bits, computed for the 64 tiles of a chunk at once in general-purpose registers.

    ``lines`` are the C++ statements that compute them.
    """

    def __init__(self, plan: Plan, uniform: UniformValues) -> None:
        self._plan = plan
        self._uniform = uniform
        self._names: dict[Node, str] = {}
        self.lines: list[str] = []

    def name(self, root: Node) -> str:
        """C++ expression of the bit ``root`` in all tiles of a chunk, as a 64-bit mask."""
        for node in topological([root], self._known):
            if node not in self._names and (node.is_bit or node is root):
                self._names[node] = self._add(node)
        return self._names[root]

    def define(self, node: Node, name: str) -> None:
        """Declares that the C++ variable ``name`` is the 64-bit mask of ``node`` in the chunk."""
        self._names[node] = name

    def _known(self, node: Node) -> bool:
        return node in self._names or self._plan.uniform(node)

    def _add(self, node: Node) -> str:
        if node.op == "bit":
            return "~uint64_t(0)" if node.attr else "uint64_t(0)"
        if self._plan.uniform(node):
            expression = f"-uint64_t({self._uniform.name(node)})"
        elif node.op == "leafb":
            expression = self._leaf(node)
        else:
            expression = _BITWISE[node.op].format(*(self._names[arg] for arg in node.args))
        name = f"w{len(self.lines)}"
        self.lines.append(f"const uint64_t {name} = {expression};")
        return name

    def _leaf(self, node: Node) -> str:
        kind, key = node.origin
        if kind == "reg":
            return f"g.b{key}[row + 1][c]"
        source = self._plan.inputs[key]
        match source.kind:
            case "each":
                return f"g.each_{input_index(self._plan, key)}[c]"
            case "south":
                return f"g.b{source.source}[row][c]"
            case _:
                own = f"g.b{source.source}"
                return (f"{own}[row + 1][c] << 1 "
                        f"| (c ? {own}[row + 1][c - 1] >> 63 : g.west{source.source})")


class Constants:
    """Constants that the vector code reads from memory.

    The constants are variables, so that the C++ compiler does not know their values. If it did, it
    would rebuild a constant at each use once vector registers run out. That would occupy execution
    units that the computation needs; an operand in memory does not.
    """

    def __init__(self) -> None:
        self._used: set[tuple[int, int]] = set()

    def name(self, lane: int, value: int) -> str:
        """C++ expression of a vector with ``value`` in all lanes, of ``lane`` bits each."""
        self._used.add((lane, value))
        return f"operand(g.k{lane}_{value:x})"

    def members(self) -> list[str]:
        """Declarations of the variables that hold the constants, as C++ members of the state."""
        return [f"Constant<{lane}> k{lane}_{value:x}{{{value:#x}ull}};"
                for lane, value in sorted(self._used)]


@dataclass(frozen=True)
class Scope:
    """Context of the vector code of one chunk: the plan, and values computed outside vectors."""

    plan: Plan
    uniform: UniformValues
    bits: ChunkBits
    constants: Constants
