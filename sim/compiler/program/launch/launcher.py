"""Writes kernels and exchanges: their operands are brought to vector memory, and code follows."""

import math
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from sim.compiler.graph.ir import Operation, Value
from sim.compiler.kernels.elements import table
from sim.compiler.kernels.products.phases import PhaseConvolution
from sim.compiler.machine import VmemBuffer, emit
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.emit import Code
from sim.compiler.machine.estimate import estimate, vector_operations
from sim.compiler.machine.text import dump_kernel
from sim.compiler.passes import dump_folder
from sim.compiler.program.code.transfers import Rows
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.context import Context
from sim.compiler.program.launch.buffers import KernelBuffers
from sim.compiler.program.launch.kernel import KernelLowering, lower
from sim.compiler.program.places.places import Splat, VectorMemoryError
from sim.compiler.program.tilings import CONTROL

__all__ = ["AHEAD", "Launcher"]

AHEAD = 10
"""Operations whose operands are loaded while a kernel runs."""

_IN_PLACE = frozenset({"dynamic_update_slice", "fusion", *table.KINDS})
"""Kinds whose result may take the vectors of an operand."""


@dataclass(frozen=True)
class _Lowered:
    """A kernel.

    Attributes
    ----------
    code : Code
    used : list of VmemBuffer
        Buffers that must have arrived.
    own : list of VmemBuffer
        Buffers for the kernel alone.
    symbols : dict of str to Rows
        Rows of HBM of what it transfers itself, by the symbol of the first one's number.
    rows : int
        Number of these rows.
    cycles : int
        Predicted cycles.
    """

    code: Code
    used: list[VmemBuffer]
    own: list[VmemBuffer]
    symbols: dict[str, Rows]
    rows: int
    cycles: int


