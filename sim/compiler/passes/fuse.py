"""Groups elementwise operations into fusions, each of which becomes one loop nest.

In this module, a *group* is the set of operations that become one fusion. A group joins producers
and consumers of one shape. No path of dependences may leave a group and return to it.

Values that cost nothing inside a loop nest are copied into each group that uses them. These are
constants of equal elements, iotas, and broadcasts of operands that can be read repeatedly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdl.config import Config
from sim.compiler.graph.ir import DType, Graph, Operation, TensorType, Value
from sim.compiler.kernels.elements import table
from sim.compiler.kernels.elements.expression import Elements, Node
from sim.compiler.kernels.elements.iterated import stages
from sim.compiler.kernels.elements.writing import needed, pressure
from sim.compiler.kernels.elementwise import Region, broadcast_tiling, expand_readable
from sim.compiler.tiling import standard

__all__ = ["fuse"]

_TYPES = (DType.F32, DType.BF16, DType.S32, DType.U32, DType.PRED, DType.S8, DType.U8, DType.S16,
          DType.U16)
_MOST_NODES = 256
_MOST_VECTORS, _MOST_MASKS = 20, 5
"""Maximum numbers of vector registers (of 32) and of mask registers (of 7) that are live at once in
a fusion.
"""
_MOST_VALUES = 12
"""Maximum number of operands and results of a fusion together; each of them needs an address."""


def fuse(graph: Graph, config: Config) -> None:
    """Fuse the elementwise operations of a graph, and of the regions of its loops and conditionals.

    Parameters
    ----------
    graph : Graph
        The graph; it is changed in place.
    config : Config
        The chip, whose instruction memory bounds the size of a fusion.
    """
    for operation in graph.operations:
        if operation.kind in ("while", "case"):
            for region in operation.regions:
                fuse(region, config)
    _Fusion(graph, config).apply()


# Values that cost nothing inside a loop nest.


@dataclass(frozen=True)
class _View:
    """A value that costs nothing in a loop nest: a splat constant, an iota, or a broadcast.

    Attributes
    ----------
    source : Value or None
        The value that is broadcast; None for a constant or an iota.
    dimensions : tuple of int
        For a broadcast, the result's dimension for each dimension of the source. For an iota, the
        dimension along which it counts.
    element : array or None
        The element that a constant repeats; None for an iota or a broadcast.
    """

    source: Value | None
    dimensions: tuple[int, ...]
    element: Any = None

    def write(self, region: Graph, type: TensorType, operand: Value | None) -> Value:
        """Append the view to a region as an operation; return its result.

        ``type`` is the type of the view; ``operand`` is the region's value for ``source``.
        """
        if self.element is not None:
            return region.add("constant", (), type,
                              {"value": np.broadcast_to(self.element, type.shape)}).result
        if self.source is None:
            return region.add("iota", (), type, {"iota_dimension": self.dimensions[0]}).result
        assert operand is not None
        return region.add("broadcast_in_dim", (operand,), type,
                          {"broadcast_dimensions": self.dimensions}).result


def _views(graph: Graph, config: Config) -> dict[Value, _View]:
    """Return the values of a graph that cost nothing inside a loop nest, with their views."""
    found: dict[Value, _View] = {}
    for operation in graph.operations:
        view = _view(operation, found)
        if view is None:
            continue
        shape = operation.result.shape
        if view.source is not None and (0 in shape or broadcast_tiling(
                view.source.shape, view.dimensions, standard(shape, config)) is None):
            continue
        found[operation.result] = view
    return found


def _view(operation: Operation, views: dict[Value, _View]) -> _View | None:
    if not all(value.dtype in _TYPES for value in (*operation.operands, *operation.results)):
        return None
    if operation.kind == "constant":
        value = np.ascontiguousarray(operation.attributes["value"]).reshape(-1)
        octets = value.view(np.uint8).reshape(max(value.size, 1), -1)
        return _View(None, (), value[0]) if value.size and (octets == octets[0]).all() else None
    if operation.kind == "iota":
        return _View(None, (operation.attributes["iota_dimension"],))
    if operation.kind != "broadcast_in_dim":
        return None
    [source] = operation.operands
    dimensions = tuple(operation.attributes["broadcast_dimensions"])
    inner = views.get(source)
    if inner is None:
        return _View(source, dimensions)
    if inner.element is None and inner.source is None and source.shape[inner.dimensions[0]] != (
            operation.result.shape[dimensions[inner.dimensions[0]]]):
        return _View(source, dimensions)  # an iota of one element, repeated
    return _View(inner.source, tuple(dimensions[number] for number in inner.dimensions),
                 inner.element)


# Groups.


class _Draft:
    """A fusion to which operations can be appended.

    Most groups grow by one operation at a time. A draft then expands only the new operation into
    expressions. If it expanded all its operations each time, the time would grow with the square of
    their number.

    Parameters
    ----------
    views : mapping of Value to _View
        The values that cost nothing inside a loop nest.

    Attributes
    ----------
    operations : list of Operation
        The operations that were appended.
    """

    def __init__(self, views: Mapping[Value, _View]) -> None:
        self.operations: list[Operation] = []
        self._views = views
        self._region = Graph(name="fusion")
        self._inside: dict[Value, Value] = {}
        self._operands: dict[Value, Value] = {}
        self._expanded: Region | None = None

    def append(self, operation: Operation) -> None:
        """Append an operation whose result no operation of the draft reads."""
        sources = [self._read(value) for value in operation.operands]
        copy = self._region.add(operation.kind, sources, operation.result.type,
                                operation.attributes, operation.regions, operation.location)
        self._inside[operation.result] = copy.result
        self.operations.append(operation)

    def fusion(self, results: Sequence[Value]) -> Operation:
        """Return the fusion of the appended operations, with the values ``results`` as results."""
        self._region.inputs = list(self._operands.values())
        self._region.outputs = [self._inside[value] for value in results]
        return Operation("fusion", tuple(self._operands), tuple(results), {}, (self._region,),
                         self.operations[-1].location)

    def expanded(self) -> Region:
        """Return the expressions of the most recent `fusion`."""
        if self._expanded is None:
            self._expanded = Region(self._region)
        else:
            self._expanded.update()
        return self._expanded

    def _outer(self, value: Value) -> Value:
        if value not in self._operands:
            self._operands[value] = Value(value.type, value.name)
        return self._operands[value]

    def _read(self, value: Value) -> Value:
        inside, view = self._inside, self._views.get(value)
        if value in inside or view is None:
            return inside[value] if value in inside else self._outer(value)
        if view.source in inside:
            return inside[view.source]  # the broadcast does not change the shape
        source = None if view.source is None else self._outer(view.source)
        inside[value] = view.write(self._region, value.type, source)
        return inside[value]


@dataclass(eq=False)
class _Group:
    """Operations that become one fusion.

    ``ancestors`` is the set of groups whose results this one needs, directly or indirectly: an
    integer with a bit for each group (`bit`). ``draft`` is a fusion of the operations; None if it
    has not been made yet.
    """

    number: int
    operations: list[Operation]
    ancestors: int = 0
    nodes: int = 0  # number of nodes; 0: the group cannot be part of a fusion
    draft: _Draft | None = None

    @property
    def bit(self) -> int:
        """The group's bit in masks that represent sets of groups."""
        return 1 << self.number


