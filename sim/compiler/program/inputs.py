"""Forms in which the host writes arrays: reshaped, transposed, or two bf16 numbers in a word."""

from collections.abc import Container

import numpy as np

from hdl.config import Config
from sim.compiler.graph.ir import DType, Graph, Operation, Value
from sim.compiler.kernels.products.dot import takes_packed
from sim.compiler.program.arrays import View
from sim.compiler.words import to_words, uniform

__all__ = ["absorb", "packable"]


def absorb(graph: Graph, kept: Container[int] = ()) -> tuple[View, ...]:
    """Remove each reshape or transpose that is the only use of an input: the host does it instead.

    Parameters
    ----------
    graph : Graph
        The graph, which is changed: the result of a removed operation becomes the input.
    kept : container of int
        Numbers of inputs that stay as they are.

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
        while number not in kept and (
                operation := _only(graph.inputs[number], users, returned)) is not None:
            result = operation.result
            steps.append((operation.kind, result.shape if operation.kind == "reshape"
                          else tuple(operation.attributes["permutation"])))
            removed.add(operation)
            graph.inputs[number] = result
        views.append(tuple(steps))
    graph.operations = [operation for operation in graph.operations if operation not in removed]
    return tuple(views)


def packable(graph: Graph, config: Config, *, inputs: bool) -> frozenset[Value]:
    """Return the values to pack in HBM: constants and, if ``inputs`` is true, also inputs.

    Packed values have two bf16 numbers in a word. A value is packed if only products use it, and at
    least one of them loads it, packed, as the array's weights (`takes_packed`). Any other product
    begins with a copy of each number to a word of its own.
    """
    users, returned = graph.users(), set(graph.outputs)

    def packs(value: Value) -> bool:
        found = users.get(value, [])
        return (value.dtype is DType.BF16 and value.type.rank >= 2 and value.type.size > 0
                and value not in returned
                and all(operation.kind == "dot_general" for operation in found)
                and any(takes_packed(operation, value, config) for operation in found))

    # Constants of equal elements are not in HBM: the core itself writes them.
    constants = (operation.result for operation in graph.operations if operation.kind == "constant"
                 and packs(operation.result)
                 and not uniform(to_words(np.asarray(operation.attributes["value"]))))
    return frozenset((*constants, *filter(packs, graph.inputs if inputs else ())))


def _only(value: Value, users: dict[Value, list[Operation]], returned: set[Value]
          ) -> Operation | None:
    """Return the reshape or transpose that is the only use of a value; None if there is none.

    ``users`` has the operations that read each value, and ``returned`` the graph's outputs.
    """
    found = users.get(value, [])
    if value in returned or len(found) != 1 or not value.type.size or (
            found[0].kind not in ("reshape", "transpose")):
        return None
    return found[0]
