"""Splits a graph with a sharding into the programs of two cores."""

from dataclasses import replace

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.tilings import CONTROL

__all__ = ["connect", "for_device", "hoist", "require_cores"]


def require_cores(graph: Graph, config: Config) -> None:
    """Check that a chip has as many cores as a graph needs: two, if the graph has a sharding.

    Raises
    ------
    ValueError
        If the chip has too few cores.
    """
    if graph.sharding is not None and config.cores < 2:
        raise ValueError(f"{graph.name} needs a chip with 2 cores, not {config.cores}")


def for_device(graph: Graph, device: int) -> Graph:
    """Return the graph that one of two devices (cores) executes.

    Each ``exchange`` keeps only the operand that this device sends, and gets an attribute
    ``number``: exchanges have the same numbers in the graphs of both devices. Each ``by_device`` is
    replaced by this device's operand.

    Parameters
    ----------
    graph : Graph
        The graph after all passes. The result has copies of its operations and shares its values.
    device : int
        0 or 1.
    """
    made = _Specialise(device).graph(graph)
    _drop_unused(made)
    return made


class _Specialise:
    def __init__(self, device: int) -> None:
        self._device = device
        self._exchanges = 0

    def graph(self, graph: Graph) -> Graph:
        same: dict[Value, Value] = {}
        made = Graph(list(graph.inputs), [], [], graph.name, graph.sharding)
        for operation in graph.operations:
            operands = tuple(same.get(value, value) for value in operation.operands)
            attributes = dict(operation.attributes)
            if operation.kind == "by_device":
                same[operation.result] = operands[self._device]
                continue
            if operation.kind == "exchange":
                operands = (operands[self._device],)
                attributes["number"] = self._exchanges
                self._exchanges += 1
            regions = tuple(self.graph(region) if operation.kind in CONTROL else region
                            for region in operation.regions)
            made.operations.append(Operation(operation.kind, operands, operation.results,
                                             attributes, regions, operation.location))
        made.outputs = [same.get(value, value) for value in graph.outputs]
        return made


def _drop_unused(graph: Graph) -> None:
    """Drop operations whose results this device does not use, except control flow and exchanges."""
    live, kept = set(graph.outputs), []
    for operation in reversed(graph.operations):
        stays = operation.kind == "exchange" or operation.kind in CONTROL
        if not stays and not live.intersection(operation.results):
            continue
        for region in operation.regions if operation.kind in CONTROL else ():
            _drop_unused(region)
        live.update(operation.operands)
        kept.append(operation)
    graph.operations = kept[::-1]


def hoist(graph: Graph) -> None:
    """Reorder a graph so that exchanges start early, the largest first.

    Operations that no exchange depends on move to the end. Kernels run during an exchange until an
    operation needs the received value. So the operations that prepare a small exchange run during a
    larger one.
    """
    for operation in graph.operations:
        for region in operation.regions if operation.kind in CONTROL else ():
            hoist(region)
    exchanges = [operation for operation in graph.operations if operation.kind == "exchange"]
    numbers = {value: number for number, operation in enumerate(graph.operations)
               for value in operation.results}
    order: dict[int, None] = {}
    for exchange in sorted(exchanges, key=lambda operation: -operation.result.type.size):
        order.update(dict.fromkeys(sorted(_needed(graph, numbers[exchange.result], numbers))))
    order.update(dict.fromkeys(range(len(graph.operations))))
    graph.operations = [graph.operations[number] for number in order]


def _needed(graph: Graph, last: int, numbers: dict[Value, int]) -> set[int]:
    """Return the numbers of operation ``last`` and of all operations that it depends on.

    ``numbers`` maps each value to the number of the operation that computes it.
    """
    found, pending = {last}, [last]
    while pending:
        new = {numbers[value] for value in graph.operations[pending.pop()].operands
               if value in numbers} - found
        found |= new
        pending.extend(new)
    return found


def connect(linear: Linear, received: dict[int, int]) -> Linear:
    """Return a core's code with the destination addresses of its exchanges filled in.

    Parameters
    ----------
    linear : Linear
        Code of the core that sends.
    received : dict of int to int
        Number of the exchange -> address of its destination in the other core's vector memory.
    """
    descriptors = tuple(
        words if words.exchange is None else words.with_destination(received[words.exchange])
        for words in linear.descriptors)
    return replace(linear, descriptors=descriptors)
