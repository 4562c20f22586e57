"""The programs of two devices: what each core executes of a graph with a sharding."""

from dataclasses import replace

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.tilings import CONTROL

__all__ = ["connect", "for_device", "hoist", "require_cores"]


def require_cores(graph: Graph, config: Config) -> None:
    """Check that a chip has the cores that a graph needs.

    Raises
    ------
    ValueError
        If it has not.
    """
    if graph.sharding is not None and config.cores < 2:
        raise ValueError(f"{graph.name} needs a chip with 2 cores, not {config.cores}")


def for_device(graph: Graph, device: int) -> Graph:
    """The graph of one device: an exchange has the operand that it sends, and a ``number``.

    Exchanges have the same numbers in the graphs of both devices.

    Parameters
    ----------
    graph : Graph
        After all passes; its operations are copied, its values are shared.
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
    """Drop what only the other device needs; control flow and exchanges stay as they are."""
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
    """Start exchanges as soon as there is what they send, so that kernels run meanwhile."""
    place: dict[Value, int] = {}
    order: list[tuple[int, int, Operation]] = []
    for number, operation in enumerate(graph.operations):
        for region in operation.regions if operation.kind in CONTROL else ():
            hoist(region)
        at = number
        if operation.kind == "exchange":
            at = max(place.get(value, number) for value in operation.operands)
        place.update(dict.fromkeys(operation.results, at))
        order.append((at, number, operation))
    graph.operations = [operation for _, _, operation in sorted(order, key=lambda entry: entry[:2])]


def connect(linear: Linear, received: dict[int, int]) -> Linear:
    """The code with the addresses to which its exchanges go.

    Parameters
    ----------
    linear : Linear
        Code of a core.
    received : dict of int to int
        Addresses in the other core's vector memory, by number of the exchange.
    """
    descriptors = tuple(
        words if words.exchange is None else words.with_destination(received[words.exchange])
        for words in linear.descriptors)
    return replace(linear, descriptors=descriptors)
