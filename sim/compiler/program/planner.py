"""Plans a program: the order of kernels and transfers, and the code of loops and conditionals."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.isa import Slot
from sim.asm.operands import s
from sim.compiler.graph.ir import Graph, Operation, Value
from sim.compiler.kernels.lowering import Place
from sim.compiler.machine import VmemBuffer, emit
from sim.compiler.machine.emit import Code
from sim.compiler.machine.estimate import estimate
from sim.compiler.machine.text import dump_kernel
from sim.compiler.passes import dump_folder
from sim.compiler.program.code.overlay import CODE
from sim.compiler.program.code.stream import Label, Stream
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.control.counted import Affine, Counted, counted
from sim.compiler.program.control.loops import closed, move_vectors, values_to_keep
from sim.compiler.program.kernel import KernelLowering, lower
from sim.compiler.program.places.places import Home, Places, Splat, VectorMemoryError
from sim.compiler.program.places.scalars import ScalarMemory
from sim.compiler.program.places.transfers import Rows
from sim.compiler.program.tilings import CONTROL, Tilings
from sim.compiler.words import to_words

__all__ = ["Planner"]

Words = npt.NDArray[np.uint32]

_CONDITION = 30
"""Scalar register of conditions; kernels do not use it."""


class Planner:
    """Turns a graph with tilings into code.

    Parameters
    ----------
    config : Config
        The chip.
    tilings : dict of Value to Tiling
        Tilings of all values.
    """

    def __init__(self, config: Config, tilings: Tilings) -> None:
        self._config = config
        self._tilings = tilings
        self._memory = ScalarMemory(config)
        self.stream = Stream()
        self.places = Places(self.stream, config, tilings)
        self.kernels: list[KernelRecord] = []
        self.received: dict[int, int] = {}
        """Addresses of what comes from the other core, by the exchange's number."""
        self._constants: list[Words] = []
        self._constant_rows: dict[bytes, int] = {}
        self._next_row = 0
        self._counters: dict[Value, tuple[int, Affine]] = {}
        self._depth = 0
        self._dying: set[Value] = set()
        self._fixed: set[Value] = set()
        """Inputs of conditions: the bodies use their vectors."""
        self._counted_rows = 0

    @property
    def constants(self) -> Words:
        """All constants, shape (rows, lanes)."""
        empty = np.empty((0, self._config.lanes), np.uint32)
        return np.concatenate([empty, *self._constants])

    def program(self, graph: Graph, inputs: Sequence[Rows],
                outputs: Sequence[Rows | None]) -> None:
        """Write the whole program.

        Parameters
        ----------
        graph : Graph
            What to compute.
        inputs, outputs : sequence of Rows
            Where the inputs lie, and where the outputs go; None for one that goes nowhere.
        """
        self.places.homes.update(zip(graph.inputs, inputs, strict=True))
        wanted: dict[Value, list[Rows]] = {}
        for value, rows in zip(graph.outputs, outputs, strict=True):
            wanted.setdefault(value, []).extend([] if rows is None else [rows])
        self._block(graph, wanted)
        self.places.wait_all()
        self.stream.halt()

    # ---- blocks

    def _block(self, graph: Graph, early: Mapping[Value, Sequence[Rows]]) -> None:
        """Write the code of a graph's operations; copy the values of ``early`` to rows of HBM."""
        places, operations = self.places, graph.operations
        uses = _uses(graph, early)
        for value in graph.inputs:
            self._copy(value, early.get(value, ()))
        for index, operation in enumerate(operations):
            places.distance = partial(_distance, uses, index)
            self._dying = {value for value in operation.operands
                           if uses[value][-1] == index and value not in self._fixed}
            self._operation(operation, operations[index + 1:index + 2],
                            {value for value, at in uses.items() if at[-1] > index}
                            if operation.kind in CONTROL else set())
            for value in operation.results:
                self._copy(value, early.get(value, ()))
            for value in (*operation.operands, *operation.results):
                if uses.get(value, (-1,))[-1] <= index:
                    places.drop(value)

    def _operation(self, operation: Operation, following: Sequence[Operation],
                   later: set[Value]) -> None:
        """Write an operation, with the one that follows; ``later`` are the values used then."""
        if operation.kind == "constant":
            self.places.homes[operation.result] = self._constant_home(operation)
        elif operation.kind == "while":
            self._while(operation, later)
        elif operation.kind == "case":
            self._case(operation, later)
        elif operation.kind == "exchange":
            self._exchange(operation)
        else:
            self._kernel(operation, following)

    def _copy(self, value: Value, destinations: Sequence[Rows]) -> None:
        for rows in destinations:
            self.places.copy_to(value, rows)

    def _constant_home(self, operation: Operation) -> Home:
        value = operation.result
        words = to_words(np.asarray(operation.attributes["value"]))
        first = words.reshape(-1)[0]
        if (words == first).all():
            return Splat(int(first))
        return self._constant(self._tilings[value].pack(words))

    def _constant(self, vectors: Words) -> Rows:
        """Rows of HBM that hold constant vectors."""
        key = vectors.tobytes()
        if key not in self._constant_rows:
            rows = vectors.reshape(-1, self._config.lanes)
            self._constants.append(rows)
            self._constant_rows[key] = self._next_row
            self._next_row += len(rows)
        return Rows(CODE, self._constant_rows[key])

    # ---- kernels

    def _kernel(self, operation: Operation, following: Sequence[Operation]) -> None:
        """Write the code of an operation's kernel, with its operands in vector memory."""
        lifted: dict[Value, VmemBuffer] = {}
        try:
            code, used, own = self._lower(operation)
        except VectorMemoryError:
            # Without gaps between operands there may be room.
            self.places.evict_all()
            try:
                code, used, own = self._lower(operation)
            except VectorMemoryError:
                lifted = self.places.lift()
                try:
                    code, used, own = self._lower(operation)
                except VectorMemoryError:
                    raise MemoryError(self._too_large(operation)) from None
        for next_operation in following if not lifted else ():
            for value in next_operation.operands:
                self.places.prefetch(value)
        self.places.settle(used)
        self.stream.stamp()
        self.stream.kernel(code)
        moved = self.places.moved_rows
        self.kernels.append(KernelRecord(operation.kind, operation.location, len(code),
                                         estimate(code), moved - self._counted_rows,
                                         _products(operation)))
        self._counted_rows = moved
        for buffer in own:
            self.places.release(buffer)
        if lifted:
            self.places.restore(lifted)

    def _exchange(self, operation: Operation) -> None:
        """Write code that sends a value to the other core, and receives another one."""
        places, number = self.places, operation.attributes["number"]
        [value], result = operation.operands, operation.result
        lifted: dict[Value, VmemBuffer] = {}
        places.lock((value, result))
        try:
            try:
                source, target = places.load(value), places.make(result)
            except VectorMemoryError:
                lifted = places.lift()
                places.lock((value, result))
                source, target = places.load(value), places.make(result)
        except VectorMemoryError:
            raise MemoryError(self._too_large(operation)) from None
        finally:
            places.lock(())
        self.received[number] = target.address
        before = self.stream.here
        self.stream.stamp()
        places.exchange(source, target, number)
        rows = source.vectors * self._config.sublanes
        self.kernels.append(KernelRecord(operation.kind, operation.location,
                                         self.stream.here - before, rows, rows, 0))
        if lifted:
            places.restore(lifted)

    def _inherited(self, operation: Operation) -> Value | None:
        """The operand whose vectors the result takes, because it is not used again."""
        if operation.kind != "dynamic_update_slice":
            return None
        value = operation.operands[0]
        if (operation.operands.count(value) > 1 or value not in self._dying
                or self._tilings[value] != self._tilings[operation.result]):
            return None
        return value

    def _too_large(self, operation: Operation) -> str:
        values = dict.fromkeys((*operation.operands, *operation.results))
        needed = sum(self._tilings[value].vectors for value in values)
        where = f" at {operation.location}" if operation.location else ""
        return (f"{operation.kind}{where} needs {needed} vectors of vector memory for its operands "
                f"and results, and some for itself; the chip has {self._config.vmem_vectors}")

    def _lower(self, operation: Operation) -> tuple[Code, list[VmemBuffer], list[VmemBuffer]]:
        """Code of a kernel, the buffers that it needs to have arrived, and those of its own."""
        places = self.places
        places.lock((*operation.operands, *operation.results))
        own: list[VmemBuffer] = []
        made: list[Value] = []
        reads: list[Value] = []
        try:
            at: dict[Value, Place] = {}
            for value in operation.operands:
                at[value] = Place(places.load(value), self._tilings[value])
            inherited = self._inherited(operation)
            if inherited is not None:
                at[operation.result] = at[inherited]
            for value in operation.results if inherited is None else ():
                at[value] = Place(places.make(value), self._tilings[value])
                made.append(value)

            def allocate(name: str, vectors: int) -> VmemBuffer:
                buffer = places.allocate(name, vectors)
                own.append(buffer)
                return buffer

            lowering = KernelLowering(
                self._config, at, allocate,
                lambda buffer, words: places.load_rows(self._constant(words), buffer),
                {value: home.word for value in operation.operands
                 if isinstance(home := places.homes.get(value), Splat)}, reads, self._counters)
            lower(operation, lowering)
            machine = lowering.builder.finish()
            code = emit(machine, self._config)
            if (folder := dump_folder()) is not None:
                dump_kernel(folder / "kernels", operation.kind, machine, code)
            places.copy_scalars(reads, self._memory.window.start)
            if inherited is not None:
                places.inherit(inherited, operation.result)
        except VectorMemoryError:
            for value in made:
                places.drop(value)
            for buffer in own:
                places.release(buffer)
            raise
        finally:
            places.lock(())
        return code, [*(at[value].buffer for value in operation.operands), *own], own

    # ---- control flow: where code branches, values are in HBM or have a fixed place

    def _while(self, operation: Operation, later: set[Value]) -> None:
        """Write a loop. What it carries stays in vector memory, or in rows of HBM of its own."""
        places, stream = self.places, self.stream
        condition, body = operation.regions
        loop = self._count(operation)
        buffers, rows = self._carried(operation, later)
        known = set(places.homes)
        again, end = stream.label("again"), stream.label("end")
        if loop is not None:
            self._set_counter(loop)
            stream.bind(again)
        else:
            stream.bind(again)
            self._enter(condition, buffers, rows)
            self._fixed.update(condition.inputs)
            self._block(condition, {})
            places.read_scalar(condition.outputs[0], _CONDITION, self._memory.window.start)
            places.evict_all(lambda value: False)
            self._leave(condition, buffers, known)
            stream.branch("beq", _CONDITION, 0, end)
        self._enter(body, buffers, rows)
        self._block(body, {})
        self._store_together(
            {to: body.outputs[number] for number, to in rows.items()
             if body.outputs[number] is not body.inputs[number]}, set(body.inputs))
        self._renew(body, buffers)
        self._leave(body, buffers, known)
        if loop is not None:
            self._advance_counter(loop, again)
        else:
            stream.jump(again)
        stream.bind(end)
        for number, value in enumerate(operation.results):
            if number in rows:
                places.homes[value] = rows[number]
            else:
                places.put(value, buffers[number])

    def _count(self, operation: Operation) -> Counted | None:
        """Recognise a loop that counts, if there is a word for its counter."""
        def known(value: Value) -> int | None:
            home = self.places.homes.get(value)
            return home.word if isinstance(home, Splat) else None

        if self._depth == len(self._memory.counters):
            return None
        return counted(operation, known)

    def _set_counter(self, loop: Counted) -> None:
        """Write the start of a loop that counts."""
        address = self._memory.counters[self._depth]
        self._depth += 1
        self._counters.update((value, (address, affine)) for value, affine in loop.values.items())
        register = s[_CONDITION]
        self.stream.bundle((Slot.S0, "add", (register, s[0], loop.first)))
        self.stream.bundle((Slot.S0, "store", (register, s[0], address)))

    def _advance_counter(self, loop: Counted, again: Label) -> None:
        """Write the end of a loop that counts: the next iteration, if there is one."""
        self._depth -= 1
        address, register = self._memory.counters[self._depth], s[_CONDITION]
        self.stream.bundle((Slot.S0, "load", (register, s[0], address)))
        self.stream.bundle((Slot.S0, "add", (register, register, 1)))
        self.stream.bundle((Slot.S0, "store", (register, s[0], address)))
        self.stream.branch("blt", _CONDITION, loop.limit, again)

    def _carried(self, operation: Operation, later: set[Value]
                 ) -> tuple[dict[int, VmemBuffer], dict[int, Rows]]:
        """Copy what a loop carries to its places: buffers of vector memory, or rows of HBM.

        The buffer of an operand that is not used again becomes that of the carried value.
        """
        places, operands, body = self.places, operation.operands, operation.regions[1]
        places.wait_all()
        dying = [number for number, value in enumerate(operands)
                 if value not in later and operands.count(value) == 1]
        buffers = {number: buffer for number in dying
                   if (buffer := places.take(operands[number])) is not None}
        taken = dict(buffers)
        places.evict_all(lambda value: value in later or value in operands)
        size = {number: self._tilings[value].vectors for number, value in enumerate(operands)}
        kept = values_to_keep(operation, self._tilings, places.free_vectors
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
                places.release(buffers.pop(number))
        rows = {number: places.reserve(size[number]) for number in size if number not in kept}
        for number, to in rows.items():
            places.copy_to(operands[number], to)
        places.evict_all(later.__contains__)
        self._fill({buffer: operands[number] for number, buffer in buffers.items()
                    if number not in taken})
        return buffers, rows

    def _fill(self, values: Mapping[VmemBuffer, Value]) -> None:
        """Copy values to buffers, as if at once, and wait."""
        places = self.places
        moves = {buffer: source for buffer, value in values.items()
                 if (source := places.buffer(value)) is not None}
        places.wait_all()
        code = move_vectors(moves, self._config)
        if code is not None:
            self.stream.kernel(code)
        for buffer, value in values.items():
            if buffer not in moves:
                places.load_to(value, buffer)
        places.wait_all()
        places.settle(values)

    def _enter(self, region: Graph, buffers: Mapping[int, VmemBuffer],
               rows: Mapping[int, Rows]) -> None:
        """Say where the inputs of a loop's region lie."""
        for number, value in enumerate(region.inputs):
            if number in rows:
                self.places.homes[value] = rows[number]
            else:
                self.places.pin(value, buffers[number])

    def _leave(self, region: Graph, buffers: Mapping[int, VmemBuffer], known: set[Value]) -> None:
        """Forget what holds in a loop's region only."""
        for number in buffers:
            self.places.unpin(buffers[number])
        self._forget(known)

    def _forget(self, known: set[Value]) -> None:
        """Forget homes of pinned values that code has written which need not have run."""
        for value in self.places.pinned:
            if value not in known:
                self.places.homes.pop(value, None)

    def _renew(self, body: Graph, buffers: Mapping[int, VmemBuffer]) -> None:
        """Copy the next values of what a loop carries to their buffers; empty the rest."""
        self._fill({buffer: body.outputs[number] for number, buffer in buffers.items()
                    if body.outputs[number] is not body.inputs[number]})
        self.places.evict_all(lambda value: False)

    def _case(self, operation: Operation, later: set[Value]) -> None:
        """Write a conditional. Its results lie in rows of HBM of their own."""
        places, stream = self.places, self.stream
        index, *operands = operation.operands
        places.read_scalar(index, _CONDITION, self._memory.window.start)
        for value in operands:
            places.save(value)
        places.evict_all(later.__contains__)
        known = set(places.homes)
        results = [places.reserve(self._tilings[value].vectors) for value in operation.results]
        labels = [stream.label("branch") for _ in operation.regions]
        for number, label in enumerate(labels[:-1]):
            stream.branch("beq", _CONDITION, number, label)
        stream.jump(labels[-1])
        end = stream.label("end")
        for region, label in zip(operation.regions, labels, strict=True):
            stream.bind(label)
            places.homes.update((value, places.homes[operand]) for value, operand
                                in zip(region.inputs, operands, strict=True))
            self._block(region, {})
            self._store_together(dict(zip(results, region.outputs, strict=True)), set())
            places.evict_all(lambda value: False)
            self._forget(known)
            stream.jump(end)
        stream.bind(end)
        places.homes.update(zip(operation.results, results, strict=True))

    def _store_together(self, values: Mapping[Rows, Value], replaced: set[Value]) -> None:
        """Copy values to rows of HBM, as if at once.

        ``replaced`` are values that may lie in some of these rows.
        """
        places = self.places
        moved = {value: places.reserve(self._tilings[value].vectors)
                 for value in values.values() if value in replaced}
        for value, rows in moved.items():
            places.copy_to(value, rows)
        places.wait_all()
        for rows, value in values.items():
            if value in moved:
                places.drop(value)
                places.homes[value] = moved[value]
            places.copy_to(value, rows)


def _uses(graph: Graph, early: Mapping[Value, Sequence[Rows]]) -> dict[Value, list[int]]:
    """The operations that use each value, by index; the graph's end uses what is not ``early``."""
    uses: dict[Value, list[int]] = {}
    for index, operation in enumerate(graph.operations):
        for value in operation.operands:
            uses.setdefault(value, []).append(index)
    for value in graph.outputs:
        if value not in early:
            uses.setdefault(value, []).append(len(graph.operations))
    return uses


def _distance(uses: Mapping[Value, Sequence[int]], index: int, value: Value) -> int:
    """Index of the next operation that uses a value."""
    return next((use for use in uses.get(value, ()) if use >= index), 1 << 30)


def _products(operation: Operation) -> int:
    """Multiplications that a product or a convolution asks for."""
    if operation.kind == "dot_general":
        lhs, contracted = operation.operands[0], operation.attributes["lhs_contracting_dimensions"]
        return operation.result.type.size * math.prod(lhs.shape[at] for at in contracted)
    if operation.kind == "convolution":
        kernel = operation.operands[1]
        features = kernel.shape[operation.attributes["kernel_output_feature_dimension"]]
        return operation.result.type.size * kernel.type.size // features
    return 0
