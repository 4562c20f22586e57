"""C++ and Verilog of a plan: the kernel's state and step, and the module that calls it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from amaranth.lib.wiring import In, Out

from hdl.tiles import Chain, TileGrid, port_widths
from sim.kernel.ir import Node, demands, low, topological
from sim.kernel.netlist import Read
from sim.kernel.plan import RESET, Group, MemoryWrite, Plan, Update, lane_for, storage

__all__ = ["MAX_SKIP_CHUNKS", "can_skip", "cpp", "shim"]

CHUNK = 64
"""Tiles of a row that are evaluated or skipped together: the bits of a machine word."""

MAX_SKIP_CHUNKS = 8
"""Chunks of a row of which one byte tells which are active."""

_LOGIC = ("and", "or", "xor")
_COMPARE = {"test": ("test", "testn"), "eq": ("eq", "ne"), "ltu": ("ltu", "geu")}


def _element(width: int) -> str:
    return f"uint{storage(width)}_t"


@dataclass(frozen=True)
class _Port:
    """A port of the grid as the C function sees it."""

    name: str
    width: int
    variable: str

    @property
    def is_bit(self) -> bool:
        return self.width == 1


class _Ports:
    def __init__(self, grid: TileGrid) -> None:
        inputs = {RESET: 1, **port_widths(grid, In)}
        self.inputs = {name: _Port(name, width, f"in{index}")
                       for index, (name, width) in enumerate(inputs.items())}
        self.outputs = {name: _Port(name, width, f"out{index}")
                        for index, (name, width) in enumerate(port_widths(grid, Out).items())}


class _Scalars:
    """Values that are the same in all tiles: computed once a step."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names: dict[Node, str] = {}
        self.lines: list[str] = []

    def name(self, root: Node) -> str:
        """An expression for a word, or for a bit as 0 or 1."""
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
        args = [self._names[arg] for arg in node.args]
        a, b, c = (*args, "", "", "")[:3]
        match node.op:
            case "leaf" | "leafb":
                return f"port{_index(self._plan, node.origin[1])}"
            case "and" | "andb":
                return f"{a} & {b}"
            case "or" | "orb":
                return f"{a} | {b}"
            case "xor" | "xorb":
                return f"{a} ^ {b}"
            case "add":
                return f"{a} + {b}"
            case "sub":
                return f"{a} - {b}"
            case "mul":
                return f"{a} * {b}"
            case "shl":
                return f"{a} << {node.attr}"
            case "shr":
                return f"{a} >> {node.attr}"
            case "shlv":
                return f"{b} < 64 ? {a} << {b} : 0"
            case "shrv":
                return f"{b} < 64 ? {a} >> {b} : 0"
            case "sel" | "selb":
                return f"{a} ? {b} : {c}"
            case "notb":
                return f"{a} ^ 1"
            case "test":
                return f"({a} & {node.number:#x}ull) != 0"
            case "eq":
                return f"{a} == {b}"
            case _:
                return f"{a} < {b}"


class _Words:
    """Bits of 64 tiles at a time, in general-purpose registers."""

    def __init__(self, plan: Plan, scalars: _Scalars) -> None:
        self._plan = plan
        self._scalars = scalars
        self._names: dict[Node, str] = {}
        self.lines: list[str] = []

    def name(self, root: Node) -> str:
        """A word of the bits of a chunk."""
        for node in topological([root], self._known):
            if node not in self._names and (node.is_bit or node is root):
                self._names[node] = self._add(node)
        return self._names[root]

    def given(self, node: Node, name: str) -> None:
        """Says that the bits ``node`` are in the variable ``name``."""
        self._names[node] = name

    def _known(self, node: Node) -> bool:
        return node in self._names or self._plan.uniform(node)

    def _add(self, node: Node) -> str:
        if node.op == "bit":
            return "~uint64_t(0)" if node.attr else "uint64_t(0)"
        if self._plan.uniform(node):
            expression = f"-uint64_t({self._scalars.name(node)})"
        elif node.op == "leafb":
            expression = self._leaf(node)
        else:
            a, b, c = (*(self._names[arg] for arg in node.args), "", "")[:3]
            expression = {"andb": f"{a} & {b}", "orb": f"{a} | {b}", "xorb": f"{a} ^ {b}",
                          "notb": f"~{a}", "selb": f"({a} & {b}) | (~{a} & {c})"}[node.op]
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
                return f"g.each_{_index(self._plan, key)}[c]"
            case "south":
                return f"g.b{source.source}[row][c]"
            case _:
                own = f"g.b{source.source}"
                return (f"{own}[row + 1][c] << 1 "
                        f"| (c ? {own}[row + 1][c - 1] >> 63 : g.west{source.source})")


def _index(plan: Plan, name: str) -> int:
    """Number of a tile input: names of ports need not be C++ identifiers."""
    return list(plan.inputs).index(name)


