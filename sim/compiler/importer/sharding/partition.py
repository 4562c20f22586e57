"""Transforms a global program with shardings into the program of one device.

A *global program* computes on whole arrays; the program of one device computes on its parts.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from sim.compiler.graph.arrays import Array
from sim.compiler.graph.ir import Graph, Operation, Sharding, TensorType, Value
from sim.compiler.importer.sharding.collectives import all_reduced, joined, part, swapped
from sim.compiler.importer.sharding.division import Cut, NotDivisibleError, divide
from sim.compiler.passes.expansion import Expansion
from sim.errors import Unsupported

__all__ = ["ADVICE", "ALL_REDUCE", "RESHARD", "partition"]

RESHARD, ALL_REDUCE = "sdy.reshard", "sdy.all_reduce"
"""Kinds of operations between devices in a global program. `RESHARD` changes the cut of a value to
the one in the attribute ``cut``. `ALL_REDUCE` combines the partial results of the devices."""
ADVICE = "write what each device does with jax.shard_map, or shard another dimension"


def partition(graph: Graph, cuts: Mapping[Value, Cut]) -> list[Unsupported]:
    """Transform a global program into the program of one device.

    The device has one half of each value that is split.

    Parameters
    ----------
    graph : Graph
        The global program, which may contain operations of the kinds `RESHARD` and `ALL_REDUCE`. It
        is changed in place, and gets a sharding if any value is split.
    cuts : mapping of Value to Cut
        The dimension along which each value is split. A value that is missing is not split, except
        that the result of a ``convert`` then has the cut of its operand.

    Returns
    -------
    list of Unsupported
        Operations that cannot be divided. If there are any, the graph must not be used.
    """
    device = _Device(cuts, [])
    inputs = [cuts.get(value) for value in graph.inputs]
    outputs = device.graph(graph, inputs)
    if device.found or any(cut is not None for cut in (*cuts.values(), *outputs)):
        graph.sharding = Sharding(tuple(inputs), tuple(outputs))
    return device.found


class _Device:
    """Rewrites a global program, or a region of it, as the program of one device."""

    def __init__(self, cuts: Mapping[Value, Cut], found: list[Unsupported]) -> None:
        self._wanted = cuts
        self.found = found
        self._local: dict[Value, Value] = {}
        self._cut: dict[Value, Cut] = {}
        self._constants: dict[Value, Array] = {}
        # Values of which each device has a partial result, and the functions that combine them.
        self._partial: dict[Value, Graph] = {}
        self._refused: set[Value] = set()

    def graph(self, graph: Graph, inputs: Sequence[Cut]) -> list[Cut]:
        """Rewrite a graph, given the cuts of its inputs; return the cuts of its outputs."""
        for value, cut in zip(graph.inputs, inputs, strict=True):
            self._define(value, Value(_half(value.type, cut), value.name), cut)
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

    def _define(self, value: Value, local: Value, cut: Cut) -> None:
        self._local[value], self._cut[value] = local, cut

    def _refuse(self, operation: Operation) -> None:
        """Record that an operation cannot be divided, unless it depends on another such one."""
        if not self._refused.intersection(operation.operands):
            self.found.append(Unsupported(f"{operation.kind} along a sharded dimension",
                                          str(operation.location or ""), ADVICE))
        self._refused.update(operation.results)
        for value in operation.results:
            cut = self._wanted.get(value)
            self._define(value, Value(_half(value.type, cut)), cut)

    def _operation(self, operation: Operation, at: Expansion) -> None:
        partial = [value for value in operation.operands if value in self._partial]
        if operation.kind == ALL_REDUCE and partial:
            [value] = partial
            made = all_reduced(at, self._partial[value], self._local[value])
            self._define(operation.result, made, None)
        elif partial or operation.kind == ALL_REDUCE:
            self._refuse(operation)
        elif operation.kind == RESHARD:
            [value], cut = operation.operands, operation.attributes["cut"]
            made = _moved(at, self._local[value], self._cut[value], cut)
            self._define(operation.result, made, cut)
        elif operation.kind in ("constant", "iota"):
            self._position(operation, at)
        elif operation.kind in ("while", "case"):
            self._control(operation, at)
        else:
            self._divide(operation, at)

    def _made(self, operation: Operation) -> list[Cut]:
        """Return the cuts that an operation's results must have."""
        default = self._cut[operation.operands[0]] if operation.kind == "convert" else None
        return [self._wanted.get(value, default) for value in operation.results]

    def _position(self, operation: Operation, at: Expansion) -> None:
        """Write a constant or iota: each device makes the whole value, then takes its half."""
        value, [cut] = operation.result, self._made(operation)
        if operation.kind == "constant":
            self._constants[value] = np.asarray(operation.attributes["value"])
        made = at.graph.add(operation.kind, (), value.type, operation.attributes, (),
                            operation.location).result
        self._define(value, _moved(at, made, None, cut), cut)

    def _divide(self, operation: Operation, at: Expansion) -> None:
        made = self._made(operation)
        try:
            division = divide(operation, [self._cut[value] for value in operation.operands], made,
                              self._constants.get)
        except NotDivisibleError:
            self._refuse(operation)
            return
        if operation.kind == "broadcast_in_dim" and operation.operands[0] in self._constants:
            # Rules compare only the constant's element, which the broadcast repeats.
            self._constants[operation.result] = self._constants[operation.operands[0]]
        if division.partial is not None:
            self._partial[operation.result] = division.partial
        self._write(operation, made, {**operation.attributes, **division.attributes}, at)

    def _write(self, operation: Operation, made: Sequence[Cut], attributes: Mapping[str, object],
               at: Expansion) -> None:
        types = [_half(value.type, cut)
                 for value, cut in zip(operation.results, made, strict=True)]
        local = at.graph.add(operation.kind, [self._local[value] for value in operation.operands],
                             types, attributes, operation.regions, operation.location)
        for value, result, cut in zip(operation.results, local.results, made, strict=True):
            self._define(value, result, cut)

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
        same = same and (loop or given[0] is None)
        for number, region in enumerate(operation.regions):
            inner = _Device(self._wanted, self.found)
            outputs = inner.graph(region, given if loop else given[1:])
            same = same and outputs == ([None] if loop and number == 0 else made)
        if same:
            self._write(operation, made, operation.attributes, at)
        else:
            self._refuse(operation)


def _half(type: TensorType, cut: Cut) -> TensorType:
    return type if cut is None else TensorType(
        tuple(size // 2 if dimension == cut else size
              for dimension, size in enumerate(type.shape)), type.dtype)


def _moved(at: Expansion, value: Value, cut: Cut, to: Cut) -> Value:
    """Return the device's part of a value with cut ``to``, given its part with cut ``cut``."""
    if cut == to:
        return value
    if cut is None:
        assert to is not None
        return part(at, value, to)
    return joined(at, value, cut) if to is None else swapped(at, value, to, cut)
