"""Shards: the parts of global values that each of the devices has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.compiler.graph.ir import STACKED, Graph, Operation, Sharding, Value
from sim.compiler.graph.torus import CORES, Division, PodSharding, Torus
from sim.compiler.importer.attributes import python
from sim.compiler.importer.sharding.collectives import assembled, divided
from sim.compiler.importer.sharding.mesh import axis_sizes, division_of
from sim.compiler.passes.expansion import Expansion

__all__ = ["Shards", "advice", "manual_axes", "module_devices"]


def advice(torus: Torus) -> str:
    """Return the advice for an error about a mesh that does not fit the devices of ``torus``."""
    if torus.chips == 1:
        return "use a mesh of one or two devices: a device is a core, and a chip has two"
    return (f"use a mesh of all {torus.devices} devices of the pod: a device is a core, and a chip "
            "has two")


def module_devices(module: Any) -> tuple[int, int]:
    """Return a module's number of partitions and number of replicas."""
    attributes = module.operation.attributes
    partitions, replicas = (python(attributes[name]) if name in attributes else 1
                            for name in ("mhlo.num_partitions", "mhlo.num_replicas"))
    return partitions, replicas


def manual_axes(operation: Any) -> list[str]:
    """Return the mesh axes along which a ``manual_computation`` is the program of one device."""
    from jaxlib.mlir.dialects import sdy

    return list(map(str, sdy.ManualAxesAttr(operation.attributes["manual_axes"])))


@dataclass
class Shards:
    """Splits global values into the parts of the devices, and joins the parts.

    Inside a ``manual_computation``, each device computes on its parts; all other operations are
    computed on whole values by every device. At the border, a device takes its part of a whole
    value; to join the parts, the devices exchange them. The host, however, splits inputs that only
    manual computations use, and joins outputs that a manual computation returns. Methods append
    operations to the graph of their parameter ``at``.

    Attributes
    ----------
    module : jaxlib.mlir.ir.Module
        The module that contains the meshes.
    torus : Torus
        The chips whose cores are the devices.
    """

    module: Any
    torus: Torus
    used: bool = False
    """Whether the program contains a ``manual_computation`` for all devices."""
    stacked: bool = False
    """Whether all of the program, not only a ``manual_computation``, is the program of one device.
    Host arrays are then `STACKED`."""
    # By value and division: the part of the value, and the operations that make it.
    _parts: dict[tuple[Value, Division], tuple[Value, list[Operation]]] = field(
        default_factory=dict)
    _joined: dict[Value, tuple[Value, Division]] = field(default_factory=dict)

    def axes(self, operation: Any) -> dict[str, int]:
        """Return the sizes of the axes of a ``manual_computation``'s mesh, by name.

        Raises
        ------
        ValueError
            If the mesh contains several but not all devices, or does not have them in ascending
            order.
        """
        from jaxlib.mlir.dialects import sdy

        sizes: dict[str, int] = {}
        for name in ("in_shardings", "out_shardings"):
            for item in sdy.TensorShardingPerValueAttr(operation.attributes[name]).shardings:
                sizes |= axis_sizes(self.module, sdy.TensorShardingAttr(item).mesh_or_ref,
                                    self.torus.devices)
        return sizes

    def divisions(self, attribute: Any, manual: set[str]) -> list[Division | None]:
        """Return, for each sharding in the list ``attribute``, how it divides its value.

        An item is None if that sharding does not divide the value. Only the mesh axes in ``manual``
        are considered.
        """
        from jaxlib.mlir.dialects import sdy

        return [division_of(self.module, item, manual, self.torus.devices)
                for item in sdy.TensorShardingPerValueAttr(attribute).shardings]

    def local(self, value: Value, division: Division | None, at: Expansion) -> Value:
        """Return the executing device's part of a global value.

        ``division`` says how the value is divided; None means that each device gets the whole
        value.
        """
        if division is None:
            return value
        if value in self._joined and self._joined[value][1] == division:
            return self._joined[value][0]
        key = value, division
        if key not in self._parts:
            first = len(at.graph.operations)
            self._parts[key] = divided(at, value, division), at.graph.operations[first:]
        return self._parts[key][0]

    def whole(self, value: Value, division: Division | None, at: Expansion) -> Value:
        """Join the parts that the devices have into the global value, and return it.

        ``value`` is the executing device's part, and ``division`` says how the global value is
        divided; None means that ``value`` already is the global value.
        """
        if division is None:
            return value
        made = assembled(at, value, division, self.torus)
        self._joined[made] = (value, division)
        return made

    def finish(self, graph: Graph) -> None:
        """Set the graph's sharding; let the host split inputs and join outputs where possible."""
        if self.stacked:
            _drop_unused(graph)
            self.stack(graph)
        elif self.used:
            outputs = [self._joined.get(value, (value, None)) for value in graph.outputs]
            graph.outputs = [value for value, _ in outputs]
            _drop_unused(graph)
            graph.sharding = self.sharding(
                [self._cut_input(graph, number) for number in range(len(graph.inputs))],
                [division for _, division in outputs])

    def stack(self, graph: Graph) -> None:
        """Set the graph's sharding: host arrays get a first dimension that numbers the devices."""
        graph.sharding = self.sharding([self._stacked(value) for value in graph.inputs],
                                       [self._stacked(value) for value in graph.outputs])

    def _stacked(self, value: Value) -> Division:
        devices, rank = self.torus.devices, len(value.shape)
        return Division((devices, *[1] * rank),
                        tuple((device, *[0] * rank) for device in range(devices)), stacked=True)

    def sharding(self, inputs: Sequence[Division | None],
                 outputs: Sequence[Division | None]) -> Sharding:
        """Return the sharding of a program, given how each input and each output is divided."""
        given, made = tuple(map(self._cut, inputs)), tuple(map(self._cut, outputs))
        if self.torus.chips == 1:
            return Sharding(given, made)
        return Sharding(given, made, PodSharding(self.torus, tuple(inputs), tuple(outputs)))

    def _cut(self, division: Division | None) -> int | None:
        """Return how a division splits a chip's part of a value between the chip's cores.

        The result is the dimension or `STACKED`, as in `Sharding`; None if both cores have the
        whole part.
        """
        if division is None:
            return None
        if self.torus.chips == 1:
            return STACKED if division.stacked else division.counts.index(CORES)
        parts = division.parts
        same = all(parts[device] == parts[device + 1] for device in range(0, len(parts), CORES))
        return None if same else STACKED

    def _cut_input(self, graph: Graph, number: int) -> Division | None:
        """Replace input ``number`` of a graph by the device's part of it.

        Return how the host must divide the input. Return None, and replace nothing, if the graph
        uses more of the input than this part.
        """
        value, users = graph.inputs[number], graph.users()
        cuts = [(division, *made) for (cut, division), made in self._parts.items() if cut is value]
        if len(cuts) != 1 or value in graph.outputs:
            return None
        [(division, made, gone)] = cuts
        if made not in graph.producers() or not all(
                operation in gone for operation in users.get(value, [])):
            return None
        graph.operations = [operation for operation in graph.operations if operation not in gone]
        made.name = value.name
        graph.inputs[number] = made
        return division


def _drop_unused(graph: Graph) -> None:
    """Drop operations without used results, such as exchanges for outputs that the host joins."""
    live, kept = set(graph.outputs), []
    for operation in reversed(graph.operations):
        if operation.results and not live.intersection(operation.results):
            continue
        live.update(operation.operands)
        kept.append(operation)
    graph.operations = kept[::-1]
