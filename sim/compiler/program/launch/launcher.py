"""Generates the code of kernels and exchanges.

For each, the code that starts the transfers of its operands comes first, then its own code.
"""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from sim.compiler.graph.ir import Operation, Value
from sim.compiler.kernels.products.dot import sent_early
from sim.compiler.machine import VmemBuffer
from sim.compiler.machine.emit import Code
from sim.compiler.machine.estimate import estimate, vector_operations
from sim.compiler.machine.ir import MachineCode
from sim.compiler.program.code.reserved import EXCHANGED
from sim.compiler.program.code.transfers import Peer, Rows, TransferWords
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.context import Context
from sim.compiler.program.control.halves import AHEAD, NOW
from sim.compiler.program.launch.buffers import KernelBuffers
from sim.compiler.program.launch.exchange import (
    NearExchange,
    make_target,
    near_exchange,
    sends,
    shared_value,
    take_shared,
)
from sim.compiler.program.launch.joiner import Joiner, Part
from sim.compiler.program.launch.kernel import KernelLowering, emit_kernel, lower
from sim.compiler.program.launch.prefetch import IN_PLACE, Prefetch, Upcoming
from sim.compiler.program.launch.records import Records
from sim.compiler.program.launch.rings import RingExchanges
from sim.compiler.program.launch.sections import Sections, divide
from sim.compiler.program.launch.sums import PodSums
from sim.compiler.program.places.places import Splat, VectorMemoryError
from sim.compiler.program.places.scalars import copy_scalars
from sim.errors import UnsupportedError

__all__ = ["Launcher"]


@dataclass(frozen=True)
class _Lowered:
    """A kernel whose code has been generated but not yet appended to the stream.

    Attributes
    ----------
    codes : list of (MachineCode, Code, int)
        The kernel on virtual registers, its code, and its predicted cycles; one such entry for
        each part of the kernel.
    sections : Sections
        These parts.
    used : list of VmemBuffer
        Buffers whose transfers must be complete before the kernel starts.
    own : list of VmemBuffer
        The kernel's scratch buffers.
    symbols : dict of str to Rows
        HBM rows that the kernel transfers itself, by the symbol for the first row's number.
    rows : int
        Number of HBM rows that the kernel transfers itself.
    sent : dict of str to TransferWords
        Descriptors of the transfers to another core that the kernel starts, by symbol.
    """

    codes: list[tuple[MachineCode, Code, int]]
    sections: Sections
    used: list[VmemBuffer]
    own: list[VmemBuffer]
    symbols: dict[str, Rows]
    rows: int
    sent: dict[str, TransferWords]


