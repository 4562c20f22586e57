"""Splits a graph with a sharding into the programs of the devices: cores of one or more chips."""

from dataclasses import replace

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.graph.torus import Torus
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.places.meeting import Meeting
from sim.compiler.program.tilings import BARRIER, CONTROL

__all__ = ["connect", "for_device", "hoist", "require_cores"]


def require_cores(graph: Graph, config: Config) -> None:
    """Check that a chip has what a graph needs: two cores, if it has a sharding; links, on a pod.

    Raises
    ------
    ValueError
        If the chip has too few cores, or no links.
    """
    if graph.sharding is not None and config.cores < 2:
        raise ValueError(f"{graph.name} needs a chip with 2 cores, not {config.cores}")
    if graph.sharding is not None and graph.sharding.pod is not None and not config.link_bytes:
        raise ValueError(f"{graph.name} needs chips with links: link_bytes must not be 0")


def for_device(graph: Graph, device: int) -> Graph:
    """Return the graph that one of the devices executes.

    Each ``exchange`` keeps only the operand that this device sends. It gets the attributes
    ``number``, the same in the graphs of all devices; ``target``, the number of the device
    to which it sends; and ``meeting``, the handshake before it. A device that only takes part in a
    barrier before an exchange has an operation of kind `BARRIER` instead. Each ``by_device`` is
    replaced by this device's operand.

    Parameters
    ----------
    graph : Graph
        The graph after all passes. The result has copies of its operations and shares its values.
    device : int
        Number of the device, from 0.
    """
    assert graph.sharding is not None
    made = _Specialise(device, graph.sharding.torus).graph(graph)
    _drop_unused(made)
    return made


class _Specialise:
    def __init__(self, device: int, torus: Torus) -> None:
        self._device = device
        self._torus = torus
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
                made.operations += self._exchange(operation, operands[self._device], same)
                continue
            regions = tuple(self.graph(region) if operation.kind in CONTROL else region
                            for region in operation.regions)
            made.operations.append(Operation(operation.kind, operands, operation.results,
                                             attributes, regions, operation.location))
        made.outputs = [same.get(value, value) for value in graph.outputs]
        return made

    def _exchange(self, operation: Operation, operand: Value,
                  same: dict[Value, Value]) -> list[Operation]:
        """Return this device's part of an exchange: one operation, or none.

        ``operand`` is what the device sends. If it receives nothing, enter the result in ``same``.
        """
        self._exchanges += 1
        sources = operation.attributes.get("sources", (1, 0))
        meeting = Meeting.of(self._torus, self._device, sources)
        if sources[self._device] == self._device or not operand.type.size:
            same[operation.result] = operand
            return [] if meeting is None or not operand.type.size else [
                Operation(BARRIER, (), (), {"meeting": meeting}, (), operation.location)]
        attributes = {"number": self._exchanges - 1, "target": sources.index(self._device),
                      "meeting": meeting}
        return [Operation("exchange", (operand,), operation.results, attributes, (),
                          operation.location)]


def _drop_unused(graph: Graph) -> None:
    """Drop operations whose results this device does not use.

    Control flow, exchanges and barriers stay.
    """
    live, kept = set(graph.outputs), []
    for operation in reversed(graph.operations):
        stays = operation.kind in ("exchange", BARRIER) or operation.kind in CONTROL
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
        Number of the exchange -> address of its destination in the receiving core's vector memory.
    """
    descriptors = tuple(
        words if words.exchange is None else words.with_destination(received[words.exchange])
        for words in linear.descriptors)
    return replace(linear, descriptors=descriptors)
