"""Rules on expressions: all values of short words, and patterns that only resemble a rule's."""

import itertools
from collections.abc import Callable, Sequence

import pytest

from sim.kernel.ir import Graph, Node, low, topological
from sim.kernel.rules.rewrite import RULES, rewrite
from verif.sim.kernel.rules.interpreter import evaluate
from verif.sim.kernel.rules.patterns import (
    clamped,
    larger,
    normalised,
    normaliser,
    sticky,
    sticky_value,
)

WORD, DISTANCE = 6, 8


def operations(roots: Sequence[Node]) -> set[str]:
    return {node.op for node in topological(roots)}


def found(rule: str, graph: Graph, *roots: Node) -> dict[Node, Node]:
    return RULES[rule](graph, topological(roots))


def plain(graph: Graph, x: Node, distance: Node) -> Node:
    """The expression to which a rule turns a sticky shift of `sticky`."""
    root, = rewrite(graph, [sticky(graph, x, distance, WORD)])
    return root


@pytest.mark.parametrize(("width", "places"), [
    (8, (4, 2, 1)), (7, (4, 2, 1)), (5, (4, 2, 1)), (10, (4, 2, 1)), (9, (8, 4, 2)),
    (9, (8, 4, 2, 1)), (12, (8, 4, 2, 1))])
@pytest.mark.parametrize("spare", [0, 2])
def test_normaliser_of_every_word_keeps_its_values(width: int, places: tuple[int, ...],
                                                   spare: int) -> None:
    graph = Graph()
    word = graph.leaf("w", width + spare)
    roots = normaliser(graph, word, width, places)
    count = rewrite(graph, roots)
    assert operations(count) <= {"leaf", "const", "and", "clz", "shlv"}
    for value in range(1 << (width + spare)):
        expected = normalised(value, width, places)
        shifted, distance = evaluate(count, {word: value})
        assert (shifted & low(width), distance) == expected
        # The bits above the word's, too, are those that the steps shifted there.
        assert [shifted, distance] == evaluate(roots, {word: value})


@pytest.mark.parametrize(("width", "places"), [(7, (4, 2, 1)), (9, (8, 4, 2, 1))])
def test_normaliser_that_drops_higher_bits_keeps_its_values(width: int,
                                                                  places: tuple[int, ...]) -> None:
    graph = Graph()
    word = graph.leaf("w", width)
    roots = normaliser(graph, word, width, places, masked=True)
    new = rewrite(graph, roots)
    assert "clz" in operations(new)
    for value in range(1 << width):
        assert tuple(evaluate(new, {word: value})) == normalised(value, width, places)


def test_next_step_that_shifts_something_else_shares_the_count() -> None:
    graph = Graph()
    word = graph.leaf("w", 9)
    shifted, _ = normaliser(graph, word, 9, (8, 4, 2))
    roots = [shifted, graph.test(shifted, 0x100)]
    new = rewrite(graph, roots)
    assert operations(new) == {"leaf", "const", "clz", "and", "shlv", "test", "notb"}
    assert [node.op for node in topological(new)].count("clz") == 1
    for value in range(1 << 9):
        assert evaluate(new, {word: value}) == evaluate(roots, {word: value})


def other_chain(graph: Graph, masks: Sequence[int], places: Sequence[int], *,
                arms: int = 1) -> Node:
    """A chain of steps like a normaliser's, with given conditions."""
    word = graph.leaf("w", 8)
    for mask, count in zip(masks, places, strict=True):
        kept, shifted = (word, graph.shl(word, count))[::arms]
        word = graph.sel(graph.test(word, mask), kept, shifted)
    return word


