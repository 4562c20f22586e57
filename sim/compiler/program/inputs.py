"""Reshapes and transposes of inputs, which the host does when it lays out its arrays."""

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.program.arrays import View

__all__ = ["absorb"]


def absorb(graph: Graph) -> tuple[View, ...]:
    """Remove reshapes and transposes of inputs that nothing else uses.

    Parameters
    ----------
    graph : Graph
        Its inputs become what these operations make of them.

    Returns
    -------
    tuple of View
        For each input, what the host does to its array instead.
    """
    users, returned = graph.users(), set(graph.outputs)
    removed: set[Operation] = set()
    views = []
    for number in range(len(graph.inputs)):
        steps = []
        while (operation := _only(graph.inputs[number], users, returned)) is not None:
            result = operation.result
            steps.append((operation.kind, result.shape if operation.kind == "reshape"
                          else tuple(operation.attributes["permutation"])))
            removed.add(operation)
            graph.inputs[number] = result
        views.append(tuple(steps))
    graph.operations = [operation for operation in graph.operations if operation not in removed]
    return tuple(views)


def _only(value: Value, users: dict[Value, list[Operation]], returned: set[Value]
          ) -> Operation | None:
    """The operation that moves a value's elements, if nothing else uses the value."""
    found = users.get(value, [])
    if value in returned or len(found) != 1 or not value.type.size or (
            found[0].kind not in ("reshape", "transpose")):
        return None
    return found[0]
