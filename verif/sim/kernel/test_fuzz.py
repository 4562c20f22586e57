"""Random expressions: graphs after the rules against arithmetic, tiles against Verilator."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hdl.tiles import Each, Shared, TileGrid
from sim.kernel.ir import ALL, Graph, Node, low
from sim.kernel.rules.rewrite import RULES, Rule, rewrite
from sim.kernel.transform import narrow
from sim.verilated.model import Model
from verif.sim.kernel.lockstep import BACKENDS, Lockstep, VerilogTile, random_words
from verif.sim.kernel.rules.interpreter import BIT_OPS, COMPARISONS, WORD_OPS, evaluate
from verif.sim.kernel.rules.patterns import (
    clamped,
    larger,
    normalised,
    normaliser,
    sticky,
    sticky_value,
)

COLS = 5
CYCLES = 2000
GRAPHS = 6000
ENVIRONMENTS = 6
TILE_SEEDS = (4, 5, 7)
PATTERN_SEEDS = (1, 2)
TILE_OUTPUTS = 24
FUNCTIONS = ("add_one_if(", "clean_clz<", "clz<", "exchange(", "if (any(", "lts(", "negative(",
             "same<", "unless(", "xor_if(")
ENABLES = 7
SHARED = {"en", "k"}
INPUTS = {"a": 16, "b": 16, "c": 8, "d": 32, "e": 4, "f": 60, "k": 1, "l": 1}

CHOICES = (*WORD_OPS, *BIT_OPS, *COMPARISONS, "and_", "and_", "or_", "sel", "sel", "selb", "not_",
           "test", "from_bit", "normaliser", "sticky", "series", "larger")


class RandomGraph:
    """Random nodes; plain arithmetic computes the value of each for every set of inputs."""

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
        if op in ("normaliser", "sticky", "series", "larger"):
            getattr(self, f"grow_{op}")()
            return
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


    def short(self, width: int) -> Node:
        """A node whose value has at most ``width`` bits."""
        word = self.word()
        return self.remember(self.graph.and_(word, self.graph.const(low(width))),
                             [value & low(width) for value in self.expected[word]])

    def grow_normaliser(self) -> None:
        """Adds both results of a normaliser; its word may have bits above the width."""
        rng = self.random
        width, first = rng.randrange(1, 60), rng.randrange(5)
        places = [1 << place for place in range(first, rng.randrange(-1, first + 1), -1)]
        masked = rng.random() < 0.3
        word = self.short(width) if masked or rng.random() < 0.3 else self.word()
        shifted, distance = normaliser(self.graph, word, width, places, masked=masked)
        values = [normalised(value, width, places) for value in self.expected[word]]
        visible = self.graph.and_(shifted, self.graph.const(low(width)))
        self.words.append(self.remember(visible, [value for value, _ in values]))
        self.words.append(self.remember(distance, [value for _, value in values]))

    def grow_sticky(self) -> None:
        """Adds a sticky shift, perhaps by a clamped distance."""
        rng = self.random
        width = rng.randrange(1, 32)
        x, distance = self.short(width), self.short(rng.randrange(1, 8))
        most, high = (1 << rng.randrange(1, 6)) - 1, rng.choice([0xf0, 0xe0, 0x40, 0xfe])
        clamp = rng.random() < 0.5
        count = clamped(self.graph, distance, most, high) if clamp else distance
        self.add(sticky(self.graph, x, count, width), lambda value, places: sticky_value(
            value, places if not clamp else most if places & high else places & most), x, distance)

    def grow_series(self) -> None:
        """Adds two sticky shifts in series, each by a part of a distance."""
        rng, graph = self.random, self.graph
        width, coarse, fine = rng.randrange(1, 32), rng.randrange(32), rng.randrange(32)
        if rng.random() < 0.7:
            fine &= ~coarse
        x, distance = self.short(width), self.short(6)
        shift = sticky(graph, x, graph.and_(distance, graph.const(coarse)), width)
        shift = sticky(graph, shift, graph.and_(distance, graph.const(fine)), width)
        self.add(shift, lambda value, places: sticky_value(
            sticky_value(value, places & coarse), places & fine), x, distance)

    def grow_larger(self) -> None:
        """Adds the larger of two numbers, of which one has zeros as its low bits."""
        rng = self.random
        places, width = rng.randrange(1, 24), rng.randrange(1, 33)
        kept = low(width + places)

        def value(x: int, y: int) -> int:
            return y << places if (x & kept) >> places < y else x & kept

        x, y = self.word(), self.short(rng.randrange(1, 33))
        self.add(larger(self.graph, x, y, places, width), value, x, y)


@pytest.fixture
def fired(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of patterns that each rule has replaced in the test."""
    count: Counter[str] = Counter(dict.fromkeys(RULES, 0))

    def counted(name: str, rule: Rule) -> Rule:
        def find(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Node]:
            found = rule(graph, nodes)
            count[name] += len(found)
            return found
        return find

    monkeypatch.setattr("sim.kernel.rules.rewrite.RULES",
                        {name: counted(name, rule) for name, rule in RULES.items()})
    return count


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
        narrowed = narrow(case.graph, roots)
        rewritten = rewrite(case.graph, narrowed)
        for index, leaves in enumerate(case.leaves):
            for values in (evaluate(narrowed, leaves), evaluate(rewritten, leaves)):
                for (node, mask), value in zip(roots, values, strict=True):
                    assert not (value ^ case.expected[node][index]) & mask, \
                        f"graph {seed}: {node} under {mask:#x}"