@pytest.mark.parametrize("make", [
    pytest.param(lambda graph: other_chain(graph, (0xf0, 0xc0), (4, 2)), id="two steps"),
    pytest.param(lambda graph: other_chain(graph, (0xf0, 0xe0, 0x80), (4, 2, 1)), id="mask"),
    pytest.param(lambda graph: other_chain(graph, (0xf0, 0xc0, 0x40), (4, 2, 1)), id="width"),
    pytest.param(lambda graph: other_chain(graph, (0xf0, 0xc0, 0x80), (4, 1, 1)), id="shift"),
    pytest.param(lambda graph: other_chain(graph, (0xc0, 0xf0, 0x80), (2, 4, 1)), id="order"),
    pytest.param(lambda graph: other_chain(graph, (0xe0, 0xc0, 0x80), (3, 2, 1)), id="distance"),
    pytest.param(lambda graph: other_chain(graph, (0xf0, 0xc0, 0x80), (4, 2, 1), arms=-1),
                 id="arms"),
    pytest.param(lambda graph: normaliser(graph, graph.leaf("w", 9), 8, (4, 2, 1), masked=True)[0],
                 id="bits above"),
    pytest.param(lambda graph: normaliser(graph, graph.leaf("w", 8), 8, (8, 4, 2, 1))[0],
                 id="distance of the width"),
    pytest.param(lambda graph: normaliser(graph, graph.leaf("w", 7), 8, (4, 2, 1))[0],
                 id="shorter word"),
])
def test_other_steps_are_no_normaliser(make: Callable[[Graph], Node]) -> None:
    graph = Graph()
    assert not found("normaliser", graph, make(graph))


def test_steps_of_a_normaliser_are_found() -> None:
    # The nearest neighbour of those above.
    graph = Graph()
    assert found("normaliser", graph, other_chain(graph, (0xf0, 0xc0, 0x80), (4, 2, 1)))


def test_every_sticky_shift_keeps_its_value() -> None:
    graph = Graph()
    x, distance = graph.leaf("x", WORD), graph.leaf("n", 7)
    root = sticky(graph, x, distance, WORD)
    new, = rewrite(graph, [root])
    assert operations([new]) == {"leaf", "const", "or", "shrv", "shlv", "eq", "sel"}
    for value, places in itertools.product(range(1 << WORD), range(1 << 7)):
        assert evaluate([new], {x: value, distance: places}) == [sticky_value(value, places)]


def lost_bits(graph: Graph, *, bits: int = WORD, ones: int = low(WORD), mask: int = low(WORD),
              tested: int = low(WORD)) -> Node:
    """A test of the bits that a shift drops, with given masks."""
    kept = graph.shlv(graph.const(ones), graph.leaf("n", 3))
    dropped = graph.xor(kept, graph.const(mask))
    return graph.test(graph.and_(graph.leaf("x", bits), dropped), tested)


@pytest.mark.parametrize("change", [{"bits": WORD + 1}, {"ones": low(WORD - 1)}, {"ones": 0x2f},
                                    {"mask": low(WORD) - 1}, {"mask": 0x1f}, {"tested": 0x3e}])
def test_tests_of_other_bits_are_no_sticky_shift(change: dict[str, int]) -> None:
    graph = Graph()
    assert found("sticky", graph, lost_bits(graph))
    graph = Graph()
    assert not found("sticky", graph, lost_bits(graph, **change))


def test_every_pair_of_sticky_shifts_keeps_its_value() -> None:
    graph = Graph()
    x, distance = graph.leaf("x", WORD), graph.leaf("n", 5)
    coarse, fine = (graph.and_(distance, graph.const(mask)) for mask in (0x14, 0x0b))
    root = sticky(graph, sticky(graph, x, coarse, WORD), fine, WORD)
    new, = rewrite(graph, [root])
    assert [node.op for node in topological([new])].count("shrv") == 1
    for value, places in itertools.product(range(1 << WORD), range(1 << 5)):
        assert evaluate([new], {x: value, distance: places}) == [sticky_value(value, places)]


def test_sticky_shifts_by_distances_with_bits_in_common_are_not_merged() -> None:
    graph = Graph()
    x, distance = graph.leaf("x", WORD), graph.leaf("n", 5)
    for masks, merged in (((0x1c, 0x07), False), ((0x1f, 0x1f), False), ((0x18, 0x07), True)):
        coarse, fine = (graph.and_(distance, graph.const(mask)) for mask in masks)
        root = plain(graph, sticky(graph, x, coarse, WORD), fine)
        shifts = [node.op for node in topological([root])].count("shrv")
        assert shifts == (1 if merged else 2)


def test_other_bits_than_the_lowest_are_not_sticky() -> None:
    graph = Graph()
    x, distance = graph.leaf("x", WORD), graph.leaf("n", 5)
    coarse, fine = (graph.and_(distance, graph.const(mask)) for mask in (0x18, 0x07))
    shift = plain(graph, x, coarse)
    bit = next(node for node in topological([shift]) if node.is_bit)
    other = graph.or_(graph.shrv(x, coarse), graph.sel(bit, graph.const(0), graph.const(2)))
    roots = [plain(graph, other, fine), sticky(graph, graph.xor(shift, x), fine, WORD)]
    assert not found("sticky_series", graph, *roots)


