"""Transforms a global program with shardings into the program of one device.

A *global program* computes on whole arrays; the program of one device computes on its parts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Graph, Operation, TensorType, Value
from sim.compiler.graph.torus import Division, Torus
from sim.compiler.importer.sharding.collectives import Team, all_reduced, joined, part, swapped
from sim.compiler.importer.sharding.division import NotDivisibleError, divide
from sim.compiler.importer.sharding.propagation import Cuts
from sim.compiler.passes.expansion import Expansion
from sim.errors import Unsupported

__all__ = ["ADVICE", "ALL_REDUCE", "RESHARD", "Mesh", "partition"]

RESHARD, ALL_REDUCE = "sdy.reshard", "sdy.all_reduce"
"""Kinds of operations between devices in a global program. `RESHARD` changes the cuts of a value to
those in the attribute ``cuts``. `ALL_REDUCE` combines the partial results of the devices."""
ADVICE = "write what each device does with jax.shard_map, or shard another dimension"


@dataclass(frozen=True)
class Mesh:
    """The mesh of a global program.

    If several axes split a dimension, the first of them splits it first, and the next ones split
    its parts.

    Attributes
    ----------
    axes : tuple of int
        Sizes of the mesh axes. Devices with consecutive numbers are neighbours along the last axis.
    torus : Torus
        The chips whose cores are the devices.
    """

    axes: tuple[int, ...]
    torus: Torus

    @property
    def whole(self) -> Cuts:
        """The cuts of a value that is not split: None for each axis of the mesh."""
        return (None,) * len(self.axes)

    def team(self, axis: int) -> Team:
        """Return the team whose groups are the devices along an axis."""
        numbers = np.moveaxis(np.arange(self.torus.devices).reshape(self.axes), axis, -1)
        return Team(tuple(map(tuple, numbers.reshape(-1, self.axes[axis]).tolist())), self.torus)

    def fits(self, type: TensorType, cuts: Cuts) -> bool:
        """Return whether ``cuts`` split a value of type ``type`` into equal parts."""
        return all(size % self._parts(cuts, dimension) == 0
                   for dimension, size in enumerate(type.shape))

    def part(self, type: TensorType, cuts: Cuts) -> TensorType:
        """Return the type of the parts into which ``cuts`` split a value of type ``type``."""
        return TensorType(tuple(size // self._parts(cuts, dimension)
                                for dimension, size in enumerate(type.shape)), type.dtype)

    def division(self, rank: int, cuts: Cuts) -> Division | None:
        """Return how ``cuts`` divide a value of rank ``rank``; None if they do not split it."""
        if cuts == self.whole:
            return None
        counts = tuple(self._parts(cuts, dimension) for dimension in range(rank))
        parts = []
        for place in product(*map(range, self.axes)):
            index = [0] * rank
            for at, size, cut in zip(place, self.axes, cuts, strict=True):
                if cut is not None:
                    index[cut] = index[cut] * size + at
            parts.append(tuple(index))
        return Division(counts, tuple(parts))

    def moved(self, at: Expansion, value: Value, cuts: Cuts, to: Cuts) -> Value:
        """Return the device's part of a value that is cut as ``to`` says.

        ``value`` is the device's part of the same value, cut as ``cuts`` says.
        """
        axes = range(len(self.axes))
        changed = [axis for axis in axes if cuts[axis] != to[axis]]
        # An axis that splits a dimension within the parts of a changed one is joined, too.
        again = {axis for axis in axes if cuts[axis] is not None and any(
            before < axis and cuts[axis] in (cuts[before], to[before]) for before in changed)}
        if len(changed) == 1 and not again - set(changed):
            [axis] = changed
            source, target = cuts[axis], to[axis]
            if source is not None and target is not None:
                return swapped(at, value, target, source, self.team(axis))
        again.update(changed)
        for axis in sorted(again, reverse=True):
            if (source := cuts[axis]) is not None:
                value = joined(at, value, source, self.team(axis))
        for axis in sorted(again):
            if (target := to[axis]) is not None:
                value = part(at, value, target, self.team(axis))
        return value

    def _parts(self, cuts: Cuts, dimension: int) -> int:
        return math.prod(size for size, cut in zip(self.axes, cuts, strict=True)
                         if cut == dimension)


def partition(graph: Graph, cuts: Mapping[Value, Cuts], mesh: Mesh
              ) -> tuple[list[Unsupported], list[Cuts], list[Cuts]]:
    """Transform a global program into the program of one device.

    The device has one part of each value that is split.

    Parameters
    ----------
    graph : Graph
        The global program, which may contain operations of the kinds `RESHARD` and `ALL_REDUCE`. It
        is changed in place.
    cuts : mapping of Value to Cuts
        How each value is split. If the mapping lacks the result of a ``convert``, this result has
        the cuts of the operand. All other values that the mapping lacks are not split.
    mesh : Mesh
        The mesh.

    Returns
    -------
    list of Unsupported
        Operations that cannot be divided. If there are any, the graph must not be used.
    list of Cuts, and list of Cuts
        How the inputs and how the outputs are split.
    """
    device = _Device(cuts, mesh, [])
    inputs = [cuts.get(value, mesh.whole) for value in graph.inputs]
    return device.found, inputs, device.graph(graph, inputs)


class _Device:
    """Rewrites a global program, or a region of it, as the program of one device."""

    def __init__(self, cuts: Mapping[Value, Cuts], mesh: Mesh, found: list[Unsupported]) -> None:
        self._wanted, self._mesh = cuts, mesh
        self.found = found
        self._local: dict[Value, Value] = {}
        self._cut: dict[Value, Cuts] = {}
        self._constants: dict[Value, Array] = {}
        # Values of which each device has a partial result: the axes, and the functions that
        # combine the results along them.
        self._partial: dict[Value, dict[int, Graph]] = {}
        self._refused: set[Value] = set()

    def graph(self, graph: Graph, inputs: Sequence[Cuts]) -> list[Cuts]:
        """Rewrite a graph, given the cuts of its inputs; return the cuts of its outputs."""
        for value, cuts in zip(graph.inputs, inputs, strict=True):
            self._define(value, Value(self._mesh.part(value.type, cuts), value.name), cuts)
        graph.inputs = [self._local[value] for value in graph.inputs]
        operations, graph.operations = graph.operations, []
        for operation in operations:
            self._operation(operation, Expansion(graph, operation.location))
        for value in graph.outputs:
            if value in self._partial:
                self._refuse(Operation("return", (value,), ()))
        outputs = [self._cut[value] for value in graph.outputs]
        graph.outputs = [self._local[value] for value in graph.outputs]
        return outputs

    def _define(self, value: Value, local: Value, cuts: Cuts) -> None:
        self._local[value], self._cut[value] = local, cuts

    def _refuse(self, operation: Operation) -> None:
        """Record that an operation cannot be divided.

        An operation is not recorded if it depends on another one that cannot be divided.
        """
        if not self._refused.intersection(operation.operands):
            self.found.append(Unsupported(f"{operation.kind} along a sharded dimension",
                                          str(operation.location or ""), ADVICE))
        self._refused.update(operation.results)
        for value in operation.results:
            cuts = self._wanted.get(value, self._mesh.whole)
            self._define(value, Value(self._mesh.part(value.type, cuts)), cuts)

    def _operation(self, operation: Operation, at: Expansion) -> None:
        partial = [value for value in operation.operands if value in self._partial]
        if operation.kind == ALL_REDUCE and partial:
            [value] = partial
            made = self._local[value]
            for axis, region in self._partial[value].items():
                made = all_reduced(at, region, made, self._mesh.team(axis))
            self._define(operation.result, made, self._cut[value])
        elif partial or operation.kind == ALL_REDUCE or not all(
                self._mesh.fits(value.type, self._wanted.get(value, self._mesh.whole))
                for value in operation.results):
            self._refuse(operation)
        elif operation.kind == RESHARD:
            [value], cuts = operation.operands, operation.attributes["cuts"]
            made = self._mesh.moved(at, self._local[value], self._cut[value], cuts)
            self._define(operation.result, made, cuts)
        elif operation.kind in ("constant", "iota"):
            self._position(operation, at)
        elif operation.kind in ("while", "case"):
            self._control(operation, at)
        else:
            self._divide(operation, at)

    def _made(self, operation: Operation) -> list[Cuts]:
        """Return the cuts of an operation's results, from the parameter ``cuts`` of `partition`."""
        default = (self._cut[operation.operands[0]] if operation.kind == "convert"
                   else self._mesh.whole)
        return [self._wanted.get(value, default) for value in operation.results]

    def _position(self, operation: Operation, at: Expansion) -> None:
        """Write a constant or iota: each device makes the whole value, then takes its part."""
        value, [cuts] = operation.result, self._made(operation)
        if operation.kind == "constant":
            self._constants[value] = np.asarray(operation.attributes["value"])
        made = at.graph.add(operation.kind, (), value.type, operation.attributes, (),
                            operation.location).result
        self._define(value, self._mesh.moved(at, made, self._mesh.whole, cuts), cuts)

    def _divide(self, operation: Operation, at: Expansion) -> None:
        """Divide an operation along one mesh axis after the other."""
        given = [self._cut[value] for value in operation.operands]
        made, partial = self._made(operation), dict[int, Graph]()
        attributes = dict(operation.attributes)
        for axis, parts in enumerate(self._mesh.axes):
            values = self._part_of(operation, attributes, given, made, axis)
            known = dict(zip(values.operands, operation.operands, strict=True))
            try:
                division = divide(
                    values, [cuts[axis] for cuts in given], [cuts[axis] for cuts in made], parts,
                    lambda value, known=known: self._constants.get(known[value]))  # type: ignore[misc]
            except NotDivisibleError:
                self._refuse(operation)
                return
            attributes |= division.attributes
            if division.partial is not None:
                partial[axis] = division.partial
        if operation.kind == "broadcast_in_dim" and operation.operands[0] in self._constants:
            # Rules compare only the constant's element, which the broadcast repeats.
            self._constants[operation.result] = self._constants[operation.operands[0]]
        if partial:
            self._partial[operation.result] = partial
        self._write(operation, made, attributes, at)

    def _part_of(self, operation: Operation, attributes: dict[str, object], given: Sequence[Cuts],
                 made: Sequence[Cuts], axis: int) -> Operation:
        """Return the operation, divided along the mesh axes whose numbers are below ``axis``.

        Its operands and results have the types of the parts; ``given`` and ``made`` are the cuts of
        the whole operands and results. ``attributes`` are the attributes of the divided operation.
        """
        operands, results = (
            [Value(self._mesh.part(value.type, (*cuts[:axis], *self._mesh.whole[axis:])))
             for value, cuts in zip(values, all_cuts, strict=True)]
            for values, all_cuts in ((operation.operands, given), (operation.results, made)))
        return Operation(operation.kind, tuple(operands), tuple(results), attributes,
                         operation.regions, operation.location)

    def _write(self, operation: Operation, made: Sequence[Cuts], attributes: Mapping[str, object],
               at: Expansion) -> None:
        types = [self._mesh.part(value.type, cuts)
                 for value, cuts in zip(operation.results, made, strict=True)]
        local = at.graph.add(operation.kind, [self._local[value] for value in operation.operands],
                             types, attributes, operation.regions, operation.location)
        for value, result, cuts in zip(operation.results, local.results, made, strict=True):
            self._define(value, result, cuts)

    def _control(self, operation: Operation, at: Expansion) -> None:
        """Rewrite a loop or conditional; refuse it if cuts are not consistent.

        Cuts are consistent if a loop carries each value with one cut, and if all branches of a
        conditional return the same cuts.
        """
        loop = operation.kind == "while"
        given = [self._cut[value] for value in operation.operands]
        made = given if loop else self._made(operation)
        same = not loop or all(self._wanted.get(value, cut) == cut
                               for value, cut in zip(operation.results, given, strict=True))
        same = same and (loop or given[0] == self._mesh.whole)
        for number, region in enumerate(operation.regions):
            inner = _Device(self._wanted, self._mesh, self.found)
            outputs = inner.graph(region, given if loop else given[1:])
            same = same and outputs == ([self._mesh.whole] if loop and number == 0 else made)
        if same:
            self._write(operation, made, operation.attributes, at)
        else:
            self._refuse(operation)
