"""Bits that are rarely set: kernels have faster vector code for vectors in which none is set."""

import itertools

from sim.kernel.emit.rare import rare_bits, without
from sim.kernel.ir import Graph, Node
from verif.sim.kernel.rules.interpreter import evaluate


def inside(node: Node) -> bool:
    return False


def special(graph: Graph, x: Node, pattern: int) -> list[Node]:
    """Two values; one of them depends on whether a field has a given bit pattern."""
    bit = graph.eq(graph.and_(x, graph.const(0x7f8)), graph.const(pattern))
    other = graph.add(graph.xor(x, graph.const(5)), graph.shr(x, 3))
    return [graph.sel(bit, other, x), graph.sub(x, graph.const(1))]


def test_bit_of_a_special_exponent_is_rare_and_left_out() -> None:
    graph = Graph()
    x = graph.leaf("x", 12)
    values = special(graph, x, 0x7f8)
    bit, = rare_bits(graph, values, inside)
    assert bit.op == "eq"
    simple = without(graph, values, [bit])
    assert simple == [x, values[1]]
    taken = 0
    for value in range(1 << 12):
        if evaluate([bit], {x: value}) == [0]:
            assert evaluate(simple, {x: value}) == evaluate(values, {x: value})
        else:
            taken += 1
    assert taken == 1 << 4


def test_two_bits_are_rare_if_both_save_work() -> None:
    graph = Graph()
    x, y = graph.leaf("x", 12), graph.leaf("y", 12)
    values = [*special(graph, x, 0x7f8), *special(graph, y, 0x7f8)]
    bits = rare_bits(graph, values, inside)
    simple = without(graph, values, bits)
    assert simple[::2] == [x, y]
    for pair in itertools.product((0, 0x123, 0x7f8, 0xfff), repeat=2):
        leaves = dict(zip((x, y), pair, strict=True))
        if not any(evaluate(bits, leaves)):
            assert evaluate(simple, leaves) == evaluate(values, leaves)


def test_other_bits_are_not_rare() -> None:
    graph = Graph()
    x, y = graph.leaf("x", 12), graph.leaf("y", 12)
    assert not rare_bits(graph, special(graph, x, 0x7f0), inside)
    # Too little depends on the bit.
    field = graph.const(0x7f8)
    bit = graph.eq(graph.and_(x, field), field)
    assert not rare_bits(graph, [graph.sel(bit, x, y)], inside)
    # What the bit decides is computed elsewhere.
    assert not rare_bits(graph, special(graph, x, 0x7f8), lambda node: True)
