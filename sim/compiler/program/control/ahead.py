"""Slices of values in HBM that a counted loop loads one iteration ahead, with double buffers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hdl.isa import Slot
from sim.asm.operands import s
from sim.compiler.graph.counted import Counted
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.machine import VmemBuffer
from sim.compiler.program.code.reserved import FED, WORK
from sim.compiler.program.code.transfers import Rows, Vectors
from sim.compiler.program.context import Context
from sim.compiler.program.control.loops import ROOM, move_vectors, need
from sim.compiler.program.control.slices import Slices
from sim.compiler.program.places.places import VectorMemoryError
from sim.compiler.tiling import same_vectors

__all__ = ["SlicesAhead", "slices_ahead"]


@dataclass(frozen=True)
class _Slice:
    """A slice of a value in HBM.

    Attributes
    ----------
    operations : tuple of Operation
        The ``dynamic_slice``. If the only use of its result is a ``reshape`` that moves no
        elements, the ``reshape`` is the second operation.
    """

    operations: tuple[Operation, ...]

    @property
    def operation(self) -> Operation:
        """The ``dynamic_slice``."""
        return self.operations[0]

    @property
    def is_fed(self) -> bool:
        """Whether the slice is a batch of the infeed."""
        return "slots" in self.operation.attributes

    @property
    def value(self) -> Value:
        """The value that other operations of the loop read: the slice, or the reshaped slice."""
        return self.operations[-1].result


class SlicesAhead:
    """Writes the code that loads the slices of a counted loop, one iteration ahead.

    Transfers write a slice to *staging* vectors. At the head of an iteration, it is copied to the
    vectors that the operations use; then the transfer for the next iteration starts.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    found : sequence of _Slice
        The slices.
    homes : mapping of Value to Rows
        HBM rows of the values that are sliced.
    loop : Counted
        The loop.
    counter : int
        Address of the loop's counter in scalar memory.
    semaphore : int
        Number of the semaphore that counts the transfers. No loop around this one or within it may
        use the same semaphore.

    Raises
    ------
    VectorMemoryError
        If vector memory has too little room; no vectors are allocated then.
    """

    def __init__(self, context: Context, found: Sequence[_Slice], homes: Mapping[Value, Rows],
                 loop: Counted, counter: int, semaphore: int) -> None:
        self._context = context
        self._places = context.places
        self._stream = context.stream
        self._slices = Slices(context)
        self._homes = homes
        self._loop = loop
        self._counter = counter
        self.semaphore = semaphore
        self._taken: list[VmemBuffer] = []
        try:
            self._vectors = {each: (self._take(each.value), self._take(each.value))
                             for each in found}
        except VectorMemoryError:
            self.finish()
            raise

    def _take(self, value: Value) -> VmemBuffer:
        buffer = self._places.allocate("slice", self._context.tilings[value].vectors)
        self._taken.append(buffer)
        return buffer

    @property
    def values(self) -> list[Value]:
        """For each slice, the value that other operations of the loop read (`_Slice.value`)."""
        return [each.value for each in self._vectors]

    def body(self, graph: Graph) -> Graph:
        """Return ``graph``, the loop's body, with inputs in place of the slices' operations."""
        done = {operation for each in self._vectors for operation in each.operations}
        return replace(graph, inputs=[*graph.inputs, *self.values],
                       operations=[operation for operation in graph.operations
                                   if operation not in done])

    def start(self) -> None:
        """Write code, before the loop, that starts transfers of the first iteration's slices."""
        self._transfers = self._start(0)

    def enter(self) -> None:
        """Write the head of the loop's body.

        It waits for this iteration's slices, and starts to load those of the next iteration.
        """
        stream = self._stream
        stream.wait(self.semaphore, self._transfers)
        code = move_vectors({work: stage for stage, work in self._vectors.values()},
                            self._context.config)
        if code is not None:
            stream.kernel(code)
        if self._loop.limit - self._loop.first > 1:
            last = stream.label("last")
            stream.bundle((Slot.S0, "load", (WORK, s[0], self._counter)))
            stream.branch("beq", WORK.number, self._loop.limit - 1, last)
            self._start(1)
            stream.bind(last)
        for each, (_, work) in self._vectors.items():
            self._places.pin(each.value, work)

    def leave(self) -> None:
        """Forget the values of the slices, which are valid only in the loop's body."""
        for _, work in self._vectors.values():
            self._places.unpin(work)

    def finish(self) -> None:
        """Free the vectors of the slices, after the loop."""
        for buffer in self._taken:
            self._places.memory.release(buffer)

    def _start(self, later: int) -> int:
        """Write code that starts to load the slices of the ``later``-th iteration after this one.

        If a slice is in the infeed, the code waits for the host's batch first. Return the number of
        transfers.
        """
        started, sublanes = 0, self._context.config.sublanes
        if any(each.is_fed for each in self._vectors):
            self._stream.wait(FED, 1)
        for each, (stage, _) in self._vectors.items():
            rows = self._slices.rows(each.operation, self._homes[each.operation.operands[0]], later)
            started += self._places.memory.start_transfer(
                rows, Vectors(stage.address), stage.vectors * sublanes, self.semaphore)
        return started