class _Constants:
    """Constants of vectors, kept in memory.

    A compiler that knows their values builds those for which it has no register left from
    general-purpose registers, every time, in the very units that compute; an operand in memory
    costs nothing. 16-bit instructions have no operands that are one word for all lanes.
    """

    def __init__(self) -> None:
        self._used: set[tuple[int, int]] = set()

    def name(self, lane: int, value: int) -> str:
        """An expression for a vector."""
        self._used.add((lane, value))
        variable = f"g.k{lane}_{value:x}"
        return f"load<16>({variable})" if lane == 16 else f"bcast<{lane}>({variable})"

    def members(self) -> list[str]:
        """Members of the state."""
        return [f"alignas(64) uint16_t k16_{value:x}[32];" if lane == 16
                else f"uint{lane}_t k{lane}_{value:x} = {value:#x}ull;"
                for lane, value in sorted(self._used)]

    def start(self) -> list[str]:
        """What gives them their values."""
        return [f"for (auto& word : k16_{value:x}) word = {value:#x};"
                for lane, value in sorted(self._used) if lane == 16]


class _Lanes:
    """Values of a vector of tiles."""

    def __init__(self, plan: Plan, scalars: _Scalars, words: _Words, constants: _Constants,
                 lane: int, roots: Sequence[tuple[Node, int]], present: str) -> None:
        self._plan = plan
        self._scalars = scalars
        self._words = words
        self._constants = constants
        self._lane = lane
        self._present = present
        self._names: dict[Node, str] = {}
        self.lines: list[str] = []
        self._roots = [root for root, _ in roots]
        self._needed = demands(roots, self._outside)
        self._uses: Counter[Node] = Counter(root for root, _ in roots)
        for node in self._needed:
            if not self._outside(node):
                self._uses.update(node.args)
        self._merged: set[Node] = set()
        self._choose(self._needed)
        for node in self._needed:
            if node not in self._merged:
                self._names[node] = self._add(node)

    def name(self, node: Node) -> str:
        """Variable or expression of a value."""
        return self._names[node]

    def _outside(self, node: Node) -> bool:
        return self._plan.pure(node) or self._plan.uniform(node)

    # Which nodes are computed as part of their only user

    def _choose(self, nodes: Iterable[Node]) -> None:
        self._logic: dict[Node, list[Node]] = {}
        self._conditional: dict[Node, Node] = {}
        self._masked: dict[Node, Node] = {}
        self._choose_polarity(nodes)
        for node in nodes:
            if self._outside(node):
                continue
            if node.op == "notb" and self._single(node.args[0]) and node.args[0].op in _COMPARE:
                self._merged.add(node.args[0])
            elif node.op == "andb":
                for arg in node.args:
                    inner = arg.args[0] if arg.op == "notb" and arg.args[0] in self._merged else arg
                    if inner.op in _COMPARE and self._single(arg):
                        self._masked[node] = arg
                        self._merged |= {arg, inner}
                        break
                else:
                    # It will be an and-not.
                    for arg in node.args:
                        if arg.op == "notb" and self._single(arg) \
                                and arg.args[0] not in self._merged:
                            self._merged.add(arg)
                            break
            elif node.op in ("or", "add"):
                for arg in node.args:
                    if arg.op == "sel" and self._single(arg) and self._is_zero(self._arms(arg)[1]):
                        self._conditional[node] = arg
                        self._merged.add(arg)
                        break
            if node.op in _LOGIC and node not in self._conditional:
                leaves = list(dict.fromkeys(node.args))
                for arg in node.args:
                    if arg in self._logic and self._single(arg):
                        wider = list(dict.fromkeys(
                            leaf for one in leaves
                            for leaf in (self._logic[arg] if one is arg else [one])))
                        if len(wider) <= 3:
                            leaves = wider
                            self._merged.add(arg)
                self._logic[node] = leaves

    def _choose_polarity(self, nodes: Iterable[Node]) -> None:
        """Comparisons to be computed inverted: a word is then added where they do not hold."""
        added: set[Node] = set()
        otherwise: set[Node] = set()
        for node in nodes:
            for arg in node.args:
                if (node.op in ("or", "add") and arg.op == "sel" and self._single(arg)
                        and self._is_zero(arg.args[1])):
                    added.add(arg.args[0])
            if node.op == "sel":
                if self._is_zero(node.args[2]):
                    otherwise.add(node.args[0])
            else:
                otherwise.update(arg for arg in node.args if arg.is_bit)
        self._inverted = {node for node in added - otherwise - set(self._roots)
                          if node.op in _COMPARE}

    def _arms(self, node: Node) -> tuple[Node, Node]:
        """What a choice yields if the variable of its bit is set, and if not."""
        bit, x, y = node.args
        return (y, x) if bit in self._inverted else (x, y)

    def _single(self, node: Node) -> bool:
        return self._uses[node] == 1 and not self._outside(node)

    @staticmethod
    def _is_zero(node: Node) -> bool:
        return node.op == "const" and not node.attr

    # Expressions

    def _add(self, node: Node) -> str:
        expression = self._expression(node)
        if node.op == "const" or (self._plan.uniform(node) and not node.is_bit):
            return expression
        name = f"v{node.index}"
        self.lines.append(f"const auto {name} = {expression};")
        return name

    def _const(self, value: int) -> str:
        value &= low(self._lane)
        return self._constants.name(self._lane, value) if value else f"zero<{self._lane}>()"

    def _expression(self, node: Node) -> str:
        if node.is_bit:
            return self._bit(node)
        if node.op == "const":
            return self._const(node.number)
        if self._plan.uniform(node):
            return f"bcast<{self._lane}>({self._scalars.name(node)})"
        if node in self._conditional:
            chosen = self._conditional[node]
            other = node.args[1] if node.args[0] is chosen else node.args[0]
            return (f"{node.op}_if({self._names[other]}, {self._names[chosen.args[0]]}, "
                    f"{self._names[self._arms(chosen)[0]]})")
        if node in self._logic and len(self._logic[node]) == 3:
            a, b, c = self._logic[node]
            table = self._table(node, {a: 0xF0, b: 0xCC, c: 0xAA})
            return (f"SYSTOLITH_LOGIC({table:#x}, {self._names[a]}, {self._names[b]}, "
                    f"{self._names[c]}, {self._plain(node)})")
        if node in self._logic:
            return self._plain(node)
        args = [self._names[arg] for arg in node.args]
        match node.op:
            case "leaf":
                return f"load<{self._lane}>({self._place(node)})"
            case "add" | "sub" | "shlv" | "shrv":
                return f"{node.op}({args[0]}, {args[1]})"
            case "mul":
                return f"{self._mul(node)}({args[0]}, {args[1]})"
            case "shl" | "shr":
                return f"{node.op}<{node.attr}>({args[0]})"
            case "sel":
                x, y = self._arms(node)
                if self._is_zero(y):
                    return f"only({args[0]}, {self._names[x]})"
                return f"sel({args[0]}, {self._names[x]}, {self._names[y]})"
            case _:
                return self._read(node)

    def _mul(self, node: Node) -> str:
        x, y = (arg.bits for arg in node.args)
        if self._lane == 32 and max(x, y) < 1 << 15:
            return "mul15"
        if self._lane > 16 and (self._needed[node] < 1 << 16
                                or (max(x, y) < 1 << 16 and node.bits < 1 << 16)):
            return "mul16"
        return "mul32" if self._lane == 64 and max(x, y) < 1 << 32 else "mul"

    def _table(self, node: Node, leaves: dict[Node, int]) -> int:
        if node in leaves:
            return leaves[node]
        x, y = (self._table(arg, leaves) for arg in node.args)
        return x & y if node.op == "and" else x | y if node.op == "or" else x ^ y

    def _plain(self, node: Node) -> str:
        args = [self._names[arg] if arg in self._names else self._plain(arg) for arg in node.args]
        return f"{node.op}_({args[0]}, {args[1]})"

    def _place(self, node: Node) -> str:
        kind, key = node.origin
        if kind == "reg":
            return _register_place(self._plan, key)
        source = self._plan.inputs[key]
        match source.kind:
            case "each":
                return f"&g.each_{_index(self._plan, key)}[lane]"
            case "south":
                return _register_place(self._plan, source.source, row="row")
            case _:
                return _register_place(self._plan, source.source, lane="lane - 1")

    def _read(self, node: Node) -> str:
        assert isinstance(node.attr, Read)
        memory = self._plan.memories.index(node.attr.memory)
        address = node.args[0]
        if not node.attr.memory.writes:
            if self._plan.uniform(address):
                return f"bcast<{self._lane}>(table{memory}[{self._scalars.name(address)}])"
            return f"lookup(table{memory}, {self._names[address]})"
        if self._plan.uniform(address):
            return f"load<{self._lane}>(&g.m{memory}[row][{self._scalars.name(address)}][lane])"
        return (f"gather<{self._lane}>(&g.m{memory}[row][0][lane], LANES_PER_ROW, "
                f"{self._names[address]}, {self._present})")

    def _bit(self, node: Node) -> str:
        if self._outside(node):
            return f"bits_at<{self._lane}>({self._words.name(node)}, s)"
        if node in self._masked:
            chosen = self._masked[node]
            other = node.args[1] if node.args[0] is chosen else node.args[0]
            return self._compare(chosen, self._names[other] + ", ")
        if node.op in _COMPARE or (node.op == "notb" and node.args[0] in self._merged):
            return self._compare(node, "")
        if node.op == "andb":
            for one, other in (node.args, node.args[::-1]):
                if one in self._merged or (one.op == "notb" and other not in self._merged
                                           and one.args[0] in self._names):
                    return f"andnb({self._names[one.args[0]]}, {self._names[other]})"
        args = [self._names[arg] for arg in node.args]
        if node.op == "selb":
            return f"orb(andb({args[0]}, {args[1]}), andnb({args[0]}, {args[2]}))"
        return f"{node.op}({', '.join(args)})"

    def _compare(self, node: Node, under: str) -> str:
        inverted = node.op == "notb" or node in self._inverted
        if node.op == "notb":
            node = node.args[0]
        operation = _COMPARE[node.op][inverted]
        operands = [self._names[arg] for arg in node.args]
        if node.op == "test":
            operands.append(self._const(node.number))
        return f"{operation}({under}{operands[0]}, {operands[1]})"


