"""Chooses a tiling for each value; inserts copies to the tilings that kernels need."""

from collections.abc import Collection
from dataclasses import replace

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.kernels.lowering import choose
from sim.compiler.program.launch.kernel import load_rules
from sim.compiler.tiling import Tiling, standard

__all__ = ["BARRIER", "CONTROL", "HELD", "Tilings", "assign_tilings"]

Tilings = dict[Value, Tiling]

CONTROL = frozenset({"while", "case", "stream"})
"""Kinds of operations for control flow: they have no kernel; the planner writes the code of their
regions.
"""
BARRIER = "barrier"
"""Kind of an operation for a barrier of all devices of a pod, before an exchange in which this
device takes no part. The operation has neither operands nor results.
"""
HELD = frozenset({"constant", "device_constant"})
"""Kinds of operations that have neither a kernel nor regions; their results have the standard
tiling.
"""


def assign_tilings(graph: Graph, config: Config, packed: Collection[Value] = ()) -> Tilings:
    """Choose tilings; insert a ``relayout`` where an operation needs an operand in another tiling.

    Constants have the standard tiling, and so have inputs and outputs of the graph and of the
    regions of control flow (`CONTROL`). Values in ``packed`` have the packed standard tiling.

    Parameters
    ----------
    graph : Graph
        The graph, which is changed.
    config : Config
        The chip.
    packed : collection of Value
        The inputs and constants of the graph that are packed.

    Returns
    -------
    dict of Value to Tiling
        The tiling of each value of the graph and of the regions of control flow.
    """
    load_rules()
    tilings: Tilings = {value: replace(standard(value.shape, config), packed=True)
                        for value in packed}
    _assign(graph, config, tilings)
    return tilings


def _assign(graph: Graph, config: Config, tilings: Tilings) -> None:
    copies: dict[tuple[Value, Tiling], Value] = {}
    operations: list[Operation] = []

    def copied(value: Value, wanted: Tiling, near: Operation | None) -> Value:
        """Return ``value`` if it has the wanted tiling, else a copy that has it.

        The copy gets the source line of ``near``, an operation that uses it.
        """
        if tilings[value] == wanted:
            return value
        if wanted != tilings[value].widened:
            value = copied(value, tilings[value].widened, near)
        copy = copies.get((value, wanted))
        if copy is None:
            copy = copies[value, wanted] = Value(value.type)
            tilings[copy] = wanted
            operations.append(Operation("relayout", (value,), (copy,),
                                        location=near.location if near else None))
        return copy

    for value in graph.inputs:
        tilings.setdefault(value, standard(value.shape, config))
    for operation in graph.operations:
        given = tuple(tilings[value] for value in operation.operands)
        if operation.kind in CONTROL | HELD or operation.attributes.get("in_hbm"):
            takes = tuple(standard(value.shape, config) for value in operation.operands)
            makes = tuple(tilings.get(value) or standard(value.shape, config)
                          for value in operation.results)
            for region in operation.regions:
                if operation.kind in CONTROL:
                    _assign(region, config, tilings)
        else:
            choice = choose(operation, given, config)
            takes, makes = choice.operands, choice.results
        operation.operands = tuple(
            copied(value, wanted, operation)
            for value, wanted in zip(operation.operands, takes, strict=True))
        tilings.update(zip(operation.results, makes, strict=True))
        operations.append(operation)
    graph.outputs = [copied(value, standard(value.shape, config), None)
                     for value in graph.outputs]
    graph.operations = operations
