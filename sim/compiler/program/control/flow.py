"""Writes loops and conditionals.

Where code branches, each value is either in HBM or pinned to fixed vectors.
"""

from collections.abc import Callable, Mapping, Sequence

from hdl.isa import Slot
from sim.asm.operands import s
from sim.compiler.graph.counted import Counted, counted
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.machine import VmemBuffer
from sim.compiler.program.code.reserved import SLICES_READ, WORK
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.context import Context
from sim.compiler.program.control.ahead import SlicesAhead, slices_ahead
from sim.compiler.program.control.blocks import BlockLoops
from sim.compiler.program.control.counters import advance
from sim.compiler.program.control.halves import SharedValues
from sim.compiler.program.control.late import late_values
from sim.compiler.program.control.loops import closed, move_vectors, values_to_keep
from sim.compiler.program.places.places import Splat, VectorMemoryError
from sim.compiler.program.places.scalars import read_scalar

__all__ = ["ControlFlow"]


class ControlFlow:
    """Writes the code of the operations ``while``, ``case`` and ``stream``.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    write : callable
        Writes the operations of a region, and copies the given values to rows of HBM.

    Attributes
    ----------
    fixed : set of Value
        Inputs of regions; no result may take over the vectors of these inputs. Of a loop, they are
        the inputs of the condition: the body uses them, too. Of a stream, they are the inputs that
        are not divided into blocks, but lie in vector memory as a whole.
    """

    def __init__(self, context: Context,
                 write: Callable[[Graph, Mapping[Value, Sequence[Rows]]], None]) -> None:
        self._context = context
        self._tilings = context.tilings
        self._places = context.places
        self._stream = context.stream
        self._counters = context.counters
        self.write = write
        self.fixed: set[Value] = set()
        # Free semaphores for loops that load slices ahead; the last one is taken next.
        self._semaphores = list(SLICES_READ)

    def reserve(self, semaphore: int) -> None:
        """Let no loop use ``semaphore`` for the slices that it loads one iteration ahead."""
        self._semaphores.remove(semaphore)

    def loop(self, operation: Operation, later: set[Value],
             early: Mapping[Value, Sequence[Rows]]) -> None:
        """Write a ``while``. Each carried value stays in vector memory, or in its own rows of HBM.

        Some results may be in the outfeed: each iteration writes those to the outputs' rows.

        Parameters
        ----------
        operation : Operation
            The ``while``.
        later : set of Value
            Values that are used after the loop.
        early : mapping of Value to sequence of Rows
            For each value that the program returns, the rows of its outputs.
        """
        places, stream = self._places, self._stream
        queued = operation.attributes.get("outfeed")
        outfed = {number: early.get(operation.results[number], ()) for number in queued or ()}
        condition, body = operation.regions
        count, ahead = self._count(operation), None
        buffers, rows, late = self._carried(operation, later, outfed, count)
        shared = SharedValues(self._context, body, buffers)
        known = set(places.homes)
        again, end = stream.label("again"), stream.label("end")
        if count is not None:
            counter = self._start_counter(count)
            ahead = self._start_slices(body, buffers, rows, count, counter)
            body = body if ahead is None else ahead.body(body)
        self._start_late(late, buffers)
        stream.bind(again)
        if count is None:
            self._enter(condition, buffers, rows)
            self._test(condition)
            self._leave(condition, buffers, known)
            stream.branch("beq", WORK.number, 0, end)
        self._enter(operation.regions[1], buffers, rows)
        if ahead is not None:
            ahead.enter()
        shared.wait()
        self._write_body(body, rows, outfed, shared)
        self._renew(body, buffers)
        if ahead is not None:
            ahead.leave()
        self._leave(body, buffers, known)
        if count is not None:
            self._counters.give(1)
            advance(stream, counter)
            if queued is not None:
                stream.bundle((Slot.S0, "store", (WORK, s[0], self._context.memory.iterations)))
            stream.branch("blt", WORK.number, count.limit, again)
        else:
            stream.jump(again)
        stream.bind(end)
        shared.wait()
        places.memory.finish_late()
        if ahead is not None:
            self._finish_slices(ahead)
        shared.leave(operation)
        self._leave_results(operation, buffers, rows)

    def _write_body(self, body: Graph, rows: Mapping[int, Rows],
                    outfed: Mapping[int, Sequence[Rows]], shared: SharedValues) -> None:
        """Write a loop's body, and copy the next iteration's carried values to their HBM rows.

        ``rows`` maps the numbers of those carried values to the rows; ``outfed`` maps the numbers
        of outputs in the outfeed to theirs. ``shared`` are the values that the cores share.
        """
        places = self._places
        around, places.before = places.before, shared.before()
        self.write(body, {body.outputs[number]: to for number, to in outfed.items()})
        places.before = around
        self._store_together(
            {to: body.outputs[number] for number, to in rows.items()
             if body.outputs[number] is not body.inputs[number]}, set(body.inputs))
        shared.require_in_place()

    def _test(self, condition: Graph) -> None:
        """Write code that evaluates a loop's condition into scalar register `WORK`."""
        self.fixed.update(condition.inputs)
        self.write(condition, {})
        read_scalar(self._places, self._context.config, condition.outputs[0], WORK)
        self._places.evict_all(lambda value: False)

    def _leave_results(self, operation: Operation, buffers: Mapping[int, VmemBuffer],
                       rows: Mapping[int, Rows]) -> None:
        """Record where the results of a loop lie.

        ``buffers`` maps the numbers of results in vector memory to their vectors; ``rows`` maps
        those of the other results to their HBM rows.
        """
        places = self._places
        for number, value in enumerate(operation.results):
            if number in rows:
                places.homes[value] = rows[number]
            else:
                places.put(value, buffers[number])

    def _count(self, operation: Operation) -> Counted | None:
        """Return a loop's counter; None if the loop has none, or if no word is free for it."""
        def known(value: Value) -> int | None:
            home = self._places.homes.get(value)
            return home.word if isinstance(home, Splat) else None

        return counted(operation, known) if self._counters.left else None

    def _start_counter(self, loop: Counted) -> int:
        """Write code that initialises a loop's counter; return the counter's address."""
        [address] = self._counters.take(1)
        self._counters.values.update(
            (value, (address, affine)) for value, affine in loop.values.items())
        self._stream.bundle((Slot.S0, "add", (WORK, s[0], loop.first)))
        self._stream.bundle((Slot.S0, "store", (WORK, s[0], address)))
        return address

    def _start_slices(self, body: Graph, buffers: Mapping[int, VmemBuffer],
                      rows: Mapping[int, Rows], count: Counted, counter: int
                      ) -> SlicesAhead | None:
        """Choose the slices that a loop loads ahead; start to load those of the first iteration.

        ``buffers`` and ``rows`` map numbers of the body's inputs to their vectors or HBM rows;
        ``count`` is the loop's counter, and ``counter`` the address of its word. Return None if the
        loop loads no slices ahead.
        """
        if not self._semaphores:
            return None
        homes = {body.inputs[number]: home for number, home in rows.items()
                 if body.outputs[number] is body.inputs[number]}
        ahead = slices_ahead(self._context, body, homes,
                             {body.inputs[number] for number in buffers},
                             (count, counter, self._semaphores[-1]))
        if ahead is not None:
            self._semaphores.pop()
            ahead.start()
        return ahead

    def _finish_slices(self, ahead: SlicesAhead) -> None:
        """Free the vectors and the semaphore of slices that were loaded ahead."""
        ahead.finish()
        self._semaphores.append(ahead.semaphore)

    def _carried(self, operation: Operation, later: set[Value],
                 outfed: Mapping[int, Sequence[Rows]], count: Counted | None
                 ) -> tuple[dict[int, VmemBuffer], dict[int, Rows], dict[int, Rows]]:
        """Choose where a loop keeps its carried values, and start to copy their initial values.

        ``later`` are the values that are used after the loop; ``outfed`` has the rows of those
        outputs in the outfeed that return a carried value. Return the buffers of carried values
        that stay in vector memory, the HBM rows of all others, and the HBM rows of those that
        `_start_late` is still to copy to their buffers. Keys of all four mappings are numbers of
        carried values. A carried value takes over its operand's buffer if the operand is not used
        again.
        """
        places, operands, body = self._places, operation.operands, operation.regions[1]
        places.memory.wait_all()
        dying = [number for number, value in enumerate(operands)
                 if value not in later and operands.count(value) == 1]
        buffers = {number: buffer for number in dying
                   if (buffer := places.take(operands[number])) is not None}
        taken = dict(buffers)
        places.evict_all(lambda value: value in later or value in operands)
        size = {number: self._tilings[value].vectors for number, value in enumerate(operands)}
        kept = values_to_keep(operation, self._tilings, places.memory.free_vectors
                              + sum(buffer.vectors for buffer in buffers.values()))
        for number in sorted(kept - set(buffers)):
            try:
                buffers[number] = places.allocate("carried", size[number])
            except VectorMemoryError:
                kept = closed(kept - {number}, body)
        for number in set(buffers) - kept:
            if number in taken:
                places.put(operands[number], buffers.pop(number))
            else:
                places.memory.release(buffers.pop(number))
        rows = {number: self._carried_rows(operation, number, outfed.get(number, ()))
                for number in size if number not in kept}
        places.evict_all(later.__contains__)
        late = (late_values(self._context, operation, set(buffers) - set(taken), count)
                if count is not None and len(self._semaphores) == len(SLICES_READ) else {})
        self._start_fill({buffer: operands[number] for number, buffer in buffers.items()
                          if number not in taken and number not in late})
        return buffers, rows, late

    def _start_late(self, late: Mapping[int, Rows], buffers: Mapping[int, VmemBuffer]) -> None:
        """Start to load what the first iteration needs late, and wait for all other values.

        ``late`` and ``buffers`` map numbers of carried values to HBM rows and to vectors.
        """
        memory = self._places.memory
        for number, home in sorted(late.items()):
            memory.load_late(home, buffers[number], self._semaphores[0])
        memory.wait_all()
        memory.settle(buffer for number, buffer in buffers.items() if number not in late)

    def _carried_rows(self, operation: Operation, number: int, outfed: Sequence[Rows]) -> Rows:
        """Write code that copies the initial value of carried value ``number`` to rows of HBM.

        Return these rows: its home, if the loop does not change the value; the first of ``outfed``,
        if the value is in the outfeed; otherwise new rows. ``outfed`` has the rows of each output
        that returns the value.
        """
        places, value, body = self._places, operation.operands[number], operation.regions[1]
        if body.outputs[number] is body.inputs[number]:
            places.save(value)
            if isinstance(home := places.homes[value], Rows):
                return home
        rows = outfed[0] if outfed else places.reserve(self._tilings[value].vectors)
        places.copy_to(value, rows)
        for region in operation.regions:
            places.owned.add(region.inputs[number])
        places.owned.add(operation.results[number])
        return rows

    def fill(self, values: Mapping[VmemBuffer, Value]) -> None:
        """Write code that copies values to buffers in vector memory, and waits for the copies.

        The copies act as if they were simultaneous: a destination may hold a value that is copied
        to another destination.
        """
        if values:
            self._start_fill(values)
            self._places.memory.wait_all()
            self._places.memory.settle(values)

    def _start_fill(self, values: Mapping[VmemBuffer, Value]) -> None:
        """Write the code of `fill`, but do not wait for the transfers."""
        places = self._places
        moves = {buffer: source for buffer, value in values.items()
                 if (source := places.buffer(value)) is not None}
        places.memory.wait_all()
        code = move_vectors(moves, self._context.config)
        if code is not None:
            self._stream.kernel(code)
        for buffer, value in values.items():
            if buffer not in moves:
                places.load_to(value, buffer)

    def _enter(self, region: Graph, buffers: Mapping[int, VmemBuffer],
               rows: Mapping[int, Rows]) -> None:
        """Record where the inputs of a loop's body or condition lie, before its code is written.

        ``buffers`` maps the numbers of inputs in vector memory to their vectors; ``rows`` maps
        those of the other inputs to their HBM rows.
        """
        for number, value in enumerate(region.inputs):
            if number in rows:
                self._places.homes[value] = rows[number]
            else:
                self._places.pin(value, buffers[number])

    def _leave(self, region: Graph, buffers: Mapping[int, VmemBuffer], known: set[Value]) -> None:
        """Forget the places that are valid only inside a loop's body or condition.

        ``buffers`` are those that `_enter` got; ``known`` are the values that had homes before the
        loop.
        """
        for number in buffers:
            self._places.unpin(buffers[number])
        self._forget(known)

    def _forget(self, known: set[Value]) -> None:
        """Forget the homes that pinned values got in code that is not always executed.

        ``known`` are the values that had homes before this code.
        """
        for value in self._places.pinned:
            if value not in known:
                self._places.homes.pop(value, None)

    def _renew(self, body: Graph, buffers: Mapping[int, VmemBuffer]) -> None:
        """Copy the next iteration's carried values to their buffers; free all other vectors."""
        self.fill({buffer: body.outputs[number] for number, buffer in buffers.items()
                    if body.outputs[number] is not body.inputs[number]})
        self._places.evict_all(lambda value: False)

    def blocks(self, operation: Operation, later: set[Value],
               early: Mapping[Value, Sequence[Rows]]) -> None:
        """Write a ``stream``.

        Carried results stay in vector memory. Any other result is written to HBM: to the rows of
        the output if the program returns it, otherwise to rows of its own.

        Parameters
        ----------
        operation : Operation
            The ``stream``.
        later : set of Value
            Values that are used after the stream.
        early : mapping of Value to sequence of Rows
            For each value that the program returns, the rows of its outputs.
        """
        places = self._places
        for value in operation.operands:
            places.save(value)
        places.evict_all(later.__contains__)
        results = [None if along < 0 else next(iter(early.get(value, ())), None)
                   or places.reserve(self._tilings[value].vectors)
                   for value, along in zip(operation.results,
                                           operation.attributes["result_dimensions"], strict=True)]
        carried = BlockLoops(self._context, self, operation, results).write()
        for value, rows, buffer in zip(operation.results, results, carried, strict=True):
            if rows is not None:
                places.homes[value] = rows
            elif buffer is not None:
                places.put(value, buffer)

    def conditional(self, operation: Operation, later: set[Value]) -> None:
        """Write a ``case``. Each result gets its own rows of HBM.

        Parameters
        ----------
        operation : Operation
            The ``case``.
        later : set of Value
            Values that are used after the ``case``.
        """
        places, stream = self._places, self._stream
        index, *operands = operation.operands
        read_scalar(places, self._context.config, index, WORK)
        for value in operands:
            places.save(value)
        places.evict_all(later.__contains__)
        known = set(places.homes)
        results = [places.reserve(self._tilings[value].vectors) for value in operation.results]
        labels = [stream.label("branch") for _ in operation.regions]
        for number, label in enumerate(labels[:-1]):
            stream.branch("beq", WORK.number, number, label)
        stream.jump(labels[-1])
        end = stream.label("end")
        for region, label in zip(operation.regions, labels, strict=True):
            stream.bind(label)
            places.homes.update((value, places.homes[operand]) for value, operand
                                in zip(region.inputs, operands, strict=True))
            self.write(region, {})
            self._store_together(dict(zip(results, region.outputs, strict=True)), set())
            places.evict_all(lambda value: False)
            self._forget(known)
            stream.jump(end)
        stream.bind(end)
        places.homes.update(zip(operation.results, results, strict=True))

    def _store_together(self, values: Mapping[Rows, Value], replaced: set[Value]) -> None:
        """Write code that copies values to rows of HBM, and waits for the copies.

        The copies have the effect of simultaneous ones. The values in ``replaced`` may lie in
        destination rows, so they are first moved to other rows.
        """
        places = self._places
        moved = {value: places.reserve(self._tilings[value].vectors)
                 for value in values.values() if value in replaced}
        for value, rows in moved.items():
            places.copy_to(value, rows)
        places.memory.wait_all()
        for rows, value in values.items():
            if value in moved:
                places.drop(value)
                places.homes[value] = moved[value]
            if places.homes.get(value) != rows:
                places.copy_to(value, rows)