class _Fusion:
    """Groups a graph's operations, and replaces each group by a fusion."""

    def __init__(self, graph: Graph, config: Config) -> None:
        self._graph = graph
        self._config = config
        self._views = _views(graph, config)
        self._users = graph.users()
        self._returned = set(graph.outputs)
        self._positions = {operation: at for at, operation in enumerate(graph.operations)}
        self._limit = min(_MOST_NODES, config.imem_bundles * 3 // 8)
        self._groups: dict[int, _Group] = {}
        self._group_of: dict[Value, _Group] = {}
        self._sizes: dict[tuple[int, ...], int] = {}

    def apply(self) -> None:
        """Replace the graph's operations by their fusions."""
        for number, operation in enumerate(self._graph.operations):
            group = self._groups[number] = _Group(number, [operation])
            for producer in self._producers(operation):
                group.ancestors |= producer.ancestors | producer.bit
            self._group_of.update(dict.fromkeys(operation.results, group))
            if self._fusible(operation):
                group.draft = self._draft([operation])
                group.nodes = self._count(group.draft)
                for value in operation.operands:
                    if value not in self._views and value in self._group_of:
                        group = self._merged(self._group_of[value], group)
        operations = [self._replacement(group) for group in self._groups.values()]
        self._graph.operations[:] = self._used(list(_sorted(operations)))

    def _producers(self, operation: Operation) -> Iterator[_Group]:
        """Yield the groups whose results an operation reads."""
        for value in operation.operands:
            view = self._views.get(value)
            for read in (value, None if view is None else view.source):
                if read in self._group_of:
                    yield self._group_of[read]

    def _fusible(self, operation: Operation) -> bool:
        if operation.kind not in table.KINDS or stages(operation) is not None or not (
                operation.result in self._users or operation.result in self._returned):
            return False
        return not any(
            value.dtype not in _TYPES or 0 in value.shape
            for value in (*operation.operands, *operation.results)) and all(
            value.shape in ((), operation.result.shape) for value in operation.operands)

    def _merged(self, first: _Group, second: _Group) -> _Group:
        """Merge two groups, the second of which reads the first, and return the merged group.

        If they cannot be merged, return the second group.
        """
        if first is second or not first.nodes or (
                first.operations[0].result.shape != second.operations[0].result.shape):
            return second
        if any(producer not in (first, second) and producer.ancestors & first.bit
               for operation in second.operations for producer in self._producers(operation)):
            return second  # a third group lies between them
        if first.nodes + second.nodes > self._limit:
            return second
        draft = self._joined(first, second)
        if self._expressions(draft) is None:
            return second
        self._join(first, second)
        first.operations, first.draft = draft.operations, draft
        return first

    def _joined(self, first: _Group, second: _Group) -> _Draft:
        """Return a draft of the operations of two groups.

        It may be the draft of the first group, extended.
        """
        draft, first.draft = first.draft, None
        at = self._positions
        if draft is None or len(second.operations) > 1 or (
                at[second.operations[0]] < at[first.operations[-1]]):
            return self._draft(sorted((*first.operations, *second.operations), key=at.__getitem__))
        first.operations = list(first.operations)  # those of the draft grow
        draft.append(second.operations[0])
        return draft

    def _draft(self, operations: Sequence[Operation]) -> _Draft:
        draft = _Draft(self._views)
        for operation in operations:
            draft.append(operation)
        return draft

    def _join(self, first: _Group, second: _Group) -> None:
        del self._groups[second.number]
        first.nodes += second.nodes
        first.ancestors |= second.ancestors & ~first.bit
        for operation in second.operations:
            self._group_of[operation.result] = first
        merged, both, joined = ~second.bit, first.bit | second.bit, first.bit | first.ancestors
        for group in self._groups.values():
            if group is not first and group.ancestors & both:
                group.ancestors = (group.ancestors & merged) | joined

    def _count(self, draft: _Draft) -> int:
        """Return the number of nodes of a draft's expressions; 0 if it cannot be a fusion.

        If the expressions of a fusion have no nodes, return 1.
        """
        expressions = self._expressions(draft)
        return 0 if expressions is None else max(len(needed(*expressions)), 1)

    def _expressions(self, draft: _Draft) -> tuple[Elements, list[Node | int]] | None:
        """Return the expressions of a draft; None if its operations do not fit in one fusion."""
        fused, operations = self._fused(draft), draft.operations
        if len(fused.operands) + len(fused.results) > _MOST_VALUES:
            return None
        # A fusion that exceeds all of vector memory is computed block by block, whatever its size.
        vectors, most = self._vectors(fused), self._config.vmem_vectors
        if len(operations) > 1 and most // 2 < vectors <= most and (
                self._room(operations) < vectors):
            return None
        expressions = expand_readable(fused, self._config, draft.expanded())
        if expressions is None:
            return None
        vectors, masks = pressure(*expressions)
        return expressions if vectors <= _MOST_VECTORS and masks <= _MOST_MASKS else None

    def _room(self, operations: Sequence[Operation]) -> int:
        """Return the most vectors that a fusion's operands and results may take.

        This is half of vector memory, or slightly more than the largest of the operations takes
        alone: whichever is more.
        """
        half = self._config.vmem_vectors // 2
        return max([half, *(self._vectors(operation) + half // 64 for operation in operations)])

    def _vectors(self, fused: Operation) -> int:
        return sum(self._size(value.shape) for value in (*fused.operands, *fused.results))

    def _size(self, shape: tuple[int, ...]) -> int:
        """Return the number of vectors of a value of shape ``shape``; cached for speed."""
        if shape not in self._sizes:
            self._sizes[shape] = standard(shape, self._config).vectors
        return self._sizes[shape]

    # The fusions.

    def _fused(self, draft: _Draft) -> Operation:
        members = set(draft.operations)
        return draft.fusion([
            operation.result for operation in draft.operations
            if operation.result in self._returned or any(
                user not in members for user in self._users.get(operation.result, ()))])

    def _replacement(self, group: _Group) -> Operation:
        only = group.operations[0]
        if not group.nodes or (len(group.operations) == 1 and not any(
                value in self._views for value in only.operands)):
            return only
        return self._fused(group.draft or self._draft(group.operations))

    def _used(self, operations: list[Operation]) -> list[Operation]:
        """Leave out constants, iotas and broadcasts that are not read; return all others."""
        read, kept = set(self._returned), []
        for operation in reversed(operations):
            if not operation.results or operation.results[0] not in self._views or (
                    operation.results[0] in read):
                kept.append(operation)
                read.update(operation.operands)
        return kept[::-1]


def _sorted(operations: Sequence[Operation]) -> Iterator[Operation]:
    """Yield each operation after those whose results it reads, otherwise in the given order."""
    made_by = {result: operation for operation in operations for result in operation.results}
    done: set[Operation] = set()
    for operation in operations:
        stack = [operation]
        while stack:
            top = stack[-1]
            waiting = [made_by[value] for value in top.operands
                       if value in made_by and made_by[value] not in done]
            if waiting and top not in done:
                stack.extend(waiting)
                continue
            stack.pop()
            if top not in done:
                done.add(top)
                yield top