def _register_place(plan: Plan, register: int | None, row: str = "row + 1",
                    lane: str = "lane") -> str:
    assert register is not None
    pad = 512 // storage(plan.registers[register].width)
    return f"&g.r{register}[{row}][{pad} + {lane}]"


class _Chunk:
    """The function that steps a chunk of a row."""

    def __init__(self, plan: Plan, scalars: _Scalars, constants: _Constants,
                 partial: bool) -> None:
        self._plan = plan
        self._constants = constants
        self._scalars = scalars
        self._words = _Words(plan, scalars)
        self._valid = " & valid" if partial else ""
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        plan, words = self._plan, self._words
        early = _Lanes(plan, self._scalars, words, self._constants, self._enable_lane(),
                       [(node, 1) for node in plan.lane_enables], "present") \
            if plan.lane_enables else None
        for index, node in enumerate(plan.lane_enables):
            words.given(node, f"enable{index}")
        groups = [self._group(group) for group in plan.groups]
        late = [line for group in plan.groups if group.late for line in self._late(group)]
        stores = []
        active = []
        for index, value in plan.bits:
            stores.append(f"const uint64_t next{index} = {words.name(value)}{self._valid};")
        for index, _ in plan.bits:
            stores.append(f"g.b{index}[row + 1][c] = next{index};")
        direct = {index for index, _ in plan.bits}
        for index in plan.active or []:
            if plan.registers[index].width > 1:
                place = _register_place(plan, index, lane="64 * c")
                active.append(f"uint64_t(any_set({place}))")
            else:
                active.append(f"next{index}" if index in direct else f"g.b{index}[row + 1][c]")
        result = [*words.lines, *stores]
        if early is not None:
            lane = self._enable_lane()
            result += [f"uint64_t enable{index} = 0;" for index in range(len(plan.lane_enables))]
            result += [f"for (int s = 64 - LANES<{lane}>; s >= 0; s -= LANES<{lane}>) {{",
                       f"  const uint64_t present = part<{lane}>(valid, s);",
                       "  if (!present) continue;",
                       "  [[maybe_unused]] const int lane = 64 * c + s;",
                       *(f"  {line}" for line in early.lines),
                       *(f"  put_at(enable{index}, s, present, {early.name(node)});"
                         for index, node in enumerate(plan.lane_enables)), "}"]
        for group in groups:
            result += group
        result += late
        result.append(f"return {' | '.join(active) or '0'};")
        return result

    def _enable_lane(self) -> int:
        return lane_for(self._plan, [(node, 1) for node in self._plan.lane_enables])

    def _group(self, group: Group) -> list[str]:
        plan, lane = self._plan, group.lane
        roots = list(group.words())
        values = _Lanes(plan, self._scalars, self._words, self._constants, lane, roots,
                        "present")
        enable = self._words.name(group.enable)
        inner = [f"const uint64_t present = part<{lane}>(enable, s);",
                 "if (!present) continue;",
                 "[[maybe_unused]] const int lane = 64 * c + s;", *values.lines]
        for index, task in enumerate(group.tasks):
            if task.enable is group.enable:
                present = "present"
            else:
                present = f"present{index}"
                own = self._words.name(task.enable)
                inner.append(f"const uint64_t {present} = part<{lane}>({own}{self._valid}, s);")
            inner.append(self._store(task, values, present, lane,
                                     self._buffer(group) if group.late else ""))
        return [*(f"{line};" for line in self._buffers(group)),
                f"if (const uint64_t enable = {enable} & valid) {{",
                f"  for (int s = 64 - LANES<{lane}>; s >= 0; s -= LANES<{lane}>) {{",
                *(f"    {line}" for line in inner), "  }", "}"]

    def _buffers(self, group: Group) -> list[str]:
        """Declarations of what holds the updates of a group that stores late."""
        if not group.late:
            return []
        name = self._buffer(group)
        return [f"uint64_t {name}_{update.register} = 0" if update.width == 1 else
                f"alignas(64) {_element(update.width)} {name}_{update.register}[64]"
                for update in group.updates]

    def _buffer(self, group: Group) -> str:
        return f"late{self._plan.groups.index(group)}"

    def _late(self, group: Group) -> list[str]:
        """Stores what a group has kept back."""
        enable = self._words.name(group.enable)
        name = self._buffer(group)
        inner = []
        for update in group.updates:
            own = enable if update.enable is group.enable else self._words.name(update.enable)
            own += " & valid"
            kept = f"{name}_{update.register}"
            if update.width == 1:
                place = f"g.b{update.register}[row + 1][c]"
                inner.append(f"  {place} = ({place} & ~({own})) | ({kept} & ({own}));")
                continue
            lane = storage(update.width)
            place = _register_place(self._plan, update.register, lane="64 * c + s")
            inner += [f"  for (int s = 0; s < 64; s += LANES<{lane}>)",
                      f"    store({place}, bits_at<{lane}>(part<{lane}>({own}, s), 0), "
                      f"load<{lane}>(&{kept}[s]));"]
        return [f"if (({enable}) & valid) {{", *inner, "}"]

    def _store(self, task: Update | MemoryWrite, values: _Lanes, present: str, lane: int,
               buffer: str) -> str:
        plan = self._plan
        bits = f"bits_at<{lane}>({present}, 0)"
        if isinstance(task, Update):
            value = values.name(task.value)
            if plan.registers[task.register].width == 1:
                place = f"{buffer}_{task.register}" if buffer else \
                    f"g.b{task.register}[row + 1][c]"
                return f"put_at({place}, s, {present}, {value});"
            place = f"&{buffer}_{task.register}[s]" if buffer else \
                _register_place(plan, task.register)
            return f"store({place}, {bits}, {value});"
        memory = f"g.m{task.memory}[row]"
        data = values.name(task.data)
        if plan.uniform(task.address) and task.mask is None:
            return f"store(&{memory}[{self._scalars.name(task.address)}][lane], {bits}, {data});"
        mask = "" if task.mask is None else f", {values.name(task.mask)}"
        return (f"scatter(&{memory}[0][lane], LANES_PER_ROW, {values.name(task.address)}, "
                f"{present}, {data}{mask});")