@pytest.mark.parametrize(("most", "high"), [(7, 0xf8), (7, 0x78), (31, 0xe0), (15, 0x40)])
def test_every_clamped_sticky_shift_keeps_its_value(most: int, high: int) -> None:
    graph = Graph()
    x, distance = graph.leaf("x", WORD), graph.leaf("n", DISTANCE)
    root = sticky(graph, x, clamped(graph, distance, most, high), WORD)
    new, = rewrite(graph, [root])
    assert "test" not in operations([new])
    for value, places in itertools.product(range(1 << WORD), range(1 << DISTANCE)):
        expected = sticky_value(value, most if places & high else places & most)
        assert evaluate([new], {x: value, distance: places}) == [expected]


@pytest.mark.parametrize(("most", "high"), [(5, 0xf8), (7, 0xfc), (3, 0xfc), (1, 0xfe)])
def test_clamps_that_the_number_shows_are_kept(most: int, high: int) -> None:
    graph = Graph()
    x, distance = graph.leaf("x", WORD), graph.leaf("n", DISTANCE)
    shift = plain(graph, x, clamped(graph, distance, most, high))
    assert not found("clamp", graph, shift)
    assert "test" in operations([shift])


def test_clamp_by_another_number_is_kept() -> None:
    graph = Graph()
    x, distance, other = (graph.leaf(name, 8) for name in "xno")
    clamp = graph.sel(graph.test(other, 0xf8), graph.const(7), graph.and_(distance, graph.const(7)))
    x = graph.and_(x, graph.const(low(WORD)))
    assert not found("clamp", graph, plain(graph, x, clamp))


@pytest.mark.parametrize(("places", "width"), [(1, 4), (2, 3), (4, 4), (3, 1)])
def test_every_comparison_of_a_shifted_number_keeps_its_value(places: int, width: int) -> None:
    graph = Graph()
    x, y = graph.leaf("x", 8), graph.leaf("y", 4)
    root = larger(graph, x, y, places, width)
    new, = rewrite(graph, [root])
    assert "shr" not in operations([new])
    for values in itertools.product(range(1 << 8), range(1 << 4)):
        leaves = dict(zip((x, y), values, strict=True))
        assert evaluate([new], leaves) == evaluate([root], leaves)


def test_comparison_is_kept_unless_the_shifted_number_exists() -> None:
    graph = Graph()
    x, y, z = (graph.leaf(name, 8) for name in "xyz")
    below = graph.ltu(graph.shr(x, 3), y)
    assert found("compare", graph, below, graph.shl(y, 3))
    assert not found("compare", graph, below, graph.shl(y, 2), graph.shl(z, 3))
    for other in (graph.ltu(y, graph.shr(x, 3)), graph.eq(graph.shr(x, 3), y),
                  graph.ltu(graph.and_(graph.shr(x, 3), graph.const(0x1d)), y)):
        assert not found("compare", graph, other, graph.shl(y, 3))


def test_comparison_is_kept_if_the_other_number_would_lose_bits() -> None:
    graph = Graph()
    x, y = graph.leaf("x", 64), graph.leaf("y", 62)
    for places, lost in ((2, False), (3, True)):
        below = graph.ltu(graph.shr(x, places), y)
        assert bool(found("compare", graph, below, graph.shl(y, places))) is not lost


@pytest.mark.parametrize("rule", RULES)
def test_rules_find_nothing_in_their_own_results(rule: str) -> None:
    graph = Graph()
    x, distance = graph.leaf("x", WORD), graph.leaf("n", DISTANCE)
    coarse, fine = (graph.and_(clamped(graph, distance, 31, 0xe0), graph.const(mask))
                    for mask in (0x18, 0x07))
    shift = sticky(graph, sticky(graph, x, coarse, WORD), fine, WORD)
    roots = rewrite(graph, normaliser(graph, shift, WORD, (4, 2, 1)))
    assert not found(rule, graph, *roots)
    assert operations(roots) == {"leaf", "const", "or", "shrv", "shlv", "eq", "sel", "clz"}
