"""Splits a graph with a sharding into the programs of the devices: cores of one or more chips."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.graph.torus import Torus
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.code.transfers import Peer, TransferWords
from sim.compiler.program.places.meeting import DeviceSum, Meeting
from sim.compiler.program.tilings import BARRIER, CONTROL

__all__ = ["connect", "exchanges", "for_device", "program_key", "require_cores"]


def require_cores(graph: Graph, config: Config) -> None:
    """Check that a chip has what a graph needs: two cores for a sharding, and links for a pod.

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
    to which it sends; ``meeting``, the handshake before it; and ``halves``, if the original has it
    (`sim.compiler.program.control.halves`). A device that only takes part in a
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
        self._sums = 0

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
            if operation.kind == "pod_sum":
                core, *_ = self._torus.place(self._device)
                attributes["device"] = DeviceSum(self._torus, core, self._sums)
                self._sums += 1
            regions = tuple(self.graph(region) if operation.kind in CONTROL else region
                            for region in operation.regions)
            made.operations.append(Operation(operation.kind, operands, operation.results,
                                             attributes, regions, operation.location))
        made.outputs = [same.get(value, value) for value in graph.outputs]
        return made

    def _exchange(self, operation: Operation, operand: Value,
                  same: dict[Value, Value]) -> list[Operation]:
        """Return this device's part of an exchange: one operation, or none.

        ``operand`` is the device's operand. If the device receives nothing, the operand replaces
        the result, and ``same``, which maps each replaced value to its replacement, records this.
        Then the device's part is only a barrier before the exchange, or nothing if no barrier is
        needed.
        """
        self._exchanges += 1
        sources = operation.attributes.get("sources", (1, 0))
        meeting = Meeting.of(self._torus, self._device, sources, operation.attributes.get("way", 1))
        if sources[self._device] == self._device or not operand.type.size:
            same[operation.result] = operand
            return [] if meeting is None or not operand.type.size else [
                Operation(BARRIER, (), (), {"meeting": meeting}, (), operation.location)]
        attributes = {"number": self._exchanges - 1, "target": sources.index(self._device),
                      "meeting": meeting}
        if "halves" in operation.attributes:
            attributes["halves"] = operation.attributes["halves"]
        return [Operation("exchange", (operand,), operation.results, attributes, (),
                          operation.location)]


def _drop_unused(graph: Graph) -> None:
    """Drop operations whose results this device does not use.

    Control flow, exchanges, sums of pods and barriers stay.
    """
    live, kept = set(graph.outputs), []
    for operation in reversed(graph.operations):
        stays = operation.kind in ("exchange", "pod_sum", BARRIER) or operation.kind in CONTROL
        if not stays and not live.intersection(operation.results):
            continue
        for region in operation.regions if operation.kind in CONTROL else ():
            _drop_unused(region)
        live.update(operation.operands)
        kept.append(operation)
    graph.operations = kept[::-1]


def exchanges(graph: Graph) -> dict[int, tuple[int, Peer]]:
    """Return the device to which each exchange sends, by the number of the exchange.

    ``graph`` is one device's graph, from `for_device`. The receiver is given as its number and as a
    `Peer`.
    """
    return {operation.attributes["number"]: (operation.attributes["target"],
                                             operation.attributes["meeting"].target)
            for operation in graph.walk() if operation.kind == "exchange"}


def program_key(graph: Graph) -> Hashable:
    """Return a key that devices with the same core number share if they can have the same program.

    Equal keys mean the same operations on the same values, with the same handshakes. Only two
    things may differ: the values of a ``device_constant``, and the core to which an exchange sends.
    Whether that core is on another chip must not differ.
    ``graph`` is a result of `for_device`. Graphs that share no values have different keys.
    """
    return tuple(graph.inputs), tuple(
        (operation.kind, operation.operands, operation.results, _meeting_key(operation),
         tuple(map(program_key, operation.regions)) if operation.kind in CONTROL else ())
        for operation in graph.operations), tuple(graph.outputs)


def _meeting_key(operation: Operation) -> Hashable:
    """Return a key of an exchange's code: its handshake, and whether it sends to another chip."""
    meeting = operation.attributes.get("meeting")
    if meeting is None:
        return None
    return meeting.ring, meeting.way, meeting.is_whole, (
        None if meeting.target is None else meeting.target.is_remote)


def connect(linear: Linear,
            sent: Mapping[int, tuple[Callable[[Peer], TransferWords] | None, Peer, int]]) -> Linear:
    """Return a core's code with the destinations of its exchanges filled in.

    Parameters
    ----------
    linear : Linear
        Code of the core that sends.
    sent : dict
        For each exchange, by its number: the function in `Launcher.sent`, or None; the core that
        receives; and the address of the destination in that core's vector memory.
    """
    def connected(words: TransferWords) -> TransferWords:
        if words.exchange is None:
            return words
        made, peer, address = sent[words.exchange]
        if made is not None:
            words = made(peer)
        return words.with_destination(address)

    return replace(linear, descriptors=tuple(map(connected, linear.descriptors)))
