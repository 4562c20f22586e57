"""Divides updates that both cores of a chip would compute: each core computes a half.

An *update* is an elementwise kernel in a loop. It adds a value of this core to the other core's
value, which an exchange has moved, and computes the next values of carried values from the sum. An
example is the update of weights and their momentum by the sum of both cores' gradients. Without
this module, both cores receive all vectors and compute the same results from them.

Here, each core receives and computes only the vectors of its half. Large exchanges have two parts;
of each, core 0 computes the first half, and core 1 the second one. If other operations of the loop
read a carried value, the cores then *share* it: each sends its half to the other, and waits for the
other's half at the start of the next iteration. Of the remaining carried values, a core has only
its half until the end of the loop. If the program returns such a value, each core writes its half
to HBM; otherwise, the cores share it after the loop. The bits of all results stay the same, because
addition is commutative.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hdl.config import Config
from hdl.isa import Slot
from sim.asm.operands import sem
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.machine import VmemBuffer
from sim.compiler.program.code.reserved import SHARED
from sim.compiler.program.context import Context
from sim.compiler.program.tilings import CONTROL, HELD
from sim.compiler.tiling import standard

__all__ = ["AHEAD", "NOW", "SUMMED", "SharedValues", "UndividedError", "divide_updates", "gaps",
           "half", "require_divided"]

SUMMED, AHEAD, NOW = "summed", "ahead", "now"
"""Values of an exchange's attribute ``halves``.