def test_random_graphs_keep_their_values_when_built_narrowed_and_rewritten(
        fired: Counter[str]) -> None:
    for seed in range(GRAPHS):
        check_graph(seed)
    assert all(fired.values()), fired


@pytest.mark.parametrize("op", ["eq", "add"])
def test_bits_that_are_zero_in_both_operands_of_an_and_stay_zero(op: str) -> None:
    graph = Graph()
    a, b, c = (graph.leaf(name, 8) for name in "abc")
    low_bits = graph.const(0xf)
    both = graph.and_(graph.and_(a, low_bits), graph.and_(b, low_bits))
    root = getattr(graph, op)(both, c)
    (narrowed,) = narrow(graph, [(root, 1 if root.is_bit else 0xff)])
    for leaves in ({a: 0xff, b: 0xff, c: 0x0f}, {a: 0xf3, b: 0xf6, c: 0x52}):
        assert evaluate([narrowed], leaves) == evaluate([root], leaves)


def test_word_without_possible_bits_is_zero() -> None:
    graph = Graph()
    high = graph.or_(*(graph.shl(graph.leaf(name, 2), 62) for name in "ab"))
    gone = graph.shl(high, 2)
    assert gone is graph.const(0)
    assert graph.shlv(gone, graph.leaf("n", 4)) is gone


