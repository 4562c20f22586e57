"""Shards: the parts of global values that each of two devices has."""

from dataclasses import dataclass, field
from typing import Any

from sim.compiler.graph.ir import STACKED, Graph, Sharding, Value
from sim.compiler.importer.attributes import python
from sim.compiler.importer.sharding.collectives import Group, joined, part
from sim.compiler.importer.sharding.mesh import axis_sizes, cut_of
from sim.compiler.passes.expansion import Expansion

__all__ = ["ADVICE", "Shards", "manual_axes", "module_devices"]

ADVICE = "use a mesh of one or two devices: a device is a core, and a chip has two"


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
    """Splits global values into the parts of two devices, and joins the parts.

    Operations outside of a ``manual_computation`` are computed on both devices. The host splits an
    input that only manual computations use, and joins a result of a manual computation that the
    program returns. All other values are split by the devices, which exchange parts to join them.
    Methods append the operations for this to the graph of their parameter ``at``.

    Attributes
    ----------
    module : jaxlib.mlir.ir.Module
        The module that contains the meshes.
    """

    module: Any
    used: bool = False
    """Whether the program contains a ``manual_computation`` for two devices."""
    stacked: bool = False
    """Whether all of the program, not only a ``manual_computation``, is the program of one device.
    Host arrays are then `STACKED`."""
    # The part of each value, by value, dimension and order of the devices.
    _parts: dict[tuple[Value, int, Group], Value] = field(default_factory=dict)
    _joined: dict[Value, tuple[Value, int, Group]] = field(default_factory=dict)

    def axes(self, operation: Any) -> dict[str, int]:
        """Return the sizes of the axes of a ``manual_computation``'s mesh, by name.

        Raises
        ------
        ValueError
            If the mesh has more than two devices, or does not have them in ascending order.
        """
        from jaxlib.mlir.dialects import sdy

        sizes: dict[str, int] = {}
        for name in ("in_shardings", "out_shardings"):
            for item in sdy.TensorShardingPerValueAttr(operation.attributes[name]).shardings:
                sizes |= axis_sizes(self.module, sdy.TensorShardingAttr(item).mesh_or_ref)
        return sizes

    def dimensions(self, attribute: Any, manual: set[str]) -> list[int | None]:
        """Return, for each sharding in the list ``attribute``, the dimension that it splits.

        An item is None if that sharding splits no dimension in halves. Only the mesh axes in
        ``manual`` are considered.
        """
        from jaxlib.mlir.dialects import sdy

        return [cut_of(self.module, item, manual)
                for item in sdy.TensorShardingPerValueAttr(attribute).shardings]

    def local(self, value: Value, dimension: int | None, at: Expansion,
              group: Group = (0, 1)) -> Value:
        """Return the executing device's part of a global value.

        ``dimension`` is the one along which the value is split; None means that each device gets
        the whole value. The first half belongs to the first device of ``group``.
        """
        if dimension is None:
            return value
        if value in self._joined and self._joined[value][1:] == (dimension, group):
            return self._joined[value][0]
        key = value, dimension, group
        if key not in self._parts:
            self._parts[key] = part(at, value, dimension, group)
        return self._parts[key]

    def whole(self, value: Value, dimension: int | None, at: Expansion,
              group: Group = (0, 1)) -> Value:
        """Join the parts that the devices of a group have into the global value, and return it.

        ``value`` is the executing device's part, and ``dimension`` the one along which the global
        value is split; None means that ``value`` already is the global value.
        """
        if dimension is None:
            return value
        made = joined(at, value, dimension, group)
        self._joined[made] = (value, dimension, group)
        return made

    def finish(self, graph: Graph) -> None:
        """Set the graph's sharding; let the host split inputs and join outputs where possible."""
        if self.stacked:
            _drop_unused(graph)
            graph.sharding = Sharding((STACKED,) * len(graph.inputs),
                                      (STACKED,) * len(graph.outputs))
        elif self.used:
            outputs = [self._joined.get(value, (value, None))[:2] for value in graph.outputs]
            graph.outputs = [value for value, _ in outputs]
            _drop_unused(graph)
            cuts = tuple(self._cut_input(graph, number) for number in range(len(graph.inputs)))
            graph.sharding = Sharding(cuts, tuple(dimension for _, dimension in outputs))

    def _cut_input(self, graph: Graph, number: int) -> int | None:
        """Replace an input by the device's part of it, if the graph uses only that part.

        ``number`` is the input's position. Return the dimension along which the host must split the
        input; None if it is not replaced.
        """
        value, users = graph.inputs[number], graph.users()
        cuts = [(dimension, made) for (cut, dimension, _), made in self._parts.items()
                if cut is value]
        if len(cuts) != 1 or value in graph.outputs:
            return None
        [(dimension, made)] = cuts
        cut = graph.producers().get(made)
        if cut is None or not all(operation.kind == "slice" and users.get(operation.result) == [cut]
                                  for operation in users.get(value, [])):
            return None
        gone = {cut, *users[value]}
        graph.operations = [operation for operation in graph.operations if operation not in gone]
        made.name = value.name
        graph.inputs[number] = made
        return dimension


def _drop_unused(graph: Graph) -> None:
    """Drop operations without used results, such as exchanges for outputs that the host joins."""
    live, kept = set(graph.outputs), []
    for operation in reversed(graph.operations):
        if operation.results and not live.intersection(operation.results):
            continue
        live.update(operation.operands)
        kept.append(operation)
    graph.operations = kept[::-1]