`SUMMED`: each core sends the other core's half of its operand; the result is valid in the own half.
`AHEAD`, `NOW`: the cores share a value, in place: each sends its own half. With `AHEAD`, the loop
waits for the other half at the start of the next iteration.
"""
_TRANSFERS = 4
"""Number of transfers by which two cores share a value: each sends its half of the value's first
part, and its half of the second part."""
_LEAST = 32
"""Least number of vectors of an update that is divided."""
_START, _LATENCY, _KERNEL = 40, 60, 60
"""Estimated cycles of the code that starts to share a value, of a transfer's latency, and of a
kernel without what depends on its size."""
_DIFFERING = frozenset({"exchange", "by_device", "device_constant", "pod_sum"})
"""Kinds of operations whose results differ between the cores even if their operands do not."""


class UndividedError(Exception):
    """A divided update cannot be written: its values are not where the plan needs them."""


def half(part: range, core: int) -> range:
    """Return the half of a part of a value's vectors that a core computes.

    Raises
    ------
    UndividedError
        If one of the cores would have no vectors.
    """
    if len(part) < 2:
        raise UndividedError
    middle = len(part) // 2
    return part[:middle] if core == 0 else part[middle:]


def gaps(parts: Sequence[range], whole: range) -> tuple[range, ...]:
    """Return the ranges of ``whole`` that are in none of ``parts``, which are in order."""
    ends = whole.start, *(part.stop for part in parts)
    starts = *(part.start for part in parts), whole.stop
    return tuple(gap for gap in map(range, ends, starts) if gap)


# ---- values that are the same on both cores


def _sum(operation: Operation, makers: Mapping[Value, Operation]) -> Operation | None:
    """Return an exchange if the operation adds its result to the value that this core sent.

    Return None if there is no such exchange, or if the operation uses one of these two values for
    anything else. ``makers`` maps values to the operations that compute them.
    """
    for number, value in enumerate(operation.operands):
        exchange = makers.get(value)
        if (exchange is None or exchange.kind != "exchange" or len({*exchange.operands}) != 1
                or exchange.attributes.get("sources", (1, 0)) != (1, 0)):
            continue
        own = exchange.operands[0]
        if operation.operands.count(value) != 1 or operation.operands.count(own) != 1:
            continue
        if operation.kind == "add":
            return exchange
        if operation.kind == "fusion":
            [region] = operation.regions
            users = region.users()
            pair = region.inputs[number], region.inputs[operation.operands.index(own)]
            added = users.get(pair[0], [])
            if (len(added) == 1 and added == users.get(pair[1]) and added[0].kind == "add"
                    and not {*pair} & {*region.outputs}):
                return exchange
    return None


def _alike(graph: Graph, known: Collection[Value]) -> set[Value]:
    """Return the values of a graph that are the same on both cores, if those in ``known`` are."""
    found, makers = set(known), dict[Value, Operation]()
    for operation in graph.operations:
        makers.update(dict.fromkeys(operation.results, operation))
        if operation.kind == "while":
            kept = _alike_carried(operation, found)
            found.update(operation.results[number] for number in kept)
            continue
        differ = {*operation.operands} - found
        if operation.kind in ("exchange", "by_device"):
            same = not differ and len({*operation.operands}) == 1
        elif differ:
            exchange = _sum(operation, makers)
            same = exchange is not None and differ <= {exchange.result, exchange.operands[0]}
        else:
            same = operation.kind not in _DIFFERING and not any(
                inner.kind in _DIFFERING for region in operation.regions for inner in region.walk())
        if same:
            found.update(operation.results)
    return found


def _alike_carried(operation: Operation, known: Collection[Value]) -> set[int]:
    """Return the numbers of a loop's carried values that are the same on both cores.

    They are so at the start and the end of each iteration, if the values in ``known`` are.
    """
    condition, body = operation.regions
    kept = {number for number, value in enumerate(operation.operands) if value in known}
    while True:
        if condition.outputs[0] not in _alike(condition, _chosen(condition.inputs, kept)):
            return set()
        found = _alike(body, _chosen(body.inputs, kept))
        left = {number for number in kept if body.outputs[number] in found}
        if left == kept:
            return kept
        kept = left


def _chosen(values: Sequence[Value], numbers: Iterable[int]) -> set[Value]:
    return {values[number] for number in numbers}


# ---- the pass


@dataclass(frozen=True)
class _Update:
    """An update that can be divided.

    Attributes
    ----------
    made : Operation
        Its operation.
    exchange : Operation
        The exchange whose result it adds.
    shared : dict of Value to int
        For each result that the cores share in each iteration, the index of an operation in the
        body: the first one that reads the result in the next iteration.
    saved : int
        Estimated cycles that each core saves.
    """

    made: Operation
    exchange: Operation
    shared: Mapping[Value, int]
    saved: int


def divide_updates(graph: Graph, config: Config) -> set[Value]:
    """Divide the updates of a graph's loops where that is estimated to save time.

    The exchange in front of a divided update, and the new exchanges by which the cores share
    values, have the attribute ``halves``.

    Parameters
    ----------
    graph : Graph
        A graph for both cores of one chip, with its operations in their final order. It is changed;
        the new graph is only for `sim.compiler.program.devices.for_device`.
    config : Config
        The chip.

    Returns
    -------
    set of Value
        Outputs of which each core writes its halves. They are results of loops; the attribute
        ``halved`` of such a loop has their numbers.
    """
    assert graph.sharding is not None
    known = {value for value, cut in zip(graph.inputs, graph.sharding.inputs, strict=True)
             if cut is None}
    alike, used = _alike(graph, known), graph.users()
    written = {value for value, cut in zip(graph.outputs, graph.sharding.outputs, strict=True)
               if cut is None and graph.outputs.count(value) == 1 and value not in used}
    operations, halved = list[Operation](), set[Value]()
    new: dict[Value, Value] = {}
    for operation in graph.operations:
        operation.operands = tuple(new.get(value, value) for value in operation.operands)
        operations.append(operation)
        if operation.kind != "while":
            continue
        divided = _divide(operation, alike, config)
        numbers = {number for number in divided if operation.results[number] in written}
        operation.attributes["halved"] = numbers
        halved |= _chosen(operation.results, numbers)
        for number in sorted(divided.keys() - numbers):
            if not divided[number]:
                shared = _sharing(operation.results[number], NOW, operation)
                operations.append(shared)
                new[operation.results[number]] = shared.result
                alike.add(shared.result)
    graph.operations = operations
    graph.outputs = [new.get(value, value) for value in graph.outputs]
    return halved


def _sharing(value: Value, halves: str, like: Operation) -> Operation:
    """Make the operation by which the cores share a value; it has the location of ``like``."""
    return Operation("exchange", (value, value), (Value(value.type),),
                     {"sources": (1, 0), "halves": halves}, (), like.location)


def _divide(operation: Operation, alike: Collection[Value], config: Config) -> dict[int, bool]:
    """Divide the updates of one loop.

    ``alike`` are the values outside of the loop that are the same on both cores. Return the numbers
    of the results that updates compute, and whether the cores share each in the loop.
    """
    body = operation.regions[1]
    carried = _alike_carried(operation, alike)
    chosen = _best([update for at in range(len(body.operations))
                    if (update := _update(operation, at, carried, config)) is not None],
                   operation, config)
    numbers, found = {value: number for number, value in enumerate(body.outputs)}, dict[int, bool]()
    first, last = _parted(operation, [update.made for update in chosen])
    for update in chosen:
        update.exchange.attributes["halves"] = SUMMED
        first.append(update.made)
        for value in update.made.results:
            found[numbers[value]] = value in update.shared
            if value in update.shared:
                shared = _sharing(value, AHEAD, update.made)
                first.append(shared)
                body.outputs[numbers[value]] = shared.result
    body.operations = first + last
    return found


def _parted(operation: Operation, updates: Collection[Operation]
            ) -> tuple[list[Operation], list[Operation]]:
    """Divide the other operations of a loop's body: those before ``updates``, and those after them.

    Exchanges, transfers to HBM, and what these and the updates need, come before. So does what
    reads the current carried values, because the updates overwrite these. All other kernels run
    while the cores share the updates' results. A transfer to HBM would have to wait for that.
    """
    body = operation.regions[1]
    wanted = {value for update in updates for value in update.operands}
    replaced = {body.inputs[body.outputs.index(value)]
                for update in updates for value in update.results}
    wanted |= _chosen(body.outputs, operation.attributes.get("outfeed", ()))
    first, last = list[Operation](), list[Operation]()
    for other in reversed(body.operations):
        if other in updates:
            continue
        if (not updates or other.kind == "exchange" or other.attributes.get("in_hbm")
                or not wanted.isdisjoint(other.results)
                or not replaced.isdisjoint(other.operands)):
            wanted.update(other.operands)
            first.append(other)
        else:
            last.append(other)
    return first[::-1], last[::-1]


def _update(operation: Operation, at: int, carried: Collection[int], config: Config
            ) -> _Update | None:
    """Return what is known of operation number ``at`` of a loop's body if it can be divided.

    ``carried`` are the numbers of the carried values that are the same on both cores.
    """
    condition, body = operation.regions
    made, makers, users = body.operations[at], body.producers(), body.users()
    exchange = _sum(made, makers) if made.kind == "fusion" else None
    if exchange is None or users[exchange.result] != [made] or exchange.result in body.outputs:
        return None
    others = {*made.operands} - {exchange.result, exchange.operands[0]}
    if not others <= _alike(body, _chosen(body.inputs, carried)):
        return None
    vectors = standard(exchange.result.shape, config).vectors
    tested, shared = condition.users(), dict[Value, int]()
    for value in made.results:
        number = body.outputs.index(value) if body.outputs.count(value) == 1 else -1
        if (number not in carried or value in users or value.type != exchange.result.type
                or number in operation.attributes.get("outfeed", ())
                or condition.inputs[number] in tested
                or body.inputs[number] in body.outputs or vectors < _LEAST):
            return None
        readers = [other for other in users.get(body.inputs[number], ()) if other is not made]
        if readers:
            shared[value] = body.operations.index(readers[0])
    loads = sum(value.type == exchange.result.type for value in made.operands)
    return _Update(made, exchange, shared, vectors // 2 * loads)


def _best(updates: Sequence[_Update], operation: Operation, config: Config) -> list[_Update]:
    """Choose the updates that together save the most cycles, by a rough estimate."""
    found, most = list[_Update](), 0
    for update in sorted(updates, key=lambda update: -update.saved):
        gain = _gain([*found, update], operation, config)
        if gain > most:
            found, most = [*found, update], gain
    return found


def _gain(updates: Sequence[_Update], operation: Operation, config: Config) -> int:
    """Estimate how many cycles of an iteration are saved if ``updates`` are divided.

    Kernels run while the cores share values: those that follow the first update, and those at the
    start of the next iteration, which begins with copies of the slices that were loaded ahead.
    """
    shared = [(update, first) for update in updates for first in update.shared.values()]
    sent = sum(config.sublanes * (-(-_vectors(update.exchange.results, config) // 2))
               for update, _ in shared)
    gain = sum(update.saved for update in updates) - _START * len(shared)
    if not shared:
        return gain
    body = operation.regions[1]
    _, after = _parted(operation, [update.made for update in updates])
    between = [*after, *body.operations[:min(first for _, first in shared)]]
    hidden = sum(_KERNEL + _vectors((*other.operands, *other.results), config)
                 for other in between if other.kind not in (*HELD, *CONTROL, "exchange", "reshape",
                                                            "dynamic_slice"))
    hidden += sum(_vectors(other.results, config) for other in body.operations
                  if other.kind == "dynamic_slice" and other.attributes.get("in_hbm"))
    return gain - max(0, sent + _LATENCY - hidden)


def _vectors(values: Iterable[Value], config: Config) -> int:
    return sum(standard(value.shape, config).vectors for value in values if value.type.size)


# ---- the plan


class SharedValues:
    """The values that the cores share in a loop, while one core's plan is made.

    The constructor writes code before the loop by which each core adds to the other's semaphore
    `SHARED`. So the first `wait` finds the amount that transfers of one iteration add.

    Parameters
    ----------
    context : Context
        Receives the code.
    body : Graph
        The loop's body, as one core executes it.
    buffers : mapping of int to VmemBuffer
        Buffers of the carried values that stay in vector memory, by number.

    Raises
    ------
    UndividedError
        If a carried value that a divided update computes is not in vector memory, or values of the
        update have different tilings.
    """

    def __init__(self, context: Context, body: Graph, buffers: Mapping[int, VmemBuffer]) -> None:
        require_divided(context, body, buffers)
        self._context = context
        self._body = body
        self._buffers = buffers
        self._operations = [operation for operation in body.operations
                            if operation.attributes.get("halves") == AHEAD]
        self._reloads = context.places.memory.reloads
        if self._operations:
            context.stream.bundle((Slot.MISC, "signal_other", (sem[SHARED], self._amount)))

    @property
    def _amount(self) -> int:
        return _TRANSFERS * len(self._operations)

    def wait(self) -> None:
        """Write code that waits until the values that were shared last have arrived."""
        if self._operations:
            self._context.stream.wait(SHARED, self._amount)

    def before(self) -> dict[Value, Value]:
        """Return a mapping of carried values' next values to current ones (`Places.before`)."""
        body = self._body
        found = {body.outputs[number]: body.inputs[number] for number in self._buffers}
        return found | {each.operands[0]: found[each.result] for each in self._operations}

    def require_in_place(self) -> None:
        """Check that the shared values are where the next iteration expects them.

        Raises
        ------
        UndividedError
            If one is not, or the loop has saved and reloaded all values, maybe before the other
            core's half had arrived.
        """
        places = self._context.places
        for each in self._operations:
            buffer = self._buffers[self._body.outputs.index(each.result)]
            if places.buffer(each.result) != buffer or places.memory.reloads > self._reloads:
                raise UndividedError

    def leave(self, operation: Operation) -> None:
        """Record the results of ``operation``, the loop, of which each core has only a half."""
        needed = self._context.needed
        sources = {each.result: each.operands[0] for each in self._operations}
        for number, made in enumerate(self._body.outputs):
            if made in needed or number in operation.attributes.get("halved", ()):
                needed[operation.results[number]] = needed[sources.get(made, made)]


def require_divided(context: Context, body: Graph, buffers: Collection[int]) -> None:
    """Check that the updates of a loop's body can be divided.

    The exchange before each gets the attribute ``divided``: the results of the update. The
    parameters and errors are those of `SharedValues`.
    """
    tilings, users = context.tilings, body.users()
    shared = {operation.operands[0]: operation.result for operation in body.operations
              if operation.attributes.get("halves") == AHEAD}
    for exchange in body.operations:
        if exchange.attributes.get("halves") != SUMMED:
            continue
        [made] = users[exchange.result]
        tiling, own = tilings[exchange.result], exchange.operands[0]
        if made.kind != "fusion" or own not in made.operands:
            raise UndividedError
        for value in made.results:
            output = shared.get(value, value)
            number = body.outputs.index(output) if output in body.outputs else -1
            if number not in buffers or {tiling} != {tilings[each] for each in (
                    value, output, own, body.inputs[number])}:
                raise UndividedError
        exchange.attributes["divided"] = made.results