def compare(name: str, inputs: Mapping[str, int], outputs: Mapping[str, int], body: str,
            sparse_inputs: Iterable[str], backends: Sequence[str] = ("native", "portable32"),
            functions: Iterable[str] = ()) -> NDArray[np.bool_]:
    """Compares a tile with Verilator on random inputs; in ``sparse_inputs``, few bits are set.

    All tiles share the inputs ``en`` and ``k``. Every kernel's code must call all ``functions``.
    """
    def make(module: str) -> TileGrid:
        return TileGrid(module, f"{name}_tile",
                        lambda: VerilogTile(f"{name}_tile", inputs, outputs, body), 1, COLS,
                        [*((Shared if port in SHARED else Each)(port) for port in inputs),
                         *map(Each, outputs)])
    bench = Lockstep(f"kernel_{name}", {"fuzz": make}, backends)
    for kernel in bench.kernels.values():
        missing = [function for function in functions if f" {function}" not in kernel.cpp]
        assert not missing, f"not called: {missing}"
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
    """Random expressions in Verilog on given inputs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def word(self, depth: int) -> str:
        """An expression of a given width."""
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


class PatternVerilog:
    """Verilog of patterns that the rules replace, in registers of narrow to wide groups."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.outputs: dict[str, int] = {}

    def register(self, width: int, lane: int, expression: str) -> None:
        name = f"o{len(self.outputs)}"
        self.outputs[name] = width
        self.lines.append(f"  reg [{width - 1}:0] q_{name} = 0;\n  assign {name} = q_{name};\n"
                          f"  always @(posedge clk) if (en[{lane}]) q_{name} <= {expression};")

    def wire(self, width: int, expression: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"  wire [{width - 1}:0] {name} = {expression};")
        return name

    def word(self, width: int) -> str:
        """A number whose highest one may be anywhere."""
        rng = self.random
        source = rng.choice(["a", "b"] if width <= 16 else ["d", "f"] if width <= 32 else ["f"])
        kind = rng.random()
        if kind < 0.4:
            return self.wire(width, f"{source} >> (c & 8'd{(1 << width.bit_length()) - 1})")
        if kind < 0.7:
            return self.wire(width, f"{source} - {{{source}[3:0], c}}")
        return self.wire(width, source)

    def normaliser(self, lane: int) -> None:
        rng = self.random
        width = rng.randrange(*((3, 17), (17, 33), (33, 49))[lane])
        first = min(rng.randrange(2, 6), (width - 1).bit_length() - 1)
        word, taken = self.word(width), []
        for place in range(first, rng.randrange(-1, max(first - 2, 0)), -1):
            count = 1 << place
            used = self.wire(1, f"|{word}[{width - 1}:{width - count}]")
            taken.append(f"!{used}")
            word = self.wire(width, f"{used} ? {word} : {word} << {count}")
        self.register(width, lane, word)
        self.register(8, lane, f"e - {{{', '.join(taken)}}}")

    def sticky_value(self, x: str, distance: str, width: int) -> str:
        ones = self.wire(width, f"{{{width}{{1'b1}}}} << {distance}")
        lost = self.wire(1, f"|({x} & ~{ones})")
        return self.wire(width, f"({x} >> {distance}) | {lost}")

    def sticky(self, lane: int) -> None:
        """One sticky shift or two in series, by a distance that may be clamped."""
        rng = self.random
        width = rng.randrange(*((2, 16), (17, 32), (33, 49))[lane])
        distance = self.wire(8, "c") if rng.random() < 0.3 else \
            self.wire(5, "|c[7:5] ? 5'd31 : c[4:0]")
        x = self.word(width)
        if rng.random() < 0.6:
            x = self.sticky_value(x, self.wire(5, f"{{{distance}[4:3], 3'b0}}"), width)
            distance = self.wire(3, f"{distance}[2:0]")
        self.register(width, lane, self.sticky_value(x, distance, width))

    def larger(self, lane: int) -> None:
        """The larger and the smaller of two numbers, of which one has zeros as its low bits."""
        rng = self.random
        width = rng.randrange(*((6, 16), (17, 32), (33, 47))[lane])
        tail = rng.randrange(1, min(width - 1, 16))
        x, y = self.word(width), self.wire(width - tail, f"{{a, b}} ^ {self.word(width - tail)}")
        whole = self.wire(width, f"{{{y}, {tail}'b0}}")
        above = self.wire(1, f"{y} > {x}[{width - 1}:{tail}]")
        self.register(width, lane, f"{above} ? {whole} : {x}")
        self.register(width, lane, f"{above} ? {x} : {whole}")
        self.register(width, lane, f"{above} ? {width}'b0 : {x}")

    def special(self, lane: int) -> None:
        """Values that depend on whether all bits of a number's exponent are ones."""
        rng = self.random
        width = (16, 32, 48)[lane]
        x, first = self.word(width), rng.randrange(width - 10)
        special = self.wire(1, f"&{x}[{first + 7}:{first}] & (c[3:0] != 0)")
        sign = self.wire(1, f"{x}[{width - 1}]")
        other = self.wire(width, f"{special} ? {{{x}[7:0], {x}[{width - 1}:8]}} + c : "
                                 f"{x} - (k ? a : b)")
        self.register(width, lane, f"{sign} ? ~{other} : {other}")
        self.register(1, lane, f"{special} ? {sign} ^ ({other} > b) : {sign}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", PATTERN_SEEDS)
def test_patterns_of_all_rules_match_verilator_on_all_backends(seed: int,
                                                               fired: Counter[str]) -> None:
    source = PatternVerilog(seed)
    for index in range(TILE_OUTPUTS):
        lane = index % 3
        make = (source.normaliser, source.sticky, source.larger, source.special)[index % 4]
        make(lane)
    inputs = {"a": 16, "b": 16, "c": 8, "d": 32, "e": 8, "f": 48, "en": 3, "k": 1}
    seen = compare(f"fuzz_patterns_{seed}", inputs, source.outputs, "\n".join(source.lines),
                   "abcdf", BACKENDS, FUNCTIONS)
    assert all(fired.values()), fired
    assert seen.mean() > 0.9
