"""Moves reshapes and transposes of inputs from the program to the host, which writes the inputs."""

from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.program.arrays import View

__all__ = ["absorb"]


def absorb(graph: Graph) -> tuple[View, ...]:
    """Remove each reshape or transpose that is the only use of an input.

    Parameters
    ----------
    graph : Graph
        The graph, which is changed: the result of a removed operation becomes the input.

    Returns
    -------
    tuple of View
        For each input, the reshapes and transposes that the host applies to its array instead.
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
    """Return the reshape or transpose that is the only use of a value; None if there is none."""
    found = users.get(value, [])
    if value in returned or len(found) != 1 or not value.type.size or (
            found[0].kind not in ("reshape", "transpose")):
        return None
    return found[0]