class Launcher:
    """Writes the code of kernels and exchanges.

    Parameters
    ----------
    context : Context
        Takes the code and constants, and places of values.

    Attributes
    ----------
    records : list of KernelRecord
        What has been written, in order.
    received : dict of int to int
        Addresses of what comes from the other core, by the exchange's number.
    too_large : list of str
        Operations that vector memory has no room for.
    stored : set of Value
        Results that kernels have copied to where they go.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._tilings = context.tilings
        self._places = context.places
        self._stream = context.stream
        self._counted_rows = 0
        self.records: list[KernelRecord] = []
        self.received: dict[int, int] = {}
        self.too_large: list[str] = []
        self.stored: set[Value] = set()

    def kernel(self, operation: Operation, following: Sequence[Operation],
               dying: Set[Value], goes: Mapping[Value, Rows]) -> None:
        """Write the code of an operation's kernel.

        Parameters
        ----------
        operation : Operation
            What to compute.
        following : sequence of Operation
            Operations whose operands are loaded meanwhile, if there is room.
        dying : set of Value
            Operands that are not used again; a result may take the vectors of one.
        goes : mapping of Value to Rows
            Where results are to be copied; the kernel may do that (`stored`).
        """
        lowered, lifted = self._make_room_and_lower(operation, dying, goes)
        if lowered is None:
            self._skip(operation, lifted)
            return
        # A kernel's own transfers come first.
        if not lifted and not lowered.symbols:
            self._prefetch(following)
        self._places.memory.settle(lowered.used)
        self._stream.stamp()
        self._stream.kernel(lowered.code, lowered.symbols)
        self._places.memory.moved_rows += lowered.rows
        moved = self._places.memory.moved_rows
        self.records.append(KernelRecord(operation.kind, operation.location, len(lowered.code),
                                         lowered.cycles, moved - self._counted_rows,
                                         _products(operation), vector_operations(lowered.code)))
        self._counted_rows = moved
        for buffer in lowered.own:
            self._places.memory.release(buffer)
        if lifted:
            self._places.restore(lifted)

    def _make_room_and_lower(self, operation: Operation, dying: Set[Value],
                             goes: Mapping[Value, Rows]
                             ) -> tuple[_Lowered | None, dict[Value, VmemBuffer]]:
        """Write a kernel; None if there is no room. Also return what `Places.lift` returned."""
        with suppress(VectorMemoryError):
            return self._lower(operation, dying, goes), {}
        # Without gaps between operands there may be room.
        self._places.evict_all()
        with suppress(VectorMemoryError):
            return self._lower(operation, dying, goes), {}
        lifted = self._places.lift()
        with suppress(VectorMemoryError):
            return self._lower(operation, dying, goes), lifted
        return None, lifted

    def _prefetch(self, following: Sequence[Operation]) -> None:
        """Start to load operands of the next operations.

        Those of later ones only where the results and the scratch of those before leave room.
        """
        places, reserved = self._places, 0
        for operation in following:
            if operation.kind in CONTROL:
                return
            if operation.attributes.get("in_hbm"):
                continue
            for value in dict.fromkeys(operation.operands):
                vectors = self._tilings[value].vectors
                if reserved and places.memory.free_vectors < vectors + reserved:
                    return
                if not places.prefetch(value):
                    return  # what comes later must not take the room
            reserved += sum(self._tilings[value].vectors for value in operation.results)
            if operation.kind == "phase_convolution":
                way = PhaseConvolution(operation, self._config,
                                       self._tilings[operation.operands[1]])
                reserved += 0 if way.is_direct else way.vectors

    def exchange(self, operation: Operation) -> None:
        """Write code that sends a value to the other core, and receives another one."""
        places, number = self._places, operation.attributes["number"]
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
            self._skip(operation, lifted)
            return
        finally:
            places.lock(())
        self.received[number] = target.address
        before = self._stream.here
        self._stream.stamp()
        places.memory.exchange(source, target, number)
        rows = source.vectors * self._config.sublanes
        self.records.append(KernelRecord(operation.kind, operation.location,
                                         self._stream.here - before, rows, rows, 0, 0))
        if lifted:
            places.restore(lifted)

    def _inherited(self, operation: Operation, dying: Set[Value]) -> dict[Value, Value]:
        """Operands whose vectors results take, because they are not used again, by result.

        An elementwise kernel reads a vector of an operand of its results' tiling once, before it
        stores that vector of any result. The next value that a loop carries takes the vectors of
        the one before.
        """
        if operation.kind not in _IN_PLACE:
            return {}
        updates = operation.kind == "dynamic_update_slice"
        able = [value for value in (operation.operands[:1] if updates else operation.operands)
                if operation.operands.count(value) == 1 and value in dying
                and not isinstance(self._places.homes.get(value), Splat)]
        before, found = self._places.before, dict[Value, Value]()
        carried = set(before.values())
        for result in sorted(operation.results, key=lambda value: before.get(value) not in able):
            fitting = [value for value in able if self._tilings[value] == self._tilings[result]]
            if fitting and result not in self._places.assigned:
                same = before.get(result)
                found[result] = same if same in fitting else min(fitting, key=carried.__contains__)
                able.remove(found[result])
        return found

    def _skip(self, operation: Operation, lifted: dict[Value, VmemBuffer]) -> None:
        """Note that an operation is too large, and go on as if it had been written."""
        values = dict.fromkeys((*operation.operands, *operation.results))
        needed = sum(self._tilings[value].vectors for value in values)
        where = f" at {operation.location}" if operation.location else ""
        self.too_large.append(f"{operation.kind}{where} needs {needed} vectors for its operands "
                              f"and results, and some for itself")
        for value in operation.results:
            self._places.homes[value] = self._places.reserve(self._tilings[value].vectors)
        if lifted:
            self._places.restore(lifted)

    def _lower(self, operation: Operation, dying: Set[Value],
               goes: Mapping[Value, Rows]) -> _Lowered:
        """Write a kernel.

        Raises
        ------
        VectorMemoryError
            If there is no room; everything is as before then, but for values that were evicted.
        """
        places, taken = self._places, KernelBuffers(self._context, operation, goes)
        places.lock((*operation.operands, *operation.results))
        try:
            taken.take_operands()
            inherited = self._inherited(operation, dying)
            taken.take_results(inherited)
            lowering, reads = self._lowering(operation, taken)
            lower(operation, lowering)
            self._stream.reads_window |= lowering.reads_window
            transferred = lowering.transferred
            taken.load_absent(transferred.values())
            code = self._emit(operation, lowering.builder)
            places.copy_scalars(reads, self._context.memory.window.start)
            for result, value in inherited.items():
                places.inherit(value, result)
        except VectorMemoryError:
            taken.give_back()
            raise
        finally:
            places.lock(())
        self.stored.update(value for value in transferred.values() if value in goes)
        vectors = sum(self._tilings[value].vectors for value in transferred.values())
        used = [taken.places[value].buffer for value in operation.operands]
        return _Lowered(code, [*used, *taken.own], taken.own,
                        {symbol: taken.homes[value] for symbol, value in transferred.items()},
                        vectors * self._config.sublanes,
                        estimate(code) if lowering.cycles is None else lowering.cycles)

    def _lowering(self, operation: Operation, taken: KernelBuffers
                  ) -> tuple[KernelLowering, list[Value]]:
        """The argument of a rule, and a list that takes the operands it reads as scalars."""
        places, constants = self._places, self._context.constants
        known = {value: home.word for value in operation.operands
                 if isinstance(home := places.homes.get(value), Splat)}
        reads: list[Value] = []
        lowering = KernelLowering(
            self._config, taken.places, taken.allocate,
            lambda buffer, words: places.memory.load_rows(constants.rows(words), buffer),
            known, reads, self._context.counters.values, taken.homes)
        lowering.is_free = lambda vectors: places.memory.free.smallest(vectors) is not None
        return lowering, reads

    def _emit(self, operation: Operation, builder: Builder) -> Code:
        machine = builder.finish()
        code = emit(machine, self._config)
        if (folder := dump_folder()) is not None:
            dump_kernel(folder / "kernels", operation.kind, machine, code)
        return code


def _products(operation: Operation) -> int:
    """Multiplications that a product or a convolution asks for."""
    if operation.kind == "dot_general":
        lhs, contracted = operation.operands[0], operation.attributes["lhs_contracting_dimensions"]
        return operation.result.type.size * math.prod(lhs.shape[at] for at in contracted)
    if operation.kind == "line_convolution":
        return operation.result.type.size * operation.operands[1].shape[1]
    if operation.kind in ("convolution", "phase_convolution"):
        kernel = operation.operands[1]
        features = kernel.shape[operation.attributes["kernel_output_feature_dimension"]]
        return operation.result.type.size * kernel.type.size // features
    return 0
