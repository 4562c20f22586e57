"""Random expressions: narrowed graphs against arithmetic, compiled tiles against Verilator."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hdl.tiles import Each, Shared, TileGrid
from sim.kernel.ir import ALL, Graph, Node, topological
from sim.verilated.model import Model
from verif.sim.kernel.lockstep import Lockstep, VerilogTile, random_words

COLS = 5
CYCLES = 2000
GRAPHS = 6000
ENVIRONMENTS = 6
TILE_SEEDS = (4, 5, 7)
TILE_OUTPUTS = 24
ENABLES = 7
INPUTS = {"a": 16, "b": 16, "c": 8, "d": 32, "e": 4, "f": 60, "k": 1, "l": 1}

WORD_OPS = {
    "and_": lambda x, y: x & y,
    "or_": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "shl": lambda x, y: x << y,
    "shr": lambda x, y: x >> y,
    "shlv": lambda x, y: x << y,
    "shrv": lambda x, y: x >> y,
}
BIT_OPS = {
    "andb": lambda x, y: x & y,
    "orb": lambda x, y: x | y,
    "xorb": lambda x, y: x ^ y,
}
COMPARISONS = {"eq": lambda x, y: int(x == y), "ltu": lambda x, y: int(x < y)}
CHOICES = (*WORD_OPS, *BIT_OPS, *COMPARISONS, "and_", "and_", "or_", "sel", "sel", "selb", "not_",
           "test", "from_bit")


def evaluate(roots: Sequence[Node], leaves: Mapping[Node, int]) -> list[int]:
    """Values of nodes, given those of the leaves."""
    values: dict[Node, int] = {}
    for node in topological(roots):
        args = [values[arg] for arg in node.args]
        match node.op:
            case "const" | "bit":
                value = node.number
            case "leaf" | "leafb":
                value = leaves[node]
            case "sel" | "selb":
                value = args[1] if args[0] else args[2]
            case "notb":
                value = 1 - args[0]
            case "test":
                value = int(bool(args[0] & node.number))
            case "eq" | "ltu":
                value = COMPARISONS[node.op](*args)
            case "shl" | "shr":
                value = WORD_OPS[node.op](args[0], node.number)
            case "andb" | "orb" | "xorb":
                value = BIT_OPS[node.op](*args)
            case "and" | "or":
                value = WORD_OPS[f"{node.op}_"](*args)
            case _:
                value = WORD_OPS[node.op](*args)
        values[node] = value & ALL
    return [values[root] for root in roots]


class RandomGraph:
    """Random nodes, each with its value in every environment, computed by plain arithmetic."""

    def __init__(self, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.graph = Graph()
        self.words = [self.graph.leaf(f"w{index}", rng.choice([2, 4, 8, 8, 16, 33, 64]))
                      for index in range(4)]
        self.bits = [self.graph.leaf(f"b{index}", 1) for index in range(3)]
        self.leaves = [
            {word: word.bits & rng.choice([rng.getrandbits(64), rng.getrandbits(3), ALL, 0])
             for word in self.words} | {bit: rng.randrange(2) for bit in self.bits}
            for _ in range(ENVIRONMENTS)]
        # Equal nodes are one node, so its values must be equal however it was built.
        self.expected = {node: [leaves[node] for leaves in self.leaves]
                         for node in (*self.words, *self.bits)}
        self.wrong: list[Node] = []
        for _ in range(rng.randrange(4, 22)):
            self.grow()

    def constant(self) -> Node:
        rng = self.random
        value = rng.choice([rng.getrandbits(rng.choice([1, 3, 4, 8, 16, 64])),
                            (1 << rng.randrange(65)) - 1, 1 << rng.randrange(64),
                            ((1 << rng.randrange(1, 9)) - 1) << rng.randrange(30)])
        return self.remember(self.graph.const(value), [value & ALL] * ENVIRONMENTS)

    def word(self) -> Node:
        kind = self.random.random()
        if kind < 0.2:
            return self.constant()
        word = self.random.choice(self.words[:4] + self.words[-6:])
        if kind < 0.5:
            # Narrowing needs numbers some of whose bits are known to be zero.
            mask = self.constant().number
            values = [value & mask for value in self.expected[word]]
            return self.remember(self.graph.and_(word, self.graph.const(mask)), values)
        return word

    def remember(self, node: Node, values: list[int]) -> Node:
        if self.expected.setdefault(node, values) != values:
            self.wrong.append(node)
        return node

    def add(self, node: Node, function: Callable[..., int], *args: Node) -> None:
        rows = zip(*(self.expected[arg] for arg in args), strict=True)
        self.remember(node, [function(*row) & ALL for row in rows])
        (self.bits if node.is_bit else self.words).append(node)

    def grow(self) -> None:
        rng, graph = self.random, self.graph
        op = rng.choice(CHOICES)
        build = getattr(graph, op)
        if op in ("shl", "shr"):
            x = self.word()
            count = rng.randrange(64) if rng.random() < 0.3 else rng.randrange(9)
            self.add(build(x, count), lambda value: WORD_OPS[op](value, count), x)
        elif op in WORD_OPS:
            x, y = self.word(), self.word()
            if op in ("shlv", "shrv"):
                low = graph.and_(y, graph.const(127))
                y = self.remember(low, [value & 127 for value in self.expected[y]])
            self.add(build(x, y), WORD_OPS[op], x, y)
        elif op in COMPARISONS:
            x, y = self.word(), self.word()
            self.add(build(x, y), COMPARISONS[op], x, y)
        elif op in BIT_OPS:
            x, y = rng.choice(self.bits), rng.choice(self.bits)
            self.add(build(x, y), BIT_OPS[op], x, y)
        elif op in ("sel", "selb"):
            bit = rng.choice(self.bits)
            x, y = (self.word() if op == "sel" else rng.choice(self.bits) for _ in range(2))
            self.add(build(bit, x, y), lambda b, one, other: one if b else other, bit, x, y)
        elif op == "test":
            x = self.word()
            mask = self.constant().number if rng.random() < 0.6 else ALL
            self.add(build(x, mask), lambda value: int(bool(value & mask)), x)
        else:
            bit = rng.choice(self.bits)
            self.add(build(bit), (lambda b: 1 - b) if op == "not_" else (lambda b: b), bit)


def check_graph(seed: int) -> None:
    case = RandomGraph(seed)
    assert not case.wrong, f"graph {seed}: {case.wrong}"
    nodes = list(case.expected)
    for index, leaves in enumerate(case.leaves):
        for node, value in zip(nodes, evaluate(nodes, leaves), strict=True):
            assert value == case.expected[node][index], f"graph {seed}: {node}"
            assert node.is_bit or not value & ~node.bits, f"graph {seed}: bits of {node}"
    rng = case.random
    few = [(rng.choice(case.words[-3:]), rng.choice([0xff, 0xffff, 0xffffffff, ALL]))]
    many = [(node, ALL) for node in rng.sample(case.words, 2)]
    many += [(node, 1) for node in rng.sample(case.bits, 2)]
    for roots in (few, [(case.bits[-1], 1)], many):
        narrowed = case.graph.narrow(roots)
        for index, leaves in enumerate(case.leaves):
            for (node, mask), value in zip(roots, evaluate(narrowed, leaves), strict=True):
                assert not (value ^ case.expected[node][index]) & mask, \
                    f"graph {seed}: {node} under {mask:#x}"


def test_random_graphs_keep_their_values_when_built_and_narrowed() -> None:
    for seed in range(GRAPHS):
        check_graph(seed)


@pytest.mark.parametrize("op", ["eq", "add"])
def test_bits_that_are_zero_in_both_operands_of_an_and_stay_zero(op: str) -> None:
    graph = Graph()
    a, b, c = (graph.leaf(name, 8) for name in "abc")
    low_bits = graph.const(0xf)
    both = graph.and_(graph.and_(a, low_bits), graph.and_(b, low_bits))
    root = getattr(graph, op)(both, c)
    (narrowed,) = graph.narrow([(root, 1 if root.is_bit else 0xff)])
    for leaves in ({a: 0xff, b: 0xff, c: 0x0f}, {a: 0xf3, b: 0xf6, c: 0x52}):
        assert evaluate([narrowed], leaves) == evaluate([root], leaves)


def test_word_without_possible_bits_is_zero() -> None:
    graph = Graph()
    high = graph.or_(*(graph.shl(graph.leaf(name, 2), 62) for name in "ab"))
    gone = graph.shl(high, 2)
    assert gone is graph.const(0)
    assert graph.shlv(gone, graph.leaf("n", 4)) is gone


def compare(name: str, inputs: Mapping[str, int], outputs: Mapping[str, int], body: str,
            sparse_inputs: Iterable[str]) -> NDArray[np.bool_]:
    """Compares a tile with Verilator on random inputs, some of which have few bits."""
    def make(module: str) -> TileGrid:
        shared = [Shared("en")] if "en" in inputs else []
        return TileGrid(module, f"{name}_tile",
                        lambda: VerilogTile(f"{name}_tile", inputs, outputs, body), 1, COLS,
                        [*(Each(port) for port in inputs if port != "en"), *shared,
                         *(Each(port) for port in outputs)])
    bench = Lockstep(f"kernel_{name}", {"fuzz": make}, ["native", "portable32"])
    rng = np.random.default_rng(len(body))
    words = {port: random_words(rng, width, CYCLES) for port, width in bench.inputs.items()}
    for port in sparse_inputs:
        values = words[f"fuzz_{port}"]
        values[rng.random(len(values)) < 0.2] &= np.uint32(0x0003000f)
    with Model(bench.path) as model:
        return bench.run(model, words, CYCLES)


def test_and_of_words_with_zeros_in_common_matches_verilator() -> None:
    body = """
  wire [7:0] t = {4'b0, a[3:0]} & {4'b0, b[3:0]};
  reg q = 0;
  reg [7:0] s = 0;
  assign equal = q;
  assign sum = s;
  always @(posedge clk) begin q <= t == c; s <= t + c; end
