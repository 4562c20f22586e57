"""Shards of values: which parts of global values each of two devices has."""

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
    """Numbers of partitions and of replicas of a module."""
    attributes = module.operation.attributes
    partitions, replicas = (python(attributes[name]) if name in attributes else 1
                            for name in ("mhlo.num_partitions", "mhlo.num_replicas"))
    return partitions, replicas


def manual_axes(operation: Any) -> list[str]:
    """Axes of the mesh along which a ``manual_computation`` is the program of a device."""
    from jaxlib.mlir.dialects import sdy

    return list(map(str, sdy.ManualAxesAttr(operation.attributes["manual_axes"])))


@dataclass
class Shards:
    """Cuts global values for devices, and puts them together.

    What is outside of ``manual_computation`` is computed on both devices. An input of the program
    that only such computations use is cut by the host, and a result of one that the program returns
    is put together by the host; others are cut, or exchanged, by the devices.

    Attributes
    ----------
    module : jaxlib.mlir.ir.Module
        Has the meshes.
    """

    module: Any
    used: bool = False
    """There is a computation for two devices."""
    stacked: bool = False
    """The whole program is that of one of two devices."""
    # By value, dimension and order of the devices.
    _parts: dict[tuple[Value, int, Group], Value] = field(default_factory=dict)
    _joined: dict[Value, tuple[Value, int, Group]] = field(default_factory=dict)

    def axes(self, operation: Any) -> dict[str, int]:
        """Sizes of the axes of a ``manual_computation``'s mesh.

        Raises
        ------
        ValueError
            With what is wrong with it, if it has not one or two devices, in order.
        """
        from jaxlib.mlir.dialects import sdy

        sizes: dict[str, int] = {}
        for name in ("in_shardings", "out_shardings"):
            for item in sdy.TensorShardingPerValueAttr(operation.attributes[name]).shardings:
                sizes |= axis_sizes(self.module, sdy.TensorShardingAttr(item).mesh_or_ref)
        return sizes

    def dimensions(self, attribute: Any, manual: set[str]) -> list[int | None]:
        """For each value of a list of shardings, the dimension that is cut in two."""
        from jaxlib.mlir.dialects import sdy

        return [cut_of(self.module, item, manual)
                for item in sdy.TensorShardingPerValueAttr(attribute).shardings]

    def local(self, value: Value, dimension: int | None, at: Expansion,
              group: Group = (0, 1)) -> Value:
        """A device's part of a global value."""
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
        """The global value of which devices have parts."""
        if dimension is None:
            return value
        made = joined(at, value, dimension, group)
        self._joined[made] = (value, dimension, group)
        return made

    def finish(self, graph: Graph) -> None:
        """Let the host cut inputs and put together outputs, and note how."""
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
        """Replace an input by a device's part of it, if nothing else of it is used."""
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
    """Drop exchanges for results that the host puts together."""
    live, kept = set(graph.outputs), []
    for operation in reversed(graph.operations):
        if operation.results and not live.intersection(operation.results):
            continue
        live.update(operation.operands)
        kept.append(operation)
    graph.operations = kept[::-1]
