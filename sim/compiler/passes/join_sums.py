"""Joins sums over all devices of a pod, so that they cross the links together."""

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

from hdl.config import Config
from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.streamed import Form, image_words, room_for_steps
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.graph.torus import Torus
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.tiling import standard

__all__ = ["join_sums"]

_SHARE = 0.6
"""Estimated share of a sum's cycles that products can hide. In the rest, the core executes code for
the sum."""
_STEPS = 1000
"""Estimated cycles that a sum takes longer if it is divided into an early and a late one."""


def join_sums(graph: Graph, config: Config) -> None:
    """Join sums over all devices of a pod (``pod_sum``) in a graph, and in its regions.

    Sums may depend on other sums. A sum's depth is the length of its longest chain of such
    dependences. Sums of equal depth form a group: none of them depends on another. A group is
    joined if at least one of its sums has the attribute ``large``, and all of them fit vector
    memory together. It becomes one sum, or two if the first can be computed during products that
    only the second one needs (`_early`); the first one then gets the attribute ``early``. The sums
    of other groups are replaced by the operations of their regions, which exchange values. The
    pass may change the order of the graph's operations.
    """
    if graph.sharding is not None and graph.sharding.pod is not None:
        # Programs with control flow are not ordered such that kernels follow an early sum.
        _join(graph, graph.sharding.torus, config, divides=not any(
            operation.kind in ("while", "case") for operation in graph.operations))


def _join(graph: Graph, torus: Torus, config: Config, *, divides: bool) -> None:
    """Join the sums of a graph, and of its regions.

    If ``divides``, a group of sums may become two sums, of which the first is computed early.
    Groups in regions become one sum.
    """
    for operation in graph.operations:
        for region in operation.regions if operation.kind != "pod_sum" else ():
            _join(region, torus, config, divides=False)
    # How many sums each value depends on, one after the other.
    depths: dict[Value, int] = {}
    groups: dict[int, list[Operation]] = {}
    for operation in graph.operations:
        depth = max((depths.get(value, 0) for value in operation.operands), default=0)
        if operation.kind == "pod_sum" and operation.regions:
            groups.setdefault(depth, []).append(operation)
            depth += 1
        depths.update(dict.fromkeys(operation.results, depth))
    kept = {depth: group for depth, group in groups.items() if _streams(group, torus, config)}
    early = {depth: _early(graph, group, torus, config) if divides else []
             for depth, group in kept.items()}
    # Operations by the number of sums that they depend on; unsorted if no sums are joined.
    made: list[list[Operation]] = [[] for _ in range(max(depths.values(), default=0) + 1)]
    replaced: dict[Value, Value] = {}
    for operation in graph.operations:
        depth = max((depths.get(value, 0) for value in operation.operands if kept), default=0)
        operation.operands = tuple(replaced.get(value, value) for value in operation.operands)
        if operation.kind != "pod_sum" or not operation.regions:
            made[depth].append(operation)
        elif depth not in kept:
            made[depth] += _inlined(operation, replaced)
        else:
            first = early[depth]
            later = [item for item in kept[depth] if item not in first]
            for group in (first, later):
                if group and operation is group[-1]:
                    made[depth].append(_joined(group, early=group is first))
    graph.operations = [operation for part in made for operation in part]
    graph.outputs = [replaced.get(value, value) for value in graph.outputs]


def _streams(group: Sequence[Operation], torus: Torus, config: Config) -> bool:
    """Return whether any sum of the group is ``large``, and all together fit vector memory."""
    if not any(operation.attributes["large"] for operation in group):
        return False
    shares = _shares(group, torus, config)
    return shares.vectors + shares.workspace <= config.vmem_vectors


def _early(graph: Graph, group: Sequence[Operation], torus: Torus, config: Config
           ) -> list[Operation]:
    """Return the group's sums to compute early: during products that only its other sums need.

    The choice is the one that saves the most cycles; the list is empty if no choice saves any.
    """
    # For each value, a bit for each product that it depends on; and the cycles of the products.
    needed: dict[Value, int] = {}
    cycles: list[float] = []
    for operation in graph.operations:
        found = reduce(or_, (needed.get(value, 0) for value in operation.operands), 0)
        if operation.kind == "dot_general":
            found |= 1 << len(cycles)
            cycles.append(_product_cycles(operation, config))
        needed.update(dict.fromkeys(operation.results, found))

    def work(bits: int) -> float:
        return sum(one for number, one in enumerate(cycles) if bits >> number & 1)

    def bits(operations: Iterable[Operation]) -> int:
        return reduce(or_, (needed.get(operation.operands[0], 0) for operation in operations), 0)

    def whole(operations: Sequence[Operation]) -> float:
        return _shares(operations, torus, config).cycles(config)

    order = sorted(group, key=lambda operation: work(bits([operation])))
    every, best, most = bits(order), 0, 0.0
    for count in range(1, len(order)):
        first, rest = order[:count], order[count:]
        if not _fits_in_steps(first, torus, config):
            continue
        behind = work(every & ~bits(first))
        # Without the first sum, the other one has fewer vectors, but its data travel as far.
        shorter = whole(order) - whole(rest)
        saved = min(_SHARE * min(behind, whole(first)), shorter) - _STEPS
        if saved > most:
            best, most = count, saved
    return [operation for operation in group if operation in order[:best]]


def _fits_in_steps(group: Sequence[Operation], torus: Torus, config: Config) -> bool:
    """Return whether scalar memory has room for a sum in steps, between which kernels run."""
    shares = _shares(group, torus, config)
    room = room_for_steps(config, shares, len(ScalarMemory(config).kernel))
    return image_words(shares, room, Form.STEPS) <= room


def _product_cycles(operation: Operation, config: Config) -> float:
    value = operation.operands[0]
    contracted = math.prod(
        value.shape[at] for at in operation.attributes["lhs_contracting_dimensions"])
    return operation.result.type.size * contracted / config.lanes ** 2


def _shares(group: Sequence[Operation], torus: Torus, config: Config) -> SumShares:
    vectors = sum(standard(operation.operands[0].shape, config).vectors for operation in group)
    return SumShares.of(config, (torus.width, torus.height), vectors)


def _joined(group: list[Operation], *, early: bool) -> Operation:
    return Operation("pod_sum", tuple(value for operation in group for value in operation.operands),
                     tuple(value for operation in group for value in operation.results),
                     {"early": True} if early else {}, location=group[-1].location)


def _inlined(operation: Operation, replaced: dict[Value, Value]) -> list[Operation]:
    """Return the operations of a sum's region, which take the sum's place.

    Add to ``replaced`` what replaces the region's inputs, and what replaces the sum's results.
    """
    [region] = operation.regions
    replaced.update(zip(region.inputs, operation.operands, strict=True))
    for inner in region.operations:
        inner.operands = tuple(replaced.get(value, value) for value in inner.operands)
    replaced.update(zip(operation.results, (replaced.get(value, value) for value in region.outputs),
                        strict=True))
    return region.operations