class Launcher:
    """Writes the code of kernels and exchanges.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and constants and tracks where values lie.

    Attributes
    ----------
    records : Records
        Records of the kernels and exchanges that have been written, in order.
    joiner : Joiner
        Writes the kernels, joined where that is predicted to be faster.
    received : dict of int to int
        Number of an exchange -> vector memory address of the value received from another core.
    sent : dict of int to callable
        Number of an exchange with cores of other chips -> function that takes the receiving core,
        a `Peer`, and returns the descriptor of the exchange's transfer, without its destination.
    sums : PodSums
        Writes sums over all devices of a pod.
    too_large : list of str
        Descriptions of operations that do not fit vector memory.
    stored : set of Value
        Results that kernels have copied to their destination rows themselves.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._tilings = context.tilings
        self._places = context.places
        self._stream = context.stream
        self._counted_rows = 0
        self.records = Records(context.config, context.places.memory.events)
        self.joiner = Joiner(context, self.records)
        self.received: dict[int, int] = {}
        self.sent: dict[int, Callable[[Peer], TransferWords]] = {}
        self.rings = RingExchanges(context)
        self.sums = PodSums(context, self.records)
        # Exchanges whose first parts products may send, by number, until their code is complete.
        self._near: dict[int, NearExchange] = {}
        self.too_large: list[str] = []
        self.stored: set[Value] = set()

    def kernel(self, operation: Operation, following: Sequence[Upcoming],
               dying: Set[Value], goes: Mapping[Value, Rows]) -> None:
        """Write the code of an operation's kernel.

        Parameters
        ----------
        operation : Operation
            The operation to compute.
        following : sequence of Upcoming
            The next operations; their operands are loaded during the kernel, if there is room.
        dying : set of Value
            Operands that are not used again; a result may take over the vectors of one.
        goes : mapping of Value to Rows
            HBM rows to which results are to be copied. The kernel may copy a result itself; then
            the result is added to `stored`.
        """
        near = self._sending(operation, following)
        lowered, lifted = self._make_room_and_lower(operation, dying, goes, near)
        if lowered is None:
            self._skip(operation, lifted)
            return
        # Prefetches must not delay the transfers that a kernel starts itself.
        if not lifted and not lowered.symbols:
            # Neither the results nor the value that is received can be saved yet.
            absent = *operation.results, *(near.operation.results if near is not None else ())
            Prefetch(self._context, following, lowered.own, dying, absent).write()
        for number, (machine, code, cycles) in enumerate(lowered.codes, 1):
            if number - 1 in lowered.sections.behind:
                self.sums.follow()
            self._places.memory.settle(lowered.used, first=number <= lowered.sections.early)
            self._places.memory.clock.run(cycles)
            self._places.memory.moved_rows += lowered.rows
            moved = self._places.memory.moved_rows
            [part] = lowered.sections.vectors[number - 1:number] or [range(1)]
            self.joiner.add(Part(machine, code, {**lowered.symbols, **lowered.sent}, KernelRecord(
                operation.kind, operation.location, len(code), cycles, moved - self._counted_rows,
                _products(operation), vector_operations(code, len(part))), cycles))
            self._counted_rows = moved
            if number == 1 and len(lowered.codes) == 2:
                self._share_first(operation, following)
            self.sums.passed(cycles)
            if lowered.sections.stored is not None:
                self._places.copy_to(operation.result, lowered.sections.stored, part)
        for buffer in lowered.own:
            self._places.memory.release(buffer)
        if lifted:
            self._places.restore(lifted)

    def _make_room_and_lower(self, operation: Operation, dying: Set[Value],
                             goes: Mapping[Value, Rows], near: NearExchange | None
                             ) -> tuple[_Lowered | None, dict[Value, VmemBuffer]]:
        """Lower an operation, and free vector memory for it step by step if necessary.

        ``dying`` are the operands that are not used again, and ``goes`` has the HBM rows to which
        results are to be copied. ``near``, if given, is an exchange whose first part the kernel may
        send. Return the kernel, or None if there is no room; and the pinned values that
        `Places.lift` has moved to HBM, for `Places.restore`.
        """
        try:
            return self._lower(operation, dying, goes, near), {}
        except VectorMemoryError:
            # A value must not be evicted before a sum in progress has computed it.
            if self.sums.uses({*operation.operands}):
                self.sums.finish()
                return self._make_room_and_lower(operation, dying, goes, near)
        except UnsupportedError:
            if not self.sums.running:
                raise
            # The steps of a sum may need too many registers in this kernel.
            self.sums.finish()
            return self._make_room_and_lower(operation, dying, goes, near)
        # If all values are evicted, the operands may fit, because there are no gaps between them.
        self._places.evict_all()
        with suppress(VectorMemoryError):
            return self._lower(operation, dying, goes), {}
        lifted = self._places.lift()
        with suppress(VectorMemoryError):
            return self._lower(operation, dying, goes), lifted
        if self.sums.running:
            self._places.restore(lifted)
            self.sums.finish()
            return self._make_room_and_lower(operation, dying, goes, near)
        return None, lifted

    def exchange(self, operation: Operation, following: Sequence[Operation]) -> None:
        """Write code that sends a value to another core, and receives one from another core.

        ``following`` are the operations after ``operation``.
        """
        places, number = self._places, operation.attributes["number"]
        [value], result, near = operation.operands, operation.result, None
        if operation.attributes.get("halves") in (AHEAD, NOW):
            source = places.load(value)
            near = self._near.pop(number, None) or shared_value(self._context, operation, source)
            self.received[number] = source.address
            take_shared(self._context, near)
            self.joiner.add(sends(near, source))
            return
        if operation.attributes["meeting"].ring == "core":
            near = self._near.pop(number, None) or near_exchange(self._context, operation)
        lifted: dict[Value, VmemBuffer] = {}
        places.lock((value, result))
        try:
            try:
                source, target = places.load(value), self._target(operation, near)
            except VectorMemoryError:
                lifted = places.lift()
                places.lock((value, result))
                source, target = places.load(value), self._target(operation, near)
        except VectorMemoryError:
            self._skip(operation, lifted)
            return
        finally:
            places.lock(())
        self.received[number] = target.address
        if near is not None:
            near.target = target
            places.memory.exchange(source, target, near.parts, near.amounts)
            self.joiner.add(sends(near, source))
        else:
            self._sends_far(operation, source, target)
        if lifted:
            places.restore(lifted)
        self.rings.invite_next(operation, following)

    def pod_sum(self, operation: Operation, dying: Set[Value], *, apart: bool) -> None:
        """Write code that sums values over all devices of a pod.

        ``dying`` are the operands that are not used again.
        With ``apart``, this may write only the first steps of the sum. `PodSums` then writes the
        other steps later, with kernels between them.
        """
        with suppress(VectorMemoryError):
            self.sums.write(operation, dying, apart=apart)
            return
        lifted = self._places.lift()
        try:
            self.sums.write(operation)
        except VectorMemoryError:
            self._skip(operation, lifted)
            return
        if lifted:
            self._places.restore(lifted)

    def _target(self, operation: Operation, near: NearExchange | None) -> VmemBuffer:
        """Return the vectors into which an exchange receives.

        ``near`` is the exchange, if it is between the cores of one chip; otherwise None.

        Raises
        ------
        VectorMemoryError
            If there is no room.
        """
        if near is None:
            return self.rings.target(operation)
        return near.target or self._places.make(operation.result)

    def _sending(self, operation: Operation, following: Sequence[Upcoming]
                 ) -> NearExchange | None:
        """Return the exchange whose first part the kernel of an operation may send, or None.

        There is one only if the operation is a product, and the first of ``following``, which are
        the next operations, exchanges its result between the cores of a chip. The kernel may
        send the first part on one core and not on the other, but both cores must divide the result
        into the same parts. So `exchange` uses the parts that this function determines, even if
        the kernel sends none. While a sum over the pod is in
        progress, kernels send nothing, because the sum needs the semaphore of the first part for
        transfers of its own.
        """
        exchange = following[0].operation if following else None
        if (operation.kind != "dot_general" or exchange is None or exchange.kind != "exchange"
                or exchange.operands[0] is not operation.result or not self._context.alike
                or exchange.attributes["meeting"].ring != "core"):
            return None
        early = sent_early(operation, self._tilings, self._config)
        near = self._near[exchange.attributes["number"]] = near_exchange(
            self._context, exchange, early)
        if self.sums.running or len(near.parts) == 1 or near.parts[0][1].stop != early:
            return None
        return near

    def _share_first(self, operation: Operation, following: Sequence[Upcoming]) -> None:
        """Append code by which the cores share the first part of a kernel's result, if they do so.

        They do if the first of ``following``, which are the next operations, shares it.
        """
        share = following[0].operation if following else None
        if share is not None and share.attributes.get("halves") == AHEAD and (
                share.operands[0] in operation.results):
            source = self._places.load(share.operands[0])
            near = self._near[share.attributes["number"]] = shared_value(
                self._context, share, source)
            self.joiner.add(sends(near, source, 1))

    def _sends_far(self, operation: Operation, source: VmemBuffer, target: VmemBuffer) -> None:
        """Write the code that starts to send ``source`` to a core of another chip.

        ``target`` is the buffer of the value that is received.
        """
        if operation.attributes["meeting"].link is None:
            self._places.memory.exchange(source, target, [(EXCHANGED, range(source.vectors))],
                                         {EXCHANGED: 2})
        first = self._stream.here
        self._stream.stamp()
        self.sent[operation.attributes["number"]] = self.rings.send(operation, source, target)
        rows = source.vectors * self._config.sublanes
        self.records.add(KernelRecord(operation.kind, operation.location,
                                      self._stream.here - first, rows, rows, 0, 0), first)

    def _inherited(self, operation: Operation, dying: Set[Value]) -> dict[Value, Value]:
        """Choose results that take over the vectors of an operand that is not used again.

        ``dying`` has the operands that are not used again. Return a mapping from result to operand;
        both have the same tiling. This is safe for an elementwise kernel, because it reads each
        vector of the operand before it stores the same vector of the result, unless it computes a
        vector twice. In a loop, the next value of a carried value preferably takes over the vectors
        of its current value.
        """
        if operation.kind not in IN_PLACE or self.sums.repeats:
            return {}
        updates = operation.kind == "dynamic_update_slice"
        able = [value for value in (operation.operands[:1] if updates else operation.operands)
                if operation.operands.count(value) == 1 and value in dying
                and not isinstance(self._places.homes.get(value), Splat)
                and not self._places.memory.is_leaving(self._places.buffer(value))
                and not self.sums.uses({value})]
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
        """Record that an operation is too large; give its results homes so that planning continues.

        ``lifted`` are the pinned values to restore.
        """
        values = dict.fromkeys((*operation.operands, *operation.results))
        needed = sum(self._tilings[value].vectors for value in values)
        where = f" at {operation.location}" if operation.location else ""
        self.too_large.append(f"{operation.kind}{where} needs {needed} vectors for its operands "
                              f"and results, and some for scratch")
        for value in operation.results:
            self._places.homes[value] = self._places.reserve(self._tilings[value].vectors)
        if lifted:
            self._places.restore(lifted)

    def _lower(self, operation: Operation, dying: Set[Value], goes: Mapping[Value, Rows],
               near: NearExchange | None = None) -> _Lowered:
        """Allocate a kernel's vectors and generate its code.

        ``dying`` are the operands that are not used again, and ``goes`` has the HBM rows to which
        results are to be copied. ``near``, if given, is an exchange whose first part the kernel may
        send; its target is allocated if no value must be evicted for it.

        Raises
        ------
        VectorMemoryError
            If there is no room. The state is then as before, except that values were evicted.
        """
        places, taken = self._places, KernelBuffers(self._context, operation, goes)
        before = self.sums.saved()
        places.lock((*operation.operands, *operation.results))
        try:
            taken.take_operands()
            inherited = self._inherited(operation, dying)
            taken.take_results(inherited)
            lowering, reads = self._lowering(operation, taken)
            if near is not None and make_target(self._context, near):
                places.lock((*operation.operands, *operation.results, *near.operation.results))
                lowering.send = partial(near.start, lowering.builder,
                                        taken.places[operation.result].buffer, 1)
            sections = divide(self._context, self.sums, operation, lowering)
            lowering.section = sections.vectors[0] if sections.vectors else None
            lowering.meanwhile = self.sums.meanwhile(lowering.builder)
            codes = [self._code(operation, lowering, taken)]
            transferred = lowering.transferred
            for section in sections.vectors[1:]:
                lowering, _ = self._lowering(operation, taken)
                lowering.section = section
                codes.append(self._code(operation, lowering, taken))
            taken.load_absent(transferred.values())
            copy_scalars(places, self._config, reads)
            for result, value in inherited.items():
                places.inherit(value, result)
        except (VectorMemoryError, UnsupportedError):
            self.sums.restore(before)
            taken.give_back()
            if near is not None and near.target is not None:
                places.unmake(near.operation.result)
                near.forget()
            raise
        finally:
            places.lock(())
        self.stored.update(value for value in transferred.values() if value in goes)
        if sections.stored is not None:
            self.stored.add(operation.result)
        vectors = sum(self._tilings[value].vectors for value in transferred.values())
        used = [taken.places[value].buffer for value in operation.operands]
        return _Lowered(codes, sections, [*used, *taken.own], taken.own,
                        {symbol: taken.homes[value] for symbol, value in transferred.items()},
                        vectors * self._config.sublanes,
                        {} if near is None else dict(near.symbols))

    def _code(self, operation: Operation, lowering: KernelLowering, taken: KernelBuffers
              ) -> tuple[MachineCode, Code, int]:
        """Write a kernel; return its machine code, its bundles, and its predicted cycles.

        ``taken`` has the kernel's buffers.
        """
        lower(operation, lowering)
        self._stream.reads_window |= lowering.reads_window
        machine, code = emit_kernel(self._config, operation, lowering.builder,
                              partial(taken.allocate, "spilled"))
        cycles = estimate(code, len(lowering.section or range(1)))
        return machine, code, cycles if lowering.cycles is None else lowering.cycles

    def _lowering(self, operation: Operation, taken: KernelBuffers
                  ) -> tuple[KernelLowering, list[Value]]:
        """Make an operation's `KernelLowering`, and the list `KernelLowering.reads`.

        ``taken`` has the kernel's buffers. The lowering rule later appends to the list.
        """
        places, constants = self._places, self._context.constants
        known = {value: home.word for value in operation.operands
                 if isinstance(home := places.homes.get(value), Splat)}
        reads: list[Value] = []
        lowering = KernelLowering(
            self._config, taken.places, taken.allocate,
            lambda buffer, words: places.memory.load_rows(constants.rows(words), buffer),
            known, reads, self._context.counters.values, taken.homes)
        lowering.memory = self._context.memory
        lowering.is_free = lambda vectors: places.memory.free.smallest(vectors) is not None
        return lowering, reads


def _products(operation: Operation) -> int:
    """Return the number of multiplications of a product or convolution; 0 for other operations."""
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
