"""The golden model of the torus: routes of packets, and freedom from deadlock."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product

import pytest

from golden.torus.route import Hop, channel_graph, check_hops, route, wraps
from hdl.link.format import Direction

X, _X, Y, _Y = Direction


def has_cycle(graph: Mapping[Hop, set[Hop]]) -> bool:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


def test_way_goes_along_x_and_then_along_y() -> None:
    assert route(2, 1, 2, -2, (4, 3)) == [
        Hop(2, 1, X, 0), Hop(3, 1, X, 1),  # crosses the dateline of X
        Hop(0, 1, _Y, 0), Hop(0, 0, _Y, 1)]
    assert route(1, 0, -1, 0, (4, 3)) == [Hop(1, 0, _X, 0)]
    assert route(0, 0, -3, 0, (4, 1)) == [Hop(0, 0, _X, 1), Hop(3, 0, _X, 1), Hop(2, 0, _X, 1)]


@pytest.mark.parametrize("shape", [(4, 3), (2, 5)])
def test_way_ends_where_its_hops_lead(shape: tuple[int, int]) -> None:
    columns, rows = shape
    for x, y, dx, dy in product(range(columns), range(rows), range(1 - columns, columns),
                                range(1 - rows, rows)):
        if dx == dy == 0:
            continue
        way = route(x, y, dx, dy, shape)
        assert len(way) == abs(dx) + abs(dy)
        assert sum(hop.direction.step for hop in way if hop.direction.is_x) == dx
        assert sum(hop.direction.step for hop in way if not hop.direction.is_x) == dy
        if dx and dy:
            # The second dimension does not depend on the first.
            assert way == [*route(x, y, dx, 0, shape),
                           *route((x + dx) % columns, y, 0, dy, shape)]


def test_no_cycle_of_waiting_channels_in_any_shape_up_to_16_by_16() -> None:
    edges = 0
    for columns, rows in product(range(1, 17), repeat=2):
        graph = channel_graph((columns, rows))
        edges += sum(map(len, graph.values()))
        assert not has_cycle(graph), (columns, rows)
    assert edges > 100_000


@pytest.mark.parametrize(("side", "cycle"), [(2, False), (3, True), (4, True), (16, True)])
def test_one_channel_would_deadlock_on_rings(side: int, cycle: bool) -> None:
    """With only one channel, the check finds that the channels of a ring wait for each other."""
    merged: dict[Hop, set[Hop]] = {}
    for hop, following in channel_graph((side, 1)).items():
        merged.setdefault(hop._replace(channel=0), set()).update(
            other._replace(channel=0) for other in following)
    assert has_cycle(merged) == cycle


def test_graph_has_every_pair_of_successive_channels() -> None:
    shape = (3, 4)
    graph = channel_graph(shape)
    for x, y, dx, dy in product(range(3), range(4), range(-2, 3), range(-3, 4)):
        if dx or dy:
            way = route(x, y, dx, dy, shape)
            assert all(other in graph[hop] for hop, other in pairwise(way))


def test_dateline_is_crossed_by_one_link_of_a_ring_each_way() -> None:
    for direction in Direction:
        crossing = [(x, y) for x in range(3) for y in range(2) if wraps(x, y, direction, (3, 2))]
        edge = {X: 2, _X: 0, Y: 1, _Y: 0}[direction]
        assert [node[not direction.is_x] for node in crossing] == [edge] * (
            2 if direction.is_x else 3)


@pytest.mark.parametrize(("hops", "shape", "message"), [
    ((4, 0), (4, 4), "dx must be from -3 to 3, not 4"),
    ((0, -2), (4, 2), "dy must be from -1 to 1, not -2"),
    ((0, 0), (4, 4), "packet must take at least one hop, not dx = dy = 0"),
    ((1, 0), (33, 1), "side of the torus must be from 1 to 32, not 33"),
])
def test_hops_out_of_range_are_refused(hops: tuple[int, int], shape: tuple[int, int],
                                       message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_hops(*hops, shape)
