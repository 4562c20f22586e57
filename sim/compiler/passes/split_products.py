"""Divides products whose results are used in parts, so that the first parts are exchanged early."""

from itertools import pairwise

from sim.compiler.graph.ir import Graph, Operation, TensorType, Value
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["split_products"]


def split_products(graph: Graph) -> None:
    """Replace slices of a product by products of slices, in the program of a pod.

    This is done if all uses of the product are slices that divide its rows into parts without
    overlap: then no element is computed twice. The sums of a pod make such slices
    (`sim.compiler.importer.sharding.rings`). Columns are not divided: if the left operand must be
    transposed, the product for each part of the columns would transpose it again.
    """
    if graph.sharding is None or graph.sharding.pod is None:
        return
    uses: dict[Value, list[Operation]] = {}
    for operation in graph.operations:
        for value in dict.fromkeys(operation.operands):
            uses.setdefault(value, []).append(operation)
    products = {operation.result: operation for operation in graph.operations
                if operation.kind == "dot_general" and operation.result not in graph.outputs
                and _has_rows(operation)
                and _divided(operation.result, uses.get(operation.result, []))}
    seen: dict[Value, Operation] = {}

    def rule(operation: Operation, at: Expansion) -> Value | None:
        if operation.results[0] in products:
            seen[operation.result] = operation
        if operation.kind != "slice" or operation.operands[0] not in seen:
            return None
        return _rows(at, seen[operation.operands[0]], operation.attributes["start_indices"][0],
                     operation.result.type)

    expand(graph, rule)
    graph.operations = [operation for operation in graph.operations
                        if operation.results[0] not in products]


def _has_rows(product: Operation) -> bool:
    """Return whether the operands and the result are matrices.

    Then each row of the left operand gives a row of the result.
    """
    return len(product.result.shape) == 2 and all(
        len(value.shape) == 2 for value in product.operands)


def _divided(value: Value, uses: list[Operation]) -> bool:
    """Return whether all uses of a value are slices that divide its rows."""
    if len(uses) < 2 or any(operation.kind != "slice" or set(operation.attributes["strides"]) != {1}
                            or operation.result.shape[1:] != value.shape[1:]
                            for operation in uses):
        return False
    ends = sorted((operation.attributes["start_indices"][0],
                   operation.attributes["limit_indices"][0]) for operation in uses)
    return all(end <= start for (_, end), (start, _) in pairwise(ends))


def _rows(at: Expansion, product: Operation, start: int, kind: TensorType) -> Value:
    """Return the rows of a product from ``start`` on; ``kind`` is the type of this part."""
    left, right = product.operands
    [contracted] = product.attributes["lhs_contracting_dimensions"]
    part = at.slice(left, 1 - contracted, start, kind.shape[0])
    return at.add("dot_general", (part, right), kind, (), **product.attributes)
