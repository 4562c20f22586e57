"""Patterns of hardware that rules of the kernel compiler replace, and their expected values."""

from collections.abc import Sequence

from sim.kernel.ir import Graph, Node, low

__all__ = ["clamped", "larger", "normalised", "normaliser", "sticky", "sticky_value"]


def normaliser(graph: Graph, word: Node, width: int, places: Sequence[int], *,
               masked: bool = False) -> tuple[Node, Node]:
    """Steps that shift out the leading zeros of ``width`` bits.

    Returns nodes for the shifted word and the distance. If ``masked``, each step drops bits that
    it shifts beyond the ``width`` bits.
    """
    distance = graph.const(0)
    for count in places:
        top = low(width) & ~low(max(width - count, 0))
        used = graph.test(word, top)
        shifted = graph.shl(word, count)
        if masked:
            shifted = graph.and_(shifted, graph.const(low(width)))
        word = graph.sel(used, word, shifted)
        distance = graph.or_(distance, graph.sel(used, graph.const(0), graph.const(count)))
    return word, distance


def normalised(word: int, width: int, places: Sequence[int]) -> tuple[int, int]:
    """Expected values of `normaliser`: ``width`` bits of the shifted word, and the distance."""
    distance = 0
    for count in places:
        if not ((word << distance) & low(width)) >> max(width - count, 0):
            distance += count
    return (word << distance) & low(width), distance


def sticky(graph: Graph, x: Node, distance: Node, width: int) -> Node:
    """``x`` of ``width`` bits, shifted right; bit 0 is set, too, if a one is shifted out."""
    ones = graph.const(low(width))
    kept = graph.and_(graph.shlv(ones, distance), ones)
    lost = graph.test(graph.and_(x, graph.xor(kept, ones)))
    return graph.or_(graph.shrv(x, distance), graph.from_bit(lost))


def sticky_value(x: int, distance: int) -> int:
    """The expected value of `sticky`."""
    return x >> distance | int(x & low(distance) != 0)


def clamped(graph: Graph, distance: Node, most: int, high: int) -> Node:
    """The distance, or ``most`` if any of the distance's bits in the mask ``high`` is one."""
    near = graph.and_(distance, graph.const(most))
    return graph.sel(graph.test(distance, high), graph.const(most), near)


def larger(graph: Graph, x: Node, y: Node, places: int, width: int) -> Node:
    """The larger of two words of ``width + places`` bits: ``x``, and ``y << places``."""
    head = graph.and_(graph.shr(x, places), graph.const(low(width)))
    return graph.sel(graph.ltu(head, y), graph.shl(y, places),
                     graph.and_(x, graph.const(low(width + places))))