"""
    seen = compare("fuzz_and", {"a": 8, "b": 8, "c": 8}, {"equal": 1, "sum": 8}, body, "abc")
    assert seen.all()


class RandomVerilog:
    """Random expressions on some inputs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def word(self, depth: int) -> str:
        """An expression of some width."""
        rng = self.random
        if depth == 0:
            name = rng.choice(list(INPUTS))
            width = INPUTS[name]
            if width > 2 and rng.random() < 0.5:
                lowest = rng.randrange(width - 1)
                return f"{name}[{rng.randrange(lowest, width)}:{lowest}]"
            return name
        kind = rng.random()
        if kind < 0.45:
            op = rng.choice(["&", "&", "|", "^", "+", "-"])
            return f"({self.word(depth - 1)} {op} {self.word(depth - 1)})"
        if kind < 0.55:
            return f"({self.bit(depth - 1)} ? {self.word(depth - 1)} : {self.word(depth - 1)})"
        if kind < 0.65:
            count = rng.choice(["e", str(rng.randrange(9))])
            return f"({self.word(depth - 1)} {rng.choice(['<<', '>>'])} {count})"
        if kind < 0.75:
            return f"{{{rng.choice('abce')}, {rng.choice('abce')}}}"
        if kind < 0.8:
            return f"(~{self.word(depth - 1)})"
        if kind < 0.85:
            return f"(c * {rng.choice('abce')})"
        if kind < 0.9:
            return f"({self.word(depth - 1)} & 16'd{rng.randrange(1 << 16)})"
        return self.word(depth - 1)

    def bit(self, depth: int) -> str:
        """An expression of one bit."""
        rng = self.random
        if depth <= 0:
            return rng.choice(["k", "l", "a[3]", "f[40]"])
        kind = rng.random()
        if kind < 0.5:
            op = rng.choice(["==", "<", "!=", ">="])
            return f"({self.word(depth - 1)} {op} {self.word(depth - 1)})"
        if kind < 0.7:
            return f"({rng.choice('|&^!')}{self.word(depth - 1)})"
        return f"({self.bit(depth - 1)} {rng.choice('&|^')} {self.bit(depth - 1)})"


@pytest.mark.slow
@pytest.mark.parametrize("seed", TILE_SEEDS)
def test_random_expressions_match_verilator(seed: int) -> None:
    source = RandomVerilog(seed)
    outputs = {}
    lines = []
    for index in range(TILE_OUTPUTS):
        width = source.random.choice([1, 5, 8, 16, 20, 32, 48])
        expression = source.word(4) if width > 1 else source.bit(4)
        outputs[f"o{index}"] = width
        # Each enable makes a group with its own lanes.
        lines.append(f"  reg [{width - 1}:0] q{index} = 0;\n  assign o{index} = q{index};\n"
                     f"  always @(posedge clk) if (en[{index % ENABLES}]) q{index} <= "
                     f"{expression};")
    inputs = {**INPUTS, "en": ENABLES}
    seen = compare(f"fuzz_{seed}", inputs, outputs, "\n".join(lines), INPUTS)
    assert seen.mean() > 0.9
