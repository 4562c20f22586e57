"""Golden model of the torus: the way of a packet, and which channel waits for which."""

from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import NamedTuple

from hdl.checks import integer
from hdl.link.format import MAX_SIDE, Direction

__all__ = ["Hop", "Route", "channel_graph", "check_hops", "route", "wraps"]


class Hop(NamedTuple):
    """A virtual channel of a link, by the link's sender (x, y), its direction, and the channel."""

    x: int
    y: int
    direction: Direction
    channel: int


def wraps(x: int, y: int, direction: Direction, shape: tuple[int, int]) -> bool:
    """Whether a chip's link crosses the dateline: it joins the last chip of a ring and the first.

    Parameters
    ----------
    x, y : int
        Coordinates of the chip that the link leaves.
    direction : Direction
        Direction of the link.
    shape : tuple of int
        Chips along X and along Y.
    """
    return (x if direction.is_x else y) == _last(direction, shape)


def _last(direction: Direction, shape: tuple[int, int]) -> int:
    """Return the coordinate of chips whose link in ``direction`` crosses the dateline.

    The coordinate is that along the axis of this direction.
    """
    return shape[not direction.is_x] - 1 if direction.step > 0 else 0


def check_hops(dx: int, dy: int, shape: tuple[int, int]) -> None:
    """Check that a packet may take ``dx`` hops along X and ``dy`` along Y on a torus of ``shape``.

    Both numbers may be negative.

    Raises
    ------
    TypeError, ValueError
        If the magnitude of ``dx`` is not less than the chips along X, that of ``dy`` is not less
        than the chips along Y, or both numbers are 0.
    """
    for name, hops, side in (("dx", dx, shape[0]), ("dy", dy, shape[1])):
        integer("side of the torus", side, 1, MAX_SIDE)
        integer(name, hops, 1 - side, side - 1)
    if dx == dy == 0:
        raise ValueError("packet must take at least one hop, not dx = dy = 0")


def route(x: int, y: int, dx: int, dy: int, shape: tuple[int, int]) -> list[Hop]:
    """Return the hops of a packet in order: first those along X, then those along Y.

    A packet begins each dimension on channel 0. It takes the dateline, and all links after it in
    that dimension, on channel 1.

    Parameters
    ----------
    x, y : int
        Coordinates of the chip that sends it.
    dx, dy : int
        Signed hops along each dimension.
    shape : tuple of int
        Chips along X and along Y.

    Raises
    ------
    TypeError, ValueError
        If the hops are out of range (`check_hops`).
    """
    check_hops(dx, dy, shape)
    hops = [Hop(column, y, direction, channel)
            for column, direction, channel in _leg(x, dx, Direction.X_PLUS, shape)]
    x = (x + dx) % shape[0]
    hops += [Hop(x, row, direction, channel)
             for row, direction, channel in _leg(y, dy, Direction.Y_PLUS, shape)]
    return hops


def _leg(position: int, count: int, plus: Direction, shape: tuple[int, int],
         ) -> Iterator[tuple[int, Direction, int]]:
    """Yield position, direction and virtual channel of each hop of a packet along one axis."""
    direction = plus if count > 0 else plus.opposite
    last, step, side = _last(direction, shape), direction.step, shape[not plus.is_x]
    channel = 0
    for _ in range(abs(count)):
        channel |= position == last
        yield position, direction, channel
        position = (position + step) % side


Route = Callable[[int, int, int, int, tuple[int, int]], list[Hop]]
"""A function with the arguments and the result of `route`."""


def channel_graph(shape: tuple[int, int], route: Route = route) -> dict[Hop, set[Hop]]:
    """Return, for each channel of the torus, the channels that its flits may have to wait for.

    A packet that holds a channel waits for the next channel of its way. If the graph has no cycle,
    some packet waits for no other and can proceed, so there is no deadlock (W. J. Dally,
    C. L. Seitz: Deadlock-free message routing in multiprocessor interconnection networks, IEEE
    Transactions on Computers, 1987).

    Parameters
    ----------
    shape : tuple of int
        Chips along X and along Y.
    route : callable
        Finds the way of a packet; by default the golden model's function.
    """
    graph: dict[Hop, set[Hop]] = {}
    for x, y in product(range(shape[0]), range(shape[1])):
        for direction in Direction:
            longest = direction.step * (shape[not direction.is_x] - 1)
            if longest:
                way = route(x, y, *((longest, 0) if direction.is_x else (0, longest)), shape)
                graph.setdefault(way[-1], set())
                _add_pairs(graph, way)
    if min(shape) > 1:
        _add_turns(graph, shape, route)
    return graph


def _add_pairs(graph: dict[Hop, set[Hop]], way: list[Hop]) -> None:
    for hop, following in pairwise(way):
        graph.setdefault(hop, set()).add(following)


def _add_turns(graph: dict[Hop, set[Hop]], shape: tuple[int, int], route: Route) -> None:
    """Add to ``graph``, for each channel along X, the channels along Y to which packets turn.

    The channels along Y are taken from the routes of packets that turn: a wrong router may give
    such packets other channels than packets that begin along Y.
    """
    columns, rows = shape
    begins = {route(x, y, 0, across, shape)[0]
              for x, y, across in product(range(columns), range(rows), (1, -1))}
    ways = {(x, y, step): route(x, y, step * (columns - 1), 0, shape)
            for x, y, step in product(range(columns), range(rows), (1, -1))}
    turned: set[Hop] = set()
    for count, (x, y, step) in product(range(1, columns), ways):
        last = ways[x, y, step][count - 1]
        if last in turned:
            continue
        turned.add(last)
        for across in (1, -1):
            way = route(x, y, step * count, across, shape)
            if way[-1] not in begins:
                way = route(x, y, step * count, across * (rows - 1), shape)
            _add_pairs(graph, way)
