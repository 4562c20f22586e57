"""Moves transposes of operands and results into products."""

from collections import Counter

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["sink_transposes"]


def sink_transposes(graph: Graph) -> None:
    """Take the operand of a transpose for the transpose, where the order of free dimensions, which
    a product's result keeps, is the same; and exchange the operands of a product, if a transpose
    that exchanges their free dimensions is its only use.
    """
    uses = _uses(graph)
    expand(graph, lambda operation, at: _sink(operation, at, uses))


def _uses(graph: Graph) -> Counter[Value]:
    """How often each value is used, in regions too."""
    uses = Counter(graph.outputs)
    for operation in graph.operations:
        uses.update(operation.operands)
        for region in operation.regions:
            uses.update(_uses(region))
    return uses


def _sink(operation: Operation, at: Expansion, uses: Counter[Value]) -> Value | None:
    if operation.kind == "transpose":
        return _exchange(operation, at, uses)
    if operation.kind != "dot_general":
        return None
    operands, attributes = list(operation.operands), dict(operation.attributes)
    for number, side in enumerate(("lhs", "rhs")):
        producer = at.producers.get(operands[number])
        if producer is None or producer.kind != "transpose":
            continue
        permutation = producer.attributes["permutation"]
        names = [f"{side}_batching_dimensions", f"{side}_contracting_dimensions"]
        bound = {i for name in names for i in attributes[name]}
        free = [old for new, old in enumerate(permutation) if new not in bound]
        if free == sorted(free):
            operands[number] = producer.operands[0]
            for name in names:
                attributes[name] = tuple(permutation[i] for i in attributes[name])
    if operands == list(operation.operands):
        return None
    result = at.add("dot_general", operands, operation.result.type, (), **attributes)
    uses[result] = uses[operation.result]
    return result


def _exchange(operation: Operation, at: Expansion, uses: Counter[Value]) -> Value | None:
    """The product with its operands exchanged that a transpose of a product is."""
    [value] = operation.operands
    product = at.producers.get(value)
    if product is None or product.kind != "dot_general" or uses[value] != 1:
        return None
    attributes, rank = product.attributes, len(value.shape)
    if set(attributes.get("precision_config", ())) - {"DEFAULT"}:
        # The order in which the terms of several passes are added would be another one.
        return None
    batch = len(attributes["lhs_batching_dimensions"])
    left = len(product.operands[0].shape) - len(attributes["lhs_contracting_dimensions"])
    wanted = (*range(batch), *range(left, rank), *range(batch, left))
    if tuple(operation.attributes["permutation"]) != wanted:
        return None
    other = {"lhs": "rhs", "rhs": "lhs"}
    exchanged = {other[name[:3]] + name[3:] if name[:3] in other else name: given
                 for name, given in attributes.items()}
    return at.add("dot_general", product.operands[::-1], operation.result.type, (), **exchanged)
