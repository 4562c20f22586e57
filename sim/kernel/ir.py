"""Expressions of a tile: equal ones are shared (hash-consing), and simplified as they are built.

There are two kinds of values. A *number* is unsigned and has at most 64 bits; arithmetic is modulo
2**64, and a narrower width in the netlist becomes an explicit mask. Each number records which of
its bits can be one, so a mask that clears no such bit is never built; `narrow` removes masks that
affect no used bit. A *bit* is a truth value. Numbers are evaluated on SIMD lanes of 16, 32 or 64
bits: the narrowest that hold all bits that can be one and that affect a used bit (`lane_bits`).
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["ALL", "WIDTH", "Graph", "Node", "demands", "lane_bits", "leading_zeros", "low",
           "topological"]

WIDTH = 64
"""Maximum width of a number, in bits."""
ALL = (1 << WIDTH) - 1
"""Mask of all bits of a number."""


def low(width: int) -> int:
    """A mask of the ``width`` lowest bits, at most 64."""
    return (1 << min(width, WIDTH)) - 1


def leading_zeros(value: int, width: int, most: int) -> int:
    """Number of leading zeros of the lowest ``width`` bits of ``value``, at most ``most``.

    If all these bits are zero, the result is ``most``.
    """
    kept = value & low(width)
    return min(width - kept.bit_length(), most) if kept else most


class Node:
    """A value of a tile: an operation and its operands.

    Attributes
    ----------
    op : str
        The operation. Numbers: ``const``, ``leaf``, ``and``, ``or``, ``xor``, ``add``, ``sub``,
        ``mul``, ``shl``, ``shr`` (by the constant ``attr``), ``shlv``, ``shrv`` (by a number),
        ``sel`` (bit, number if it is one, number if not), ``read`` (memory ``attr`` at an address),
        ``clz`` (number of leading zeros of the lowest ``attr[0]`` bits, at most ``attr[1]``;
        ``attr[1]`` if these bits are all zero). Bits: ``bit`` (constant), ``leafb``, ``andb``,
        ``orb``, ``xorb``, ``notb``, ``selb``, ``test`` (whether any bit under the mask ``attr`` is
        one), ``eq``, ``ltu``.
    args : tuple of Node
        Operands.
    attr : object
        A constant, a mask, a shift distance, or what a leaf is: an input or a register of the tile.
    bits : int
        Mask of the bits of a number that can be one; 1 if the value is a bit.
    is_bit : bool
        Whether the value is a bit.
    index : int
        Position in the graph; a node comes after its operands.
    """

    __slots__ = ("args", "attr", "bits", "index", "is_bit", "op")

    def __init__(self, op: str, args: "tuple[Node, ...]", attr: object, bits: int, is_bit: bool,
                 index: int) -> None:
        self.op = op
        self.args = args
        self.attr = attr
        self.bits = bits
        self.is_bit = is_bit
        self.index = index

    def __repr__(self) -> str:
        args = ", ".join(f"%{arg.index}" for arg in self.args)
        return f"%{self.index}={self.op}({args}; {self.attr})"

    @property
    def origin(self) -> tuple[str, Any]:
        """Source of a leaf: ``in`` and the input's name, or ``reg`` and the register's number."""
        assert isinstance(self.attr, tuple)
        kind, key = self.attr
        return kind, key

    @property
    def number(self) -> int:
        """The attribute as an integer: value of a constant, distance of a shift, or mask."""
        assert isinstance(self.attr, int)
        return self.attr

    @property
    def counted(self) -> tuple[int, int]:
        """Attribute of a `clz`: its ``width`` and ``most``, which `Graph.clz` defines."""
        assert isinstance(self.attr, tuple)
        width, most = self.attr
        return width, most


class Graph:
    """Builds values (`Node`). Equal values are one node."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[object, ...], Node] = {}

    def _make(self, op: str, args: tuple[Node, ...], attr: object = None, bits: int = 1, *,
              is_bit: bool = False) -> Node:
        if not bits and op != "const":
            return self.const(0)
        key = (op, attr, *(arg.index for arg in args))
        node = self._nodes.get(key)
        if node is None:
            node = Node(op, args, attr, bits, is_bit, len(self._nodes))
            self._nodes[key] = node
        return node

    # Leaves

    def const(self, value: int) -> Node:
        """A constant number."""
        value &= ALL
        return self._make("const", (), value, value)

    def bit(self, value: bool | int) -> Node:
        """A constant bit."""
        return self._make("bit", (), int(bool(value)), is_bit=True)

    def leaf(self, name: object, width: int) -> Node:
        """A leaf of source ``name`` (`Node.origin`): a bit if ``width`` is 1, else a number."""
        if width == 1:
            return self._make("leafb", (), name, is_bit=True)
        return self._make("leaf", (), name, low(width))

    # Numbers

    def and_(self, x: Node, y: Node) -> Node:
        """Bitwise and."""
        x, y = self._ordered(x, y)
        if y.op != "const":
            if x is y:
                return x
            if not x.bits & y.bits:
                return self.const(0)
            return self._make("and", (x, y), None, x.bits & y.bits)
        mask = y.number & x.bits
        if mask == x.bits:
            return x
        if not mask:
            return self.const(0)
        if x.op == "const":
            return self.const(mask)
        if x.op == "and" and x.args[1].op == "const":
            return self.and_(x.args[0], self.const(mask))
        if x.op == "or":
            for one, other in (x.args, x.args[::-1]):
                if not other.bits & mask:
                    return self.and_(one, self.const(mask))
        if x.op == "sel" and all(arg.op == "const" for arg in x.args[1:]):
            return self.sel(x.args[0], self.const(x.args[1].number & mask),
                            self.const(x.args[2].number & mask))
        return self._make("and", (x, self.const(mask)), None, mask)

    def or_(self, x: Node, y: Node) -> Node:
        """Bitwise or."""
        x, y = self._ordered(x, y)
        if x is y:
            return x
        if y.op == "const":
            if x.op == "const":
                return self.const(x.number | y.number)
            if not y.number:
                return x
            if x.op == "or" and x.args[1].op == "const":
                return self.or_(x.args[0], self.const(x.args[1].number | y.number))
        if (x.op == "and" and y.op == "and" and x.args[0] is y.args[0]
                and x.args[1].op == "const" and y.args[1].op == "const"):
            return self.and_(x.args[0], self.const(x.args[1].number | y.args[1].number))
        return self._make("or", (x, y), None, x.bits | y.bits)

    def xor(self, x: Node, y: Node) -> Node:
        """Bitwise exclusive or."""
        x, y = self._ordered(x, y)
        if x is y:
            return self.const(0)
        if y.op == "const":
            if x.op == "const":
                return self.const(x.number ^ y.number)
            if not y.number:
                return x
            if x.op == "xor" and x.args[1].op == "const":
                return self.xor(x.args[0], self.const(x.args[1].number ^ y.number))
            if x.op == "sel" and all(arg.op == "const" for arg in x.args[1:]):
                return self.sel(x.args[0], self.const(x.args[1].number ^ y.number),
                                self.const(x.args[2].number ^ y.number))
        return self._make("xor", (x, y), None, x.bits | y.bits)

    def add(self, x: Node, y: Node) -> Node:
        """Sum modulo 2**64."""
        x, y = self._ordered(x, y)
        if y.op == "const":
            if x.op == "const":
                return self.const(x.number + y.number)
            if x.op == "add" and x.args[1].op == "const":
                return self.add(x.args[0], self.const(x.args[1].number + y.number))
        if not x.bits & y.bits:
            return self.or_(x, y)
        return self._make("add", (x, y), None, low((x.bits + y.bits).bit_length()))

    def sub(self, x: Node, y: Node) -> Node:
        """Difference modulo 2**64."""
        if x is y:
            return self.const(0)
        if y.op == "const":
            return self.add(x, self.const(-y.number))
        return self._make("sub", (x, y), None, ALL)

    def mul(self, x: Node, y: Node) -> Node:
        """Product modulo 2**64."""
        x, y = self._ordered(x, y)
        if y.op == "const":
            if x.op == "const":
                return self.const(x.number * y.number)
            if not y.number:
                return y
            if not y.number & (y.number - 1):
                return self.shl(x, y.number.bit_length() - 1)
        return self._make("mul", (x, y), None, low((x.bits * y.bits).bit_length()))

    def shl(self, x: Node, count: int) -> Node:
        """``x`` times 2**count, modulo 2**64."""
        if count == 0:
            return x
        if count >= WIDTH:
            return self.const(0)
        if x.op == "const":
            return self.const(x.number << count)
        if x.op == "shl":
            return self.shl(x.args[0], x.number + count)
        if x.op == "shr":
            moved = self.shift(x.args[0], count - x.number)
            return self.and_(moved, self.const(ALL << count))
        if x.op == "and" and x.args[1].op == "const":
            return self.and_(self.shl(x.args[0], count), self.const(x.args[1].number << count))
        if x.op == "sel" and all(arg.op == "const" for arg in x.args[1:]):
            return self.sel(x.args[0], self.shl(x.args[1], count), self.shl(x.args[2], count))
        return self._make("shl", (x,), count, (x.bits << count) & ALL)

    def shr(self, x: Node, count: int) -> Node:
        """``x`` divided by 2**count, rounded down."""
        if count == 0:
            return x
        if not x.bits >> count:
            return self.const(0)
        if x.op == "const":
            return self.const(x.number >> count)
        if x.op == "shr":
            return self.shr(x.args[0], x.number + count)
        if x.op == "shl" and x.args[0].bits << x.number <= ALL:
            return self.and_(self.shift(x.args[0], x.number - count), self.const(ALL >> count))
        if x.op == "and" and x.args[1].op == "const":
            return self.and_(self.shr(x.args[0], count), self.const(x.args[1].number >> count))
        if x.op == "or" and any(not arg.bits >> count or arg.op in ("const", "shl", "and", "or")
                                for arg in x.args):
            return self.or_(self.shr(x.args[0], count), self.shr(x.args[1], count))
        if x.op == "sel" and all(arg.op == "const" for arg in x.args[1:]):
            return self.sel(x.args[0], self.shr(x.args[1], count), self.shr(x.args[2], count))
        return self._shr(x, count)

    def _shr(self, x: Node, count: int) -> Node:
        return self._make("shr", (x,), count, x.bits >> count)

    def shift(self, x: Node, left: int) -> Node:
        """``x`` shifted to the left by ``left`` bits; if negative, to the right by ``-left``."""
        return self.shl(x, left) if left >= 0 else self.shr(x, -left)

    def shlv(self, x: Node, count: Node) -> Node:
        """``x`` shifted left by the number ``count`` of bits; zero if that is 64 or more."""
        if count.op == "const":
            return self.shl(x, count.number)
        if x.op == "const" and not x.number:
            return x
        if x.op == "shrv" and x.args[1] is count:
            # A shift to the right and back can only clear bits of the number.
            return self._make("shlv", (x, count), None, low(x.args[0].bits.bit_length()))
        lowest = (x.bits & -x.bits).bit_length() - 1
        highest = x.bits.bit_length() + min(count.bits, WIDTH)
        return self._make("shlv", (x, count), None, low(highest) & (ALL << lowest))

    def shrv(self, x: Node, count: Node) -> Node:
        """``x`` shifted right by the number ``count`` of bits; zero if that is 64 or more."""
        if count.op == "const":
            return self.shr(x, min(count.number, WIDTH))
        if x.op == "const" and not x.number:
            return x
        return self._make("shrv", (x, count), None, low(x.bits.bit_length()))

    def sel(self, bit: Node, x: Node, y: Node) -> Node:
        """``x`` if the bit is one, else ``y``."""
        if bit.op == "bit":
            return x if bit.attr else y
        if bit.op == "notb":
            return self.sel(bit.args[0], y, x)
        if x is y:
            return x
        if (bit.op == "test" and x.op == "const" and x.number == bit.number
                and not x.number & (x.number - 1) and y.op == "const" and not y.number):
            return self.and_(bit.args[0], x)
        x, y = self._under(bit, x, True), self._under(bit, y, False)
        if x is y:
            return x
        if (x.op == "and" and y.op == "and"
                and x.args[1].op == "const" and y.args[1].op == "const"):
            # One mask after the choice replaces a mask of each alternative.
            (x_inner, x_mask), (y_inner, y_mask) = x.args, y.args
            mask = x_mask.number | y_mask.number
            if not (x_inner.bits & mask & ~x_mask.number or y_inner.bits & mask & ~y_mask.number):
                return self.and_(self.sel(bit, x_inner, y_inner), self.const(mask))
        return self._make("sel", (bit, x, y), None, x.bits | y.bits)

    def _under(self, bit: Node, x: Node, value: bool) -> Node:
        """``x``, simplified under the assumption that ``bit`` has the value ``value``."""
        if x.op == "sel" and x.args[0] is bit:
            return x.args[1 if value else 2]
        if bit.op == "test" and not value and x.op == "and" and x.args[1].op == "const":
            # Bits that are known to be zero need not be masked.
            shifted = x.args[0]
            source = shifted.args[0] if shifted.op in ("shl", "shr") else shifted
            if source is bit.args[0] and shifted.op == "shl":
                possible = ((source.bits & ~bit.number) << shifted.number) & ALL
                if not possible & ~x.args[1].number:
                    return shifted
        return x

    def clz(self, x: Node, width: int, most: int) -> Node:
        """Number of leading zeros of the ``width`` lowest bits of ``x``, at most ``most``.

        If none of these bits is one, the result is ``most``. ``width`` is 1 to 64; ``most`` is one
        less than a power of two, and at most 63.
        """
        if x.op == "const":
            return self.const(leading_zeros(x.number, width, most))
        return self._make("clz", (x,), (width, most), most)

    def read(self, memory: object, address: Node, width: int) -> Node:
        """The entry, of ``width`` bits, at ``address`` of ``memory``."""
        return self._make("read", (address,), memory, low(width))

    # Bits

    def not_(self, x: Node) -> Node:
        """Negation of a bit."""
        if x.op == "bit":
            return self.bit(not x.attr)
        if x.op == "notb":
            return x.args[0]
        return self._make("notb", (x,), is_bit=True)

    def andb(self, x: Node, y: Node) -> Node:
        """Conjunction of two bits."""
        x, y = self._ordered(x, y)
        if y.op == "bit":
            return x if y.attr else y
        if x is y:
            return x
        if self.not_(x) is y:
            return self.bit(0)
        return self._make("andb", (x, y), is_bit=True)

    def orb(self, x: Node, y: Node) -> Node:
        """Disjunction of two bits."""
        x, y = self._ordered(x, y)
        if y.op == "bit":
            return y if y.attr else x
        if x is y:
            return x
        if self.not_(x) is y:
            return self.bit(1)
        if x.op == "test" and y.op == "test" and x.args[0] is y.args[0]:
            return self.test(x.args[0], x.number | y.number)
        return self._make("orb", (x, y), is_bit=True)

    def xorb(self, x: Node, y: Node) -> Node:
        """Exclusive or of two bits."""
        x, y = self._ordered(x, y)
        if y.op == "bit":
            return self.not_(x) if y.attr else x
        if x is y:
            return self.bit(0)
        if x.op == "notb":
            return self.not_(self.xorb(x.args[0], y))
        if y.op == "notb":
            return self.not_(self.xorb(x, y.args[0]))
        return self._make("xorb", (x, y), is_bit=True)

    def selb(self, bit: Node, x: Node, y: Node) -> Node:
        """``x`` if the bit is one, else ``y``."""
        if bit.op == "bit":
            return x if bit.attr else y
        if bit.op == "notb":
            return self.selb(bit.args[0], y, x)
        if x is y:
            return x
        if x.op == "bit":
            return self.orb(bit, y) if x.attr else self.andb(self.not_(bit), y)
        if y.op == "bit":
            return self.orb(self.not_(bit), x) if y.attr else self.andb(bit, x)
        return self._make("selb", (bit, x, y), is_bit=True)

    def test(self, x: Node, mask: int = ALL) -> Node:
        """Whether any bit of ``x`` under ``mask`` is one."""
        mask &= x.bits
        if not mask:
            return self.bit(0)
        if x.op == "const":
            return self.bit(1)
        if x.op == "and" and x.args[1].op == "const":
            return self.test(x.args[0], mask)
        if x.op == "shl":
            return self.test(x.args[0], mask >> x.number)
        if x.op == "shr":
            return self.test(x.args[0], mask << x.number)
        if x.op == "or" and (result := self._test_or(x, mask)) is not None:
            return result
        if x.op == "sel" and all(arg.op == "const" for arg in x.args[1:]):
            return self.selb(x.args[0], self.test(x.args[1], mask), self.test(x.args[2], mask))
        if x.op == "xor" and x.args[1].op == "const" and not mask & (mask - 1):
            inner = self.test(x.args[0], mask)
            return self.not_(inner) if x.args[1].number & mask else inner
        return self._make("test", (x,), mask, is_bit=True)

    def _test_or(self, x: Node, mask: int) -> Node | None:
        """A simpler node for ``test(x, mask)``, where ``x`` is an ``or``; None if there is none.

        An operand without bits under the mask is dropped. If an operand is a choice between
        constants, each of the two operands gets a test of its own.
        """
        for one, other in (x.args, x.args[::-1]):
            if not other.bits & mask:
                return self.test(one, mask)
        for one, other in (x.args, x.args[::-1]):
            if one.op == "sel" and all(arg.op == "const" for arg in one.args[1:]):
                return self.orb(self.test(one, mask), self.test(other, mask))
        return None

    def eq(self, x: Node, y: Node) -> Node:
        """Whether two numbers are equal."""
        x, y = self._ordered(x, y)
        if x is y:
            return self.bit(1)
        if y.op == "const":
            value = y.number
            if value & ~x.bits:
                return self.bit(0)
            if x.op == "const":
                return self.bit(x.number == value)
            if not value:
                return self.not_(self.test(x))
            if value == x.bits and not value & (value - 1):
                return self.test(x)
            if x.op == "and" and x.args[1].op == "const" and x.args[0].op == "shr":
                inner = x.args[0]
                return self.eq(self.and_(inner.args[0],
                                         self.const(x.args[1].number << inner.number)),
                               self.const(value << inner.number))
            if x.op == "sel" and all(arg.op == "const" for arg in x.args[1:]):
                return self.selb(x.args[0], self.bit(x.args[1].number == value),
                                 self.bit(x.args[2].number == value))
        return self._make("eq", (x, y), is_bit=True)

    def ltu(self, x: Node, y: Node) -> Node:
        """Whether ``x`` is less than ``y``, as unsigned numbers."""
        if x is y:
            return self.bit(0)
        if x.op == "const" and y.op == "const":
            return self.bit(x.number < y.number)
        if y.op == "const" and not y.number & (y.number - 1):
            return self.not_(self.test(x, -y.number & ALL)) if y.number else self.bit(0)
        if x.op == "const" and not x.number & (x.number + 1):
            return self.test(y, ALL & ~x.number)
        return self._make("ltu", (x, y), is_bit=True)

    def from_bit(self, bit: Node) -> Node:
        """A bit as a number, 0 or 1."""
        if bit.op == "test" and not bit.number & (bit.number - 1):
            place = bit.number.bit_length() - 1
            return self.and_(self.shr(bit.args[0], place), self.const(1))
        return self.sel(bit, self.const(1), self.const(0))

    @staticmethod
    def _ordered(x: Node, y: Node) -> tuple[Node, Node]:
        """Operands of a commutative operation: constants last, otherwise the older node first."""
        constants = ("const", "bit")
        if (x.op in constants, x.index) > (y.op in constants, y.index):
            return y, x
        return x, y


