"""Joins sums over all devices of a pod, so that they cross the links together."""

from collections.abc import Sequence

from hdl.config import Config
from sim.compiler.collectives.shares import SumShares
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.graph.torus import Torus
from sim.compiler.tiling import standard

__all__ = ["join_sums"]


def join_sums(graph: Graph, config: Config) -> None:
    """Join sums over all devices of a pod (``pod_sum``) in a graph, and in its regions.

    Sums with the same number of sums before them, on the longest chain of dependences, form a
    group: none of them depends on another. A group becomes one sum if at least one of its sums has
    the attribute ``large``, and all of them fit vector memory together. The sums of other groups
    are replaced by the operations of their regions, which exchange values. Operations may change
    their order.
    """
    if graph.sharding is not None and graph.sharding.pod is not None:
        _join(graph, graph.sharding.torus, config)


def _join(graph: Graph, torus: Torus, config: Config) -> None:
    for operation in graph.operations:
        for region in operation.regions if operation.kind != "pod_sum" else ():
            _join(region, torus, config)
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
        elif operation is kept[depth][-1]:
            made[depth].append(_joined(kept[depth]))
    graph.operations = [operation for part in made for operation in part]
    graph.outputs = [replaced.get(value, value) for value in graph.outputs]


def _streams(group: Sequence[Operation], torus: Torus, config: Config) -> bool:
    """Return whether a sum of the group is ``large``, and all sums fit vector memory together."""
    if not any(operation.attributes["large"] for operation in group):
        return False
    values = [operation.operands[0] for operation in group]
    vectors = sum(standard(value.shape, config).vectors for value in values)
    shares = SumShares.of(config, (torus.width, torus.height), vectors)
    return vectors + shares.workspace <= config.vmem_vectors


def _joined(group: list[Operation]) -> Operation:
    return Operation("pod_sum", tuple(value for operation in group for value in operation.operands),
                     tuple(value for operation in group for value in operation.results),
                     location=group[-1].location)


def _inlined(operation: Operation, replaced: dict[Value, Value]) -> list[Operation]:
    """Return the operations of a sum's region; add its values and results to ``replaced``."""
    [region] = operation.regions
    replaced.update(zip(region.inputs, operation.operands, strict=True))
    for inner in region.operations:
        inner.operands = tuple(replaced.get(value, value) for value in inner.operands)
    replaced.update(zip(operation.results, (replaced.get(value, value) for value in region.outputs),
                        strict=True))
    return region.operations
