"""C++ expressions for the values of adjacent tiles, one lane of a SIMD vector for each tile."""

from collections.abc import Mapping, Sequence

from sim.kernel.emit.fusion import COMPARES, Fusion, is_zero
from sim.kernel.emit.layout import input_index, register_pointer
from sim.kernel.emit.values import Scope
from sim.kernel.ir import Node, demands, low
from sim.kernel.netlist.tile import Read

__all__ = ["LaneValues"]


class LaneValues:
    """Values of adjacent tiles as SIMD vectors, with the functions of ``vec.hpp``.

    ``lines`` are the C++ statements that compute them. They refer to four C++ variables: ``row``;
    ``lane``, the column of the vector's first tile; ``s``, the position of that tile in its chunk;
    and ``present``, the mask of the vector's tiles that are updated. ``shared`` has the statements
    to execute before them, once for all vectors of a chunk: they compute vectors of uniform values.
    The keys are the C++ variables, some of which may not be used: an address, for example, often
    needs no vector.

    Parameters
    ----------
    scope : Scope
        Values computed outside the vector code.
    lane : int
        Width of a SIMD lane in bits: 16, 32 or 64. Not the C++ variable ``lane``.
    roots : sequence of (Node, int)
        Values to compute, each with a mask of its bits that are used.
    """

    def __init__(self, scope: Scope, lane: int, roots: Sequence[tuple[Node, int]]) -> None:
        self._scope = scope
        self._plan = scope.plan
        self._lane = lane
        self._needed = demands(roots, self._outside)
        self._fusion = Fusion(self._needed, (root for root, _ in roots), self._outside)
        inside = [node for node in self._needed if not self._outside(node)]
        self._differences = {frozenset(node.args): node for node in inside if node.op == "xorb"}
        self._fields = {(node.args[0], node.bits << node.number): node for node in inside
                        if node.op == "shr"}
        self._choices = {node.args: node for node in inside
                         if node.op == "sel" and self._fusion.is_plain(node)}
        self._names: dict[Node, str] = {}
        self.shared: dict[str, str] = {}
        self.lines: list[str] = []
        for node in self._needed:
            if node not in self._fusion.merged and node not in self._names \
                    and not self._exchange(node):
                self._names[node] = self._add(node)

    def name(self, node: Node) -> str:
        """C++ variable or expression that holds ``node``."""
        return self._names[node]

    def _outside(self, node: Node) -> bool:
        return self._plan.pure(node) or self._plan.uniform(node)

    def _add(self, node: Node) -> str:
        if node.op == "const":
            return self._const(node.number)
        name = f"v{node.index}"
        if self._plan.uniform(node):
            function = "same" if node.is_bit else "bcast"
            self.shared[name] = (f"const auto {name} = {function}<{self._lane}>"
                                 f"({self._scope.uniform.name(node)});")
        else:
            expression = self._bit(node) if node.is_bit else self._number(node)
            self.lines.append(f"const auto {name} = {expression};")
        return name

    def _exchange(self, node: Node) -> bool:
        """Computes two opposite choices, ``bit ? x : y`` and ``bit ? y : x``, by one C++ call.

        Returns False, and computes nothing, if ``node`` has no opposite choice.
        """
        if self._choices.get(node.args) is not node:
            return False
        bit, x, y = node.args
        other = self._choices.get((bit, y, x))
        if other is None:
            return False
        operands = [self._names[arg] for arg in (bit, *self._fusion.arms(node))]
        names = f"v{node.index}", f"v{other.index}"
        self.lines.append(
            f"const auto [{', '.join(names)}] = exchange({', '.join(operands)});")
        self._names[node], self._names[other] = names
        return True

    # Numbers

    def _number(self, node: Node) -> str:
        if node in self._fusion.conditional:
            return self._conditional(node)
        if node in self._fusion.logic:
            return self._logic(node)
        return self._operation(node)

    def _const(self, value: int) -> str:
        value &= low(self._lane)
        return self._scope.constants.name(self._lane, value) if value else f"zero<{self._lane}>()"

    def _conditional(self, node: Node) -> str:
        """C++ expression of ``node``, a sum or a bitwise OR that has a conditional operand.

        The conditional operand (`Fusion.conditional`) is a choice between a value and zero.
        """
        chosen = self._fusion.conditional[node]
        other = node.args[1] if node.args[0] is chosen else node.args[0]
        value = self._fusion.arms(chosen)[0]
        counts = value.op == "const" and value.number == 1 and (
            node.op == "add" or not other.bits & 1)
        function = "add_one_if" if counts else f"{node.op}_if"
        return (f"{function}({self._names[other]}, {self._names[chosen.args[0]]}, "
                f"{self._names[value]})")

    def _logic(self, node: Node) -> str:
        """C++ expression of a bitwise operation; for three operands, a lookup in a truth table."""
        leaves = self._fusion.logic[node]
        if len(leaves) != 3:
            return self._nested(node)
        a, b, c = leaves
        table = _truth_table(node, {a: 0xF0, b: 0xCC, c: 0xAA})
        return (f"SYSTOLITH_LOGIC({table:#x}, {self._names[a]}, {self._names[b]}, "
                f"{self._names[c]}, {self._nested(node)})")

    def _nested(self, node: Node) -> str:
        """C++ call that computes a bitwise operation.

        Operands that only ``node`` uses have no C++ names; nested calls compute them.
        """
        args = [self._names[arg] if arg in self._names else self._nested(arg) for arg in node.args]
        return f"{node.op}_({args[0]}, {args[1]})"

    def _operation(self, node: Node) -> str:
        if node.op == "sel":
            return self._choice(node)
        if isinstance(node.attr, Read):
            return self._read(node, node.attr)
        args = [self._names[arg] for arg in node.args]
        match node.op:
            case "leaf":
                return f"load<{self._lane}>({self._pointer(node)})"
            case "add" | "sub" | "shlv" | "shrv":
                return f"{node.op}({args[0]}, {args[1]})"
            case "mul":
                return f"{self._mul(node)}({args[0]}, {args[1]})"
            case "shl" | "shr":
                return f"{node.op}<{node.attr}>({args[0]})"
            case "clz":
                width, most = node.counted
                kind = "" if node.args[0].bits & ~low(width) else "clean_"
                return f"{kind}clz<{width}, {most}>({args[0]})"
            case _:
                raise AssertionError(node.op)

    def _choice(self, node: Node) -> str:
        bit = self._names[node.args[0]]
        x, y = self._fusion.arms(node)
        if (inverse := self._fusion.flipped.get(node)) is not None:
            value, constant = inverse.args
            where = bit if inverse is x else f"notb({bit})"
            return f"xor_if({self._names[value]}, {where}, {self._const(constant.number)})"
        if is_zero(y):
            return f"only({bit}, {self._names[x]})"
        if is_zero(x):
            return f"unless({bit}, {self._names[y]})"
        return f"sel({bit}, {self._names[x]}, {self._names[y]})"

    def _mul(self, node: Node) -> str:
        """Name of the cheapest C++ function that computes the product ``node``.

        Functions for narrow operands, or for the low bits of the product alone, are cheaper.
        """
        x, y = (arg.bits for arg in node.args)
        if self._lane == 32 and max(x, y) < 1 << 15:
            return "mul15"
        if self._lane > 16 and (self._needed[node] < 1 << 16
                                or (max(x, y) < 1 << 16 and node.bits < 1 << 16)):
            return "mul16"
        return "mul32" if self._lane == 64 and max(x, y) < 1 << 32 else "mul"

    def _pointer(self, node: Node) -> str:
        """C++ pointer to the value of the leaf ``node`` in the vector's first tile.

        The leaf is a register of the tile, or an input, which may be a neighbour's register.
        """
        kind, key = node.origin
        if kind == "reg":
            return register_pointer(self._plan, key)
        source = self._plan.inputs[key]
        match source.kind:
            case "each":
                return f"&g.each_{input_index(self._plan, key)}[lane]"
            case "south":
                return register_pointer(self._plan, source.source, row="row")
            case _:
                return register_pointer(self._plan, source.source, lane="lane - 1")

    def _read(self, node: Node, read: Read) -> str:
        memory = self._plan.memories.index(read.memory)
        address = node.args[0]
        uniform = self._plan.uniform(address)
        where = self._scope.uniform.name(address) if uniform else self._names[address]
        if not read.memory.writes:
            if uniform:
                return f"bcast<{self._lane}>(table{memory}[{where}])"
            return f"lookup(table{memory}, {where})"
        if uniform:
            return f"load<{self._lane}>(&g.m{memory}[row][{where}][lane])"
        return (f"gather<{self._lane}>(&g.m{memory}[row][0][lane], LANES_PER_ROW, "
                f"{where}, present)")

    # Bits

    def _bit(self, node: Node) -> str:
        if self._outside(node):
            return f"bits_at<{self._lane}>({self._scope.bits.name(node)}, s)"
        fusion = self._fusion
        if node in fusion.masked:
            chosen = fusion.masked[node]
            other = node.args[1] if node.args[0] is chosen else node.args[0]
            return self._compare(chosen, self._names[other] + ", ")
        if node.op in COMPARES or (node.op == "notb" and node.args[0] in fusion.merged):
            return self._compare(node, "")
        if node.op == "andb":
            for one, other in (node.args, node.args[::-1]):
                if one in fusion.merged or (one.op == "notb" and other not in fusion.merged
                                            and one.args[0] in self._names):
                    return f"andnb({self._names[one.args[0]]}, {self._names[other]})"
        args = [self._names[arg] for arg in node.args]
        if node.op == "selb":
            _, x, y = node.args
            differ = self._differences.get(frozenset((x, y)))
            if differ in self._names:
                return f"xorb({args[2]}, andb({args[0]}, {self._names[differ]}))"
            return f"orb(andb({args[0]}, {args[1]}), andnb({args[0]}, {args[2]}))"
        return f"{node.op}({', '.join(args)})"

    def _compare(self, node: Node, under: str) -> str:
        """C++ expression of a comparison or its negation.

        ``under`` is the first argument of the call, followed by a comma: a C++ mask of the lanes to
        compare. If ``under`` is empty, all lanes are compared.
        """
        inverted = node.op == "notb" or node in self._fusion.inverted
        if node.op == "notb":
            node = node.args[0]
        operation = COMPARES[node.op][inverted]
        operands = [self._names[arg] for arg in node.args]
        sign = 1 << (self._lane - 1)
        if node.op == "test":
            seen = node.args[0].bits & low(self._lane)
            if not under and node.number & low(self._lane) == sign:
                return f"{('negative', 'positive')[inverted]}({operands[0]})"
            field = self._fields.get((node.args[0], node.number))
            if field in self._names and not under:
                operation += "_field"
                operands += [self._const(node.number), self._names[field]]
            elif seen & ~node.number:
                operands.append(self._const(node.number))
            else:
                operation = ("ne", "eq")[inverted]
                operands.append(self._const(0))
        elif node.op == "ltu" and all(arg.bits < sign for arg in node.args):
            operation = ("lts", "ges")[inverted]
        return f"{operation}({under}{', '.join(operands)})"


def _truth_table(node: Node, leaves: Mapping[Node, int]) -> int:
    """Truth table of the bitwise operation ``node``, given the truth tables of its ``leaves``."""
    if node in leaves:
        return leaves[node]
    x, y = (_truth_table(arg, leaves) for arg in node.args)
    return x & y if node.op == "and" else x | y if node.op == "or" else x ^ y