def topological(roots: Iterable[Node], stop: Callable[[Node], bool] = lambda node: False
                ) -> list[Node]:
    """The roots and all nodes on which they depend, each after its operands.

    Nodes for which ``stop`` is true are included; their operands are not searched.
    """
    found: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if not stop(node):
                pending.extend(node.args)
    return sorted(found, key=lambda node: node.index)


def demands(roots: Iterable[tuple[Node, int]], stop: Callable[[Node], bool] = lambda node: False
            ) -> dict[Node, int]:
    """For each node, a mask of its bits on which the used bits of the roots depend.

    ``roots`` pairs each root with a mask of its used bits. The search does not continue to the
    operands of nodes for which ``stop`` is true. A mask of the result may contain a bit that is
    always zero: a used bit may depend on this zero.
    """
    roots = list(roots)
    nodes = topological([root for root, _ in roots], stop)
    needed = dict.fromkeys(nodes, 0)
    for root, mask in roots:
        needed[root] |= mask
    for node in reversed(nodes):
        if not stop(node):
            for arg, mask in zip(node.args, _demand(node, needed[node]), strict=True):
                needed[arg] |= mask
    return needed


def _demand(node: Node, mask: int) -> list[int]:
    """For each operand of ``node``, a mask of its bits that affect the node's bits in ``mask``."""
    up_to = low(mask.bit_length())
    match node.op:
        case "and":
            x, y = node.args
            # A bit of one operand has no effect if the other operand's bit is known to be zero. If
            # both bits are known to be zero, only that of the second operand is demanded.
            return [mask & y.bits, mask & (x.bits | ~y.bits)]
        case "or" | "xor":
            return [mask, mask]
        case "add" | "sub" | "mul":
            return [up_to, up_to]
        case "shl":
            return [mask >> node.number]
        case "shr":
            return [(mask << node.number) & ALL]
        case "shlv":
            return [up_to, ALL]
        case "shrv":
            return [ALL, ALL]
        case "sel":
            return [1, mask, mask]
        case "test" | "clz":
            return [node.number if node.op == "test" else low(node.counted[0])]
        case _:
            return [ALL] * len(node.args)


def lane_bits(needed: Mapping[Node, int]) -> int:
    """Width of the narrowest lane (16, 32 or 64 bits) that holds all demanded bits that can be one.

    ``needed`` maps nodes to masks of their demanded bits, as `demands` returns them.
    """
    widest = max(((mask & node.bits).bit_length() for node, mask in needed.items()
                  if not node.is_bit), default=0)
    return 16 if widest <= 16 else 32 if widest <= 32 else 64
