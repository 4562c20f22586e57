"""Removes transposes of products' operands and results, by changing products' dimension numbers."""

from collections import Counter

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["sink_transposes"]


def sink_transposes(graph: Graph) -> None:
    """Remove transposes of operands and results of ``dot_general``.

    - A product of a transposed operand becomes a product of the operand before the transpose. The
      transpose must keep the order of the free dimensions, because it is their order in the result.
    - In a product's result, the left operand's free dimensions precede the right operand's. A
      transpose that exchanges these two groups is replaced by the product with swapped operands,
      if the transpose is the only use of the product.
    """
    uses = _uses(graph)
    expand(graph, lambda operation, at: _sink(operation, at, uses))


def _uses(graph: Graph) -> Counter[Value]:
    """Count the uses of each value, including those in regions."""
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
    """Replace a transpose of a product by the product with swapped operands.

    ``uses`` has the number of uses of each value. Return None if the results would differ, or if
    the untransposed product is also used.
    """
    [value] = operation.operands
    product = at.producers.get(value)
    if product is None or product.kind != "dot_general" or uses[value] != 1:
        return None
    attributes, rank = product.attributes, len(value.shape)
    if set(attributes.get("precision_config", ())) - {"DEFAULT"}:
        # With several passes, swapped operands would change the order in which terms are added.
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
