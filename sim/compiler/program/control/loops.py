"""Chooses the carried values of a loop that stay in vector memory; writes copies of buffers."""

from collections.abc import Mapping, Set

from hdl.config import Config
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.machine import VmemBuffer, emit
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.emit import Code
from sim.compiler.program.tilings import CONTROL, Tilings

__all__ = ["ROOM", "closed", "move_vectors", "need", "values_to_keep"]

_LONGEST_CYCLE = 16
"""Maximum length of a permutation cycle of buffers; each buffer in it needs a vector register."""
ROOM = 2
"""A loop must leave enough free vectors for its largest operation: this factor times the vectors of
the operation's operands and results that do not stay in vector memory."""


def values_to_keep(operation: Operation, tilings: Tilings, vectors: int) -> set[int]:
    """Choose the carried values that stay in vector memory while a loop runs, smallest first.

    Parameters
    ----------
    operation : Operation
        The ``while``.
    tilings : dict of Value to Tiling
        The tiling of each value.
    vectors : int
        Number of vectors that are free for the loop.

    Returns
    -------
    set of int
        Numbers of the chosen carried values; the set is `closed`.
    """
    sizes = [tilings[value].vectors for value in operation.operands]
    needs = [(region.inputs, _needs(region, tilings)) for region in operation.regions]

    def fit(numbers: set[int]) -> bool:
        room = max(_most(found, {inputs[number] for number in numbers}) for inputs, found in needs)
        return sum(sizes[number] for number in numbers) + ROOM * room <= vectors

    sliced = _sliced_in_hbm(operation.regions[1])
    able = [number for number, value in enumerate(operation.regions[1].inputs)
            if value not in sliced]
    kept = set(able)
    if not fit(kept):
        kept = set()
        # Twice, because operations need less room after their operands are kept.
        for number in 2 * sorted(able, key=sizes.__getitem__):
            if fit(kept | {number}):
                kept.add(number)
    body = operation.regions[1]
    return closed(kept - _long_cycles(body), body)


def need(graph: Graph, tilings: Tilings, kept: Set[Value]) -> int:
    """Return the largest number of vectors that a single operation of a graph needs.

    An operation needs vectors for its operands and results, except for values in ``kept``.
    ``tilings`` has the tiling of each value.
    """
    return _most(_needs(graph, tilings), kept)


_Needs = list[tuple[dict[Value, int], int]]
"""For each operation: the vectors of the values that it holds, and the need of its regions."""


def _needs(graph: Graph, tilings: Tilings) -> _Needs:
    return [({value: tilings[value].vectors for value in _held(operation)},
             max((need(region, tilings, set()) for region in operation.regions
                  if operation.kind in CONTROL), default=0)) for operation in graph.operations]


def _most(needs: _Needs, kept: Set[Value]) -> int:
    """Return the result of `need` from that of `_needs`."""
    return max((max(inner, sum([vectors for value, vectors in held.items() if value not in kept]))
                for held, inner in needs), default=0)


def _held(operation: Operation) -> set[Value]:
    """Return the operands and results that must be in vector memory at the same time."""
    if operation.kind == "stream":
        dimensions = (*operation.attributes["operand_dimensions"],
                      *operation.attributes["result_dimensions"])
        return {value for value, along in zip(
            (*operation.operands[:len(operation.attributes["operand_dimensions"])],
             *operation.results), dimensions, strict=True) if along < 0}
    if operation.kind == "while":
        body = operation.regions[1]
        sliced = _sliced_in_hbm(body)
        return {value for values in (operation.operands, operation.results)
                for value, given in zip(values, body.inputs, strict=True) if given not in sliced}
    if operation.kind in ("gather", "concatenate") and operation.attributes.get("in_hbm"):
        return set()
    if operation.attributes.get("in_hbm"):
        return {*operation.operands[1:], *operation.results} - (
            {operation.result} if operation.kind == "dynamic_update_slice" else set())
    return {*operation.operands, *operation.results}


def _sliced_in_hbm(graph: Graph) -> set[Value]:
    """Return the values in HBM of which the graph's operations transfer only slices."""
    return {operation.operands[0] for operation in graph.operations
            if operation.attributes.get("in_hbm") and operation.kind != "gather"}


def closed(kept: set[int], body: Graph) -> set[int]:
    """Return the largest closed subset of ``kept``.

    In a closed set, the next value of each carried value is computed by the body, or is the current
    value of a carried value in the set.

    Parameters
    ----------
    kept : set of int
        Numbers of carried values.
    body : Graph
        Body of the loop.
    """
    sources = _carried_sources(body)
    while any(sources.get(number, number) not in kept for number in kept):
        kept = {number for number in kept if sources.get(number, number) in kept}
    return kept


def _carried_sources(body: Graph) -> dict[int, int]:
    """Find carried values whose next value an iteration does not compute, but copies.

    It copies the current value of the same carried value, or of another one. ``body`` is the loop's
    body. Returns a mapping from the number of the carried value that gets the copy to the number of
    the one that is copied.
    """
    numbers = {value: number for number, value in enumerate(body.inputs)}
    return {number: numbers[value] for number, value in enumerate(body.outputs)
            if value in numbers}


def _long_cycles(body: Graph) -> set[int]:
    """Return the numbers of carried values in permutation cycles longer than `_LONGEST_CYCLE`.

    In each iteration, every value of such a cycle takes over the current value of another one.
    """
    sources, found = _carried_sources(body), set()
    for first in sources:
        path = [first]
        while (following := sources.get(path[-1])) is not None and following not in path:
            path.append(following)
        if sources.get(path[-1]) == first and len(path) > _LONGEST_CYCLE:
            found.update(path)
    return found


def move_vectors(moves: Mapping[VmemBuffer, VmemBuffer], config: Config) -> Code | None:
    """Write code that copies buffers of vector memory, with the effect of simultaneous copies.

    Parameters
    ----------
    moves : mapping of VmemBuffer to VmemBuffer
        Destination -> source, of the same size. Different buffers must not overlap.
    config : Config
        The chip.

    Returns
    -------
    Code or None
        None if no copy is needed.
    """
    pending = {to: source for to, source in moves.items() if to != source}
    if not pending:
        return None
    builder = Builder(config)
    while pending:
        read = set(pending.values())
        free = next((to for to in pending if to not in read), None)
        cycle = [free] if free is not None else _cycle(pending)
        with builder.loop(cycle[0].vectors) as i:
            loaded = [builder.load(pending[to], i) for to in cycle]
            for to, value in zip(cycle, loaded, strict=True):
                builder.store(value, to, i)
        for to in cycle:
            del pending[to]
    return emit(builder.finish(), config)


def _cycle(moves: Mapping[VmemBuffer, VmemBuffer]) -> list[VmemBuffer]:
    """Return a permutation cycle of ``moves``, which maps destinations to sources.

    Each of the returned buffers receives the contents of the next one, and the last those of the
    first. Every destination must be a source, too.
    """
    first = next(iter(moves))
    cycle = [first]
    while (following := moves[cycle[-1]]) != first:
        cycle.append(following)
    return cycle
