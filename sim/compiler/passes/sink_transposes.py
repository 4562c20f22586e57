"""Moves transposes of operands into the dimension numbers of products."""

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.passes.expansion import Expansion, expand

__all__ = ["sink_transposes"]


def sink_transposes(graph: Graph) -> None:
    """Take the operand of a transpose for the transpose, where the order of free dimensions, which
    a product's result keeps, is the same.
    """
    expand(graph, _sink)


def _sink(operation: Operation, at: Expansion) -> Value | None:
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
    return at.add("dot_general", operands, operation.result.type, (), **attributes)