def cpp(grid: TileGrid, plan: Plan, parallel: bool) -> str:
    """The kernel's source."""
    ports = _Ports(grid)
    scalars = _Scalars(plan)
    constants = _Constants()
    chunk = _Chunk(plan, scalars, constants, grid.cols % CHUNK != 0).lines()
    chunks = -(-grid.cols // CHUNK)
    step = [
        "Uniform u;",
        *(f"const uint32_t {port.variable}[] = {{{port.variable}_bit}};"
          for port in ports.inputs.values() if port.is_bit),
        *(f"[[maybe_unused]] const uint64_t port{_index(plan, name)} = "
          f"get_bits({ports.inputs[name].variable}, 0, {ports.inputs[name].width});"
          for name, source in plan.inputs.items() if source.kind == "shared"),
        *scalars.lines,
        "(void)u;",
        *_step(grid, plan, ports, chunks),
    ]
    functions = _parallel(grid, plan, ports, step, len(chunk)) if parallel else \
        _serial(grid, plan, ports, step)
    lines = [
        f"// Kernel of {grid.rows} x {grid.cols} tiles {plan.tile.name}: generated, do not edit.",
        *(['#include "pool.hpp"'] if parallel else []),
        '#include "vec.hpp"',
        "",
        "#include <new>",
        "",
        "namespace {",
        "",
        "using namespace systolith::lanes;",
        "",
        f"constexpr int ROWS = {grid.rows};",
        f"constexpr int COLS = {grid.cols};",
        f"constexpr int CHUNKS = {chunks};",
        f"constexpr int LANES_PER_ROW = {CHUNK * chunks};",
        f"constexpr uint64_t LAST_CHUNK = {low(grid.cols - CHUNK * (chunks - 1)):#x}ull;",
        "",
        "// What is the same for all tiles in a step.",
        "struct Uniform {",
        *(f"  uint64_t s{index};" for index in range(len(scalars.lines))),
        "};",
        "",
        *_tables(plan),
        *_state(grid, plan, constants),
        "// Steps the tiles of one chunk of a row; tells whether they can change without input.",
        "inline uint64_t step_chunk(State& g, [[maybe_unused]] const Uniform& u, int row, int c) {",
        "  [[maybe_unused]] const uint64_t valid = c == CHUNKS - 1 ? LAST_CHUNK : ~uint64_t(0);",
        *(f"  {line}" for line in chunk),
        "}",
        "",
        *functions,
        "",
    ]
    return "\n".join(lines)


def _input_arguments(ports: _Ports) -> list[str]:
    return [f"unsigned char {port.variable}_bit" if port.is_bit
            else f"const uint32_t* {port.variable}" for port in ports.inputs.values()]


def _output_arguments(ports: _Ports) -> list[str]:
    return [f"unsigned char* {port.variable}_bit" if port.is_bit
            else f"uint32_t* {port.variable}" for port in ports.outputs.values()]


def _serial(grid: TileGrid, plan: Plan, ports: _Ports, step: Sequence[str]) -> list[str]:
    """The functions of a kernel that steps where it is called."""
    module = grid.module
    return [
        "}  // namespace",
        "",
        f'extern "C" void* {module}_new() {{ return new State; }}',
        "",
        f'extern "C" void {module}_delete(void* self) {{ delete static_cast<State*>(self); }}',
        "",
        f'extern "C" unsigned char {module}_step('
        f'{", ".join(["void* self", *_input_arguments(ports)])}) {{',
        "  State& g = *static_cast<State*>(self);",
        *(f"  {line}" for line in step),
        "  return stepped;",
        "}",
        "",
        f'extern "C" void {module}_outputs('
        f'{", ".join(["void* self", *_output_arguments(ports)])}) {{',
        "  [[maybe_unused]] const State& g = *static_cast<State*>(self);",
        *(f"  {line}" for line in _outputs(grid, plan, ports)),
        "}",
    ]


def _parallel(grid: TileGrid, plan: Plan, ports: _Ports, step: Sequence[str],
              length: int) -> list[str]:
    """The functions of a kernel that steps between two calls, perhaps on another thread.

    ``length`` is how many lines step a vector of tiles.
    """
    module = grid.module
    # A line takes about a nanosecond for all vectors of eight tiles of a full chunk.
    row_cost = max(1, length * -(-grid.cols // 8) // 8)
    members, copies = [], []
    for port in ports.inputs.values():
        if port.is_bit:
            members.append(f"unsigned char {port.variable}_bit = 0;")
            copies.append(f"job.{port.variable}_bit = {port.variable}_bit;")
        else:
            words = -(-port.width // 32)
            members.append(f"uint32_t {port.variable}[{words}] = {{}};")
            copies.append(f"std::memcpy(job.{port.variable}, {port.variable}, {4 * words});")
    return [
        "class Work final : public systolith::Job {",
        "public:",
        f'  explicit Work(const char* path) : Job("{module}", path, ROWS * {row_cost}) {{}}',
        "",
        "  State g;",
        "  bool outputs_changed = true;",
        *(f"  {member}" for member in members),
        "",
        "protected:",
        "  uint64_t load() const override {",
        *(f"    {line}" for line in _load(grid, plan, ports, row_cost)),
        "  }",
        "",
        "  void run() override {",
        *(f"    {line}" for line in step),
        "    outputs_changed = stepped;",
        "  }",
        "};",
        "",
        "}  // namespace",
        "",
        f'extern "C" void* {module}_new(const char* path) {{ return new Work(path); }}',
        "",
        f'extern "C" void {module}_delete(void* self) {{ delete static_cast<Work*>(self); }}',
        "",
        f'extern "C" unsigned char {module}_posted(void* self) {{',
        "  return static_cast<Work*>(self)->posted();",
        "}",
        "",
        f'extern "C" void {module}_post({", ".join(["void* self", *_input_arguments(ports)])}) {{',
        "  Work& job = *static_cast<Work*>(self);",
        *(f"  {line}" for line in copies),
        "  job.post();",
        "}",
        "",
        f'extern "C" unsigned char {module}_finish(void* self) {{',
        "  Work& job = *static_cast<Work*>(self);",
        "  job.finish();",
        "  return job.outputs_changed;",
        "}",
        "",
        f'extern "C" void {module}_outputs('
        f'{", ".join(["void* self", *_output_arguments(ports)])}) {{',
        "  [[maybe_unused]] const State& g = static_cast<Work*>(self)->g;",
        *(f"  {line}" for line in _outputs(grid, plan, ports)),
        "}",
    ]


def _load(grid: TileGrid, plan: Plan, ports: _Ports, row_cost: int) -> list[str]:
    """How much work is to be done: rows that are active already count, or all of them."""
    full = f"return ROWS * {row_cost};"
    if not can_skip(grid, plan):
        return [full]
    moving = [ports.inputs[source.port or name] for name, source in plan.inputs.items()
              if source.kind == "shared" and name in _wakers(plan)]
    lines = [f"if ({port.variable}_bit) {full}" if port.is_bit else
             f"if (get_bits({port.variable}, 0, {port.width})) {full}" for port in moving]
    return [*lines,
            "uint64_t rows = 0;",
            "for (int row = 1; row <= ROWS; ++row) rows += g.active[row] != 0;",
            f"return rows * {row_cost};"]


def _wakers(plan: Plan) -> set[str]:
    """Inputs of a tile that let it change when it is idle."""
    return {*plan.activity, RESET}


def _tables(plan: Plan) -> list[str]:
    """The memories that nothing writes: one copy for all tiles, in words that gathers can read."""
    lines = []
    for index, memory in enumerate(plan.memories):
        if memory.writes:
            continue
        size = 1 << memory.address_bits
        words = [*memory.init, *[0] * (size - len(memory.init))]
        lines += [f"// {memory.name}",
                  f"alignas(64) constexpr uint{max(32, storage(memory.width))}_t "
                  f"table{index}[{size}] = {{",
                  *("  " + " ".join(f"{word:#x}," for word in words[begin:begin + 8])
                    for begin in range(0, size, 8)),
                  "};", ""]
    return lines


def _state(grid: TileGrid, plan: Plan, constants: _Constants) -> list[str]:
    """The structure of all registers and memories, as it is before the first step."""
    lines = ["// Row 0 and the words before lane 0 of each register are what lies beyond the "
             "grid's edge.", "struct State {"]
    start = []
    for index, register in enumerate(plan.registers):
        comment = f"  // {register.name}"
        if register.width == 1:
            lines.append(f"  uint64_t b{index}[ROWS + 1][CHUNKS] = {{}};{comment}")
            if register.init:
                start.append(f"for (int r = 1; r <= ROWS; ++r) for (int c = 0; c < CHUNKS; ++c) "
                             f"b{index}[r][c] = c == CHUNKS - 1 ? LAST_CHUNK : ~uint64_t(0);")
        else:
            pad = 512 // storage(register.width)
            lines.append(f"  alignas(64) {_element(register.width)} r{index}[ROWS + 1]"
                         f"[{pad} + LANES_PER_ROW] = {{}};{comment}")
            if register.init:
                start.append(f"for (int r = 1; r <= ROWS; ++r) for (int i = 0; i < LANES_PER_ROW; "
                             f"++i) r{index}[r][{pad} + i] = {register.init:#x}ull;")
    for index, memory in enumerate(plan.memories):
        if not memory.writes:
            continue
        lines.append(f"  alignas(64) {_element(memory.width)} m{index}[ROWS]"
                     f"[{1 << memory.address_bits}][LANES_PER_ROW] = {{}};  // {memory.name}")
        for address, value in enumerate(memory.init):
            if value:
                start.append(f"for (int r = 0; r < ROWS; ++r) for (int i = 0; i < LANES_PER_ROW; "
                             f"++i) m{index}[r][{address}][i] = {value:#x}ull;")
    for source in sorted({source.source for source in plan.inputs.values()
                          if source.kind == "east" and source.width == 1
                          and source.source is not None}):
        lines.append(f"  uint64_t west{source} = 0;")
    for name, source_ in plan.inputs.items():
        if source_.kind == "each":
            lines.append(f"  uint64_t each_{_index(plan, name)}[CHUNKS];" if source_.width == 1 else
                         f"  alignas(64) {_element(source_.width)} each_{_index(plan, name)}"
                         "[LANES_PER_ROW];")
    if can_skip(grid, plan):
        # Readers take eight rows at once.
        lines.append("  // Of each row from -1 on, which chunks are active: at first, all.")
        lines.append("  uint8_t active[ROWS + 1];")
        start.append("for (auto& row : active) row = 0xff;")
    lines += [f"  {line}" for line in constants.members()]
    start += constants.start()
    if start:
        lines += ["  State() {", *(f"    {line}" for line in start), "  }"]
    return [*lines, "};", ""]


def can_skip(grid: TileGrid, plan: Plan) -> bool:
    """Whether idle chunks are skipped."""
    return plan.active is not None and grid.cols <= CHUNK * MAX_SKIP_CHUNKS


def _step(grid: TileGrid, plan: Plan, ports: _Ports, chunks: int) -> list[str]:
    """Evaluates chunks from the last row to the first, and from right to left.

    Afterwards ``stepped`` tells whether there were any: if not, outputs are what they were.
    """
    skip = can_skip(grid, plan)
    inputs = ports.inputs
    edges = [(name, source) for name, source in plan.inputs.items() if source.port is not None]
    south = _once((source.source, inputs[source.port or ""], source.width)
                  for _, source in edges if source.kind == "south")
    east = _once((source.source, inputs[source.port or ""], source.width)
                 for _, source in edges if source.kind == "east")
    each = [(name, inputs[source.port or ""], source.width) for name, source in edges
            if source.kind == "each"]
    lines = []
    for register, port, width in south:
        if width == 1:
            lines.append(f"unpack_bits(g.b{register}[0], {port.variable}, 0, COLS);")
    row_lines = []
    for name, port, width in each:
        unpack = "unpack_bits" if width == 1 else "unpack"
        tail = "" if width == 1 else f", {width}"
        row_lines.append(f"{unpack}(g.each_{_index(plan, name)}, {port.variable}, "
                         f"size_t(row) * COLS, COLS{tail});")
    first = []
    for register, port, width in east:
        value = f"get_bits({port.variable}, size_t(row) * {width}, {width})"
        target = f"g.west{register}" if width == 1 else \
            f"g.r{register}[row + 1][{512 // storage(width)} - 1]"
        first.append(f"{target} = {value};")
    top = [f"unpack(g.r{register}[0] + {512 // storage(width)}, {port.variable}, 0, COLS, "
           f"{width});" for register, port, width in south if width > 1]
    lines.append(f"bool stepped = {str(not skip).lower()};")
    if not skip:
        lines += ["for (int row = ROWS - 1; row >= 0; --row) {",
                  *(f"  {line}" for line in [*row_lines, *first])]
        if top:
            lines += ["  if (row == 0) {", *(f"    {line}" for line in top), "  }"]
        return [*lines, "  for (int c = CHUNKS - 1; c >= 0; --c) step_chunk(g, u, row, c);", "}"]

    active = set(plan.activity)
    lines.append(f"constexpr unsigned ALL_CHUNKS = {low(chunks):#x};")
    shared = [f"port{_index(plan, name)}" for name, source in plan.inputs.items()
              if source.kind == "shared" and name in _wakers(plan)]
    lines.append(f"const bool everything = {' | '.join(shared) or '0'};")
    north = [source.source for name, source in edges if source.kind == "south" and name in active]
    lines.append("unsigned north = 0;")
    if north:
        bits = " | ".join(f"g.b{register}[0][c]" for register in north)
        lines.append(f"for (int c = 0; c < CHUNKS; ++c) north |= unsigned(({bits}) != 0) << c;")
    lines.append("g.active[0] = uint8_t(north);")
    west = [inputs[source.port or ""].variable for name, source in edges
            if source.kind == "east" and name in active]
    if west:
        rows = -(-grid.rows // 32)
        words = " | ".join(f"{variable}[i]" for variable in west)
        lines += [f"uint32_t west[{rows}];", "uint32_t any_west = 0;",
                  f"for (int i = 0; i < {rows}; ++i) any_west |= west[i] = {words};"]
    quiet = ["!everything"]
    if west:
        quiet.append("!any_west")
    each_active = [name for name, source in edges if source.kind == "each" and name in active]
    lines += ["for (int row = ROWS - 1; row >= 0; --row) {"]
    if not each_active and grid.rows >= 8:
        lines += [f"  while ({' && '.join(quiet)} && row >= 7) {{",
                  "    uint64_t eight;",
                  "    std::memcpy(&eight, &g.active[row - 6], 8);",
                  "    if (eight | g.active[row - 7]) break;",
                  "    row -= 8;",
                  "  }",
                  "  if (row < 0) break;"]
    if each_active:
        lines += [f"  {line}" for line in row_lines]
    lines += ["  const unsigned own = g.active[row + 1];",
              "  unsigned due = own | own << 1 | g.active[row];"]
    if west:
        lines.append("  due |= west[row / 32] >> (row % 32) & 1;")
    if each_active:
        bits = " | ".join(f"g.each_{_index(plan, name)}[c]" for name in each_active)
        lines.append(f"  for (int c = 0; c < CHUNKS; ++c) due |= unsigned(({bits}) != 0) << c;")
    lines += ["  due = everything ? ALL_CHUNKS : due & ALL_CHUNKS;", "  if (!due) continue;",
              "  stepped = true;"]
    if not each_active:
        lines += [f"  {line}" for line in row_lines]
    lines += [f"  {line}" for line in first]
    if top:
        lines += ["  if (row == 0) {", *(f"    {line}" for line in top), "  }"]
    return [*lines,
            "  unsigned after = 0;",
            "  while (due) {",
            "    const int c = 31 - __builtin_clz(due);",
            "    due ^= 1u << c;",
            "    after |= unsigned(step_chunk(g, u, row, c) != 0) << c;",
            "  }",
            "  g.active[row + 1] = uint8_t(after);",
            "}"]


def _once(items: Iterable[tuple[int | None, _Port, int]]) -> list[tuple[int | None, _Port, int]]:
    return list(dict.fromkeys(items))


def _outputs(grid: TileGrid, plan: Plan, ports: _Ports) -> list[str]:
    """Delivers the grid's outputs from the registers."""
    lines = []
    for link in grid.links:
        name = link.last if isinstance(link, Chain) else link.port
        if name is None or name not in ports.outputs:
            continue
        port = ports.outputs[name]
        register = plan.outputs[link.source if isinstance(link, Chain) else link.port]
        width = plan.registers[register].width
        pad = 512 // storage(width)
        words = -(-port.width // 32)
        whole = width == storage(width)
        if port.is_bit:
            lines.append(f"uint32_t {port.variable}[1];")
        if not whole or (isinstance(link, Chain) and link.toward == "east"):
            lines.append(f"std::memset({port.variable}, 0, {4 * words});")
        row = f"g.b{register}[row + 1]" if width == 1 else f"g.r{register}[row + 1] + {pad}"
        pack = "pack_bits" if width == 1 else "pack"
        tail = "" if width == 1 else f", {width}"
        if isinstance(link, Chain) and link.toward == "south":
            last = row.replace("row + 1", "ROWS")
            lines.append(f"{pack}({port.variable}, 0, {last}, COLS{tail});")
        elif isinstance(link, Chain):
            value = f"g.b{register}[row + 1][CHUNKS - 1] >> {(grid.cols - 1) % CHUNK} & 1" \
                if width == 1 else f"g.r{register}[row + 1][{pad} + COLS - 1]"
            lines.append(f"for (int row = 0; row < ROWS; ++row) put_bits({port.variable}, "
                         f"size_t(row) * {width}, {width}, {value});")
        else:
            lines.append(f"for (int row = 0; row < ROWS; ++row) {pack}({port.variable}, "
                         f"size_t(row) * COLS, {row}, COLS{tail});")
        if port.is_bit:
            lines.append(f"*{port.variable}_bit = {port.variable}[0];")
    return lines


def shim(grid: TileGrid, plan: Plan, parallel: bool) -> str:
    """A Verilog module in the grid's place that calls the kernel."""
    ports = _Ports(grid)
    name = grid.module
    start = {}
    for link in grid.links:
        port = link.last if isinstance(link, Chain) else link.port
        if port in ports.outputs:
            register = plan.registers[plan.outputs[
                link.source if isinstance(link, Chain) else link.port]]
            count = ports.outputs[port].width // register.width
            start[port] = f"{{{count}{{{register.width}'h{register.init:x}}}}}"

    def width(port: _Port) -> str:
        return "" if port.is_bit else f"[{port.width - 1}:0] "

    header = ["input clk"]
    header += [f"input {width(port)}{port.name}" for port in ports.inputs.values()]
    header += [f"output reg {width(port)}{port.name}" for port in ports.outputs.values()]
    takes = [f"input bit {width(port)}{port.variable}" for port in ports.inputs.values()]
    gives = [f"output bit {width(port)}{port.variable}" for port in ports.outputs.values()]
    comma = ",\n"

    def function(suffix: str, arguments: Iterable[str], result: str = "void") -> list[str]:
        return [f'  import "DPI-C" function {result} {name}_{suffix}(',
                comma.join(f"    {line}" for line in arguments), "  );"]

    def call(suffix: str, given: Iterable[str] = ()) -> str:
        return f"{name}_{suffix}({', '.join(['self', *given])})"

    path = '$sformatf("%m")' if parallel else ""
    given = [port.name for port in ports.inputs.values()]
    taken = [port.variable for port in ports.outputs.values()]
    handle = "input chandle self"
    if parallel:
        functions = [*function("new", ["input string path"], "chandle"),
                     *function("posted", [handle], "bit"), *function("post", [handle, *takes]),
                     *function("finish", [handle], "bit")]
        step = call("finish")
        # With a clock that is low at first, the first falling edge comes after the first rising.
        clocked = [f"  always @(negedge clk) {call('post', given)};",
                   "  always @(posedge clk) begin",
                   f"    if (!{call('posted')}) {call('post', given)};"]
    else:
        functions = [*function("new", [], "chandle"), *function("step", [handle, *takes], "bit")]
        step = call("step", given)
        clocked = ["  always @(posedge clk) begin"]
    lines = [
        f"// Stands for the grid {name} in simulations: calls its kernel at each clock edge.",
        f"module {name} (",
        comma.join(f"  {line}" for line in header),
        ");",
        *functions,
        *function("outputs", [handle, *gives]),
        f'  import "DPI-C" function void {name}_delete(input chandle self);',
        "  chandle self;",
        *(f"  bit {width(port)}{port.variable};" for port in ports.outputs.values()),
        "  initial begin",
        f"    self = {name}_new({path});",
        *(f"    {port} = {value};" for port, value in start.items()),
        "  end",
        f"  final {name}_delete(self);",
        *clocked,
        f"    if ({step}) begin",
        f"      {call('outputs', taken)};",
        *(f"      {port.name} <= {port.variable};" for port in ports.outputs.values()),
        "    end",
        "  end",
        "endmodule",
        "",
    ]
    return "\n".join(lines)