def slices_ahead(context: Context, body: Graph, homes: Mapping[Value, Rows], kept: set[Value],
                 loop: tuple[Counted, int, int]) -> SlicesAhead | None:
    """Choose the slices that a loop loads one iteration ahead.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    body : Graph
        The loop's body.
    homes : mapping of Value to Rows
        HBM rows of the body's inputs that are in HBM and that the body does not change.
    kept : set of Value
        Inputs of the body that are in vector memory.
    loop : Counted, int, int
        The loop, the address of its counter in scalar memory, and the number of a free semaphore.

    Returns
    -------
    SlicesAhead or None
        None if there are no such slices, or if vector memory has no room for them and none of
        them is in the infeed.

    Raises
    ------
    VectorMemoryError
        If vector memory has no room for the slices, and some of them are in the infeed: these must
        be loaded ahead.
    """
    tilings, chosen = context.tilings, list[_Slice]()
    found = sorted(_slices(context, body, homes, loop[0]), key=lambda each: not each.is_fed)
    for each in found:
        values = {part.value for part in (*chosen, each)}
        room = ROOM * need(body, tilings, kept | values | {each.operation.result})
        if each.is_fed or room + 2 * sum(tilings[value].vectors for value in values) <= (
                context.places.memory.free_vectors):
            chosen.append(each)
    if chosen:
        try:
            return SlicesAhead(context, chosen, homes, *loop)
        except VectorMemoryError:
            if any(each.is_fed for each in chosen):
                raise VectorMemoryError("two batches of the infeed must fit vector memory in "
                                        "addition to the loop's values: feed smaller batches"
                                        ) from None
    return None


def _slices(context: Context, body: Graph, homes: Mapping[Value, Rows],
            loop: Counted) -> list[_Slice]:
    """Return the slices in a loop's body that can be loaded ahead.

    These are slices of the values in ``homes`` that begin at affine functions of the counter of
    ``loop``.
    """
    users, found = body.users(), list[_Slice]()
    for operation in body.operations:
        if operation.kind != "dynamic_slice" or not operation.attributes.get("in_hbm"):
            continue
        value, *starts = operation.operands
        if value not in homes or not all(
                start in loop.values or size == whole for start, size, whole
                in zip(starts, operation.result.shape, value.shape, strict=True)):
            continue
        using = users.get(operation.result, [])
        alone = len(using) == 1 and operation.result not in body.outputs
        view = alone and using[0].kind == "reshape" and same_vectors(
            *(context.tilings[item.result] for item in (operation, using[0])))
        found.append(_Slice((operation, *using) if view else (operation,)))
    return found
