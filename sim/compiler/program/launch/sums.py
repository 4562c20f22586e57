"""Writes the code of sums over all cores of a pod; their operands are in vector memory."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.streamed import (
    Semaphores,
    StreamedSum,
    image_words,
    next_chips,
    sum_image,
)
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.graph.torus import Torus
from sim.compiler.kernels.elementwise import is_flat
from sim.compiler.kernels.lowering import Meanwhile, Place
from sim.compiler.machine import VmemBuffer, emit
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.estimate import estimate
from sim.compiler.program.code.reserved import (
    BLOCK_READ,
    BLOCK_WRITTEN,
    EXCHANGED,
    FREE,
    LINKS,
)
from sim.compiler.program.code.transfers import Rows, Vectors, scalar_words
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.context import Context
from sim.compiler.program.launch.kernel import KernelLowering
from sim.compiler.program.launch.records import Records
from sim.compiler.program.places.meeting import DeviceSum

__all__ = ["PodSums", "Running", "connect_sums"]

_SEMAPHORES = Semaphores(LINKS, FREE, BLOCK_READ, BLOCK_WRITTEN, EXCHANGED)
"""Kernels that run between the steps of a sum use none of these semaphores."""
_LEFT = 16
"""Minimum number of words of scalar memory for kernels while a sum is in progress."""
_REGISTERS = 8
"""Maximum number of vector registers that a sum's step fills by loads, if it runs in a product."""
_VECTOR_CYCLES, _PART = 2, 64
"""Estimated cycles of an elementwise kernel for each vector; minimum cycles of a part of such a
kernel (`PodSums.divided`)."""
_SPREAD = 0.8
"""The steps of a sum are spread over this share of the cycles of the kernels that run meanwhile."""
_URGENT, _FIRST = 4, 0.4
"""For a sum that takes longer than the kernels: number of steps before any kernel, and share of the
kernels' cycles over which the other steps are spread. In the rest of the kernels' cycles, results
are copied to HBM."""
_SILENT = 0.5
"""If the kernels take less than this share of the time that the links need for the steps that wait
for no arrivals, all kernels run after these steps."""
_BEHIND = 8
"""Maximum number of parts of a kernel that runs between the last steps of a sum."""
_LAST, _LEAST_LAST, _LAST_SHARE = 6, 3, 3
"""Maximum and minimum number of steps at the end of a sum that no transfers of results to HBM may
delay; between these limits, it is a third of the steps."""


@dataclass(frozen=True)
class _Sum:
    """A sum whose code has been written.

    Attributes
    ----------
    shares : SumShares
        How the sum is divided.
    base : int
        Address of the workspace: the buffer in which the sum is computed and its results stay.
    image : Rows
        Rows of HBM that hold the image: words that the sum's code reads from scalar memory. The
        image's first words, which `sum_image` returns, depend on the device.
    in_steps : bool
        Whether it is written in steps.
    """

    shares: SumShares
    base: int
    image: Rows
    in_steps: bool


@dataclass(frozen=True)
class _Prepared:
    """A sum whose image is being loaded.

    Attributes
    ----------
    shares : SumShares
    room : range
        Words of scalar memory for the image.
    image : Rows
        Rows of HBM that hold the image.
    number : int
        Number of the transfer that loads it.
    apart : bool
        Whether the sum is divided into steps.
    """

    shares: SumShares
    room: range
    image: Rows
    number: int
    apart: bool


@dataclass
class Running:
    """A sum in progress: kernels run between its steps.

    Attributes
    ----------
    operation : Operation
    code : StreamedSum
    steps : list of callable
        Its steps (`StreamedSum.steps`).
    shares : SumShares
    workspace : VmemBuffer
    first : int
        Number of steps that run before any kernel.
    period, least : float
        Cycles of kernels from one step to the next: on average, and at least.
    done : int
        Number of steps that have been written.
    cycles : int
        Predicted cycles of the kernels that have been written since the sum began.
    last : int
        The value of ``cycles`` at the last step.
    begin : int or None
        Number of the sum's first bundle in the program's code if kernels run during all of the sum.
    waits : bool
        Whether the other steps wait until all kernels have run.
    leads : bool
        Whether the last kernel runs between the last steps (`PodSums.leads`).
    """

    operation: Operation
    code: StreamedSum
    steps: list[Callable[[], None]]
    shares: SumShares
    workspace: VmemBuffer
    first: int
    period: float
    least: float
    done: int = field(default=0)
    cycles: int = field(default=0)
    last: int = field(default=0)
    begin: int | None = field(default=None)
    waits: bool = field(default=False)
    leads: bool = field(default=False)

    @property
    def left(self) -> int:
        """Number of steps that are not written yet."""
        return len(self.steps) - self.done

    @property
    def between(self) -> int:
        """Number of steps that are not written yet and may run between kernels."""
        return 0 if self.waits else self.left

    def due(self, done: int, last: float) -> float:
        """Return when the next step is due, in cycles of kernels since the sum began.

        ``done`` steps are written, the last of them at ``last``. After a kernel in which there was
        no room for steps, the steps follow each other faster.
        """
        return max(last + self.least, (done - self.first + 1) * self.period)

    def write(self, b: Builder, count: int) -> None:
        """Write the next ``count`` steps to ``b``, between kernels."""
        self.code.write_steps(b, self.steps[self.done:self.done + count])
        self.done += count
        self.last = self.cycles

    def write_within(self, b: Builder, after: int) -> None:
        """Write the next step to ``b``, within a kernel, ``after`` cycles from its start."""
        self.code.write_steps(b, self.steps[self.done:self.done + 1], _REGISTERS)
        self.done += 1
        self.last = self.cycles + after


class PodSums:
    """Writes sums over all cores of a pod.

    A sum with the attribute ``meanwhile`` may be divided into steps, between which kernels run.

    Parameters
    ----------
    context : Context
        Shared state; it receives the code and tracks where values lie.
    records : Records
        Receives a record for each sum.
    """

    def __init__(self, context: Context, records: Records) -> None:
        self._context = context
        self._places = context.places
        self._records = records
        self._sums: dict[int, _Sum] = {}
        self._running: Running | None = None
        self._prepared: dict[int, _Prepared] = {}
        # Vectors that follow the next steps to HBM, and the buffers that they leave.
        self._leaving: list[tuple[range, Rows]] = []
        self._buffers: list[VmemBuffer] = []

    def expect(self, operations: Sequence[Operation], apart: Sequence[Operation]) -> None:
        """Prepare for sums; those that are also in ``apart`` are to be divided into steps.

        If a sum has a single operand, this is computed where the vectors behind it have room for
        the rest of the workspace.
        """
        for operation in operations:
            if len(operation.operands) == 1:
                [value], torus = operation.operands, operation.attributes["device"].torus
                self._places.room[value] = max(SumShares.of(
                    self._context.config, (torus.width, torus.height),
                    self._context.tilings[value].vectors, few=few, apart=divided).workspace
                    for few, divided in ((False, False), (True, False), (False, True)))
        if apart:
            self.prepare(apart[0])

    def prepare(self, operation: Operation, *, apart: bool = True, now: bool = False) -> None:
        """Start to load the image of a sum; with ``apart``, divide the sum into steps if possible.

        Kernels run between the steps, so the image then takes words of scalar memory from them. If
        there are not enough words, or ``apart`` is false, the sum is not divided. Kernels may then
        overwrite its image, which is therefore loaded only with ``now``: the code of the sum comes
        next.

        Raises
        ------
        MemoryError
            If scalar memory has no room for the image of any sum.
        """
        context, device = self._context, operation.attributes["device"]
        shape, room = (device.torus.width, device.torus.height), context.memory.kernel
        vectors = sum(context.tilings[value].vectors for value in operation.operands)
        shares = SumShares.of(context.config, shape, vectors)
        if apart:
            few = SumShares.of(context.config, shape, vectors, few=True)
            if few.cycles(context.config) > operation.attributes["meanwhile"]:
                few = SumShares.of(context.config, shape, vectors, apart=True)
            # Whole rows are loaded.
            lanes = context.config.lanes
            # A sum that comes before this one, and is done at once, needs an image, too.
            most = len(room) - max(_LEFT, image_words(shares, 0, in_steps=False))
            words = image_words(few, most // lanes * lanes, in_steps=True)
            words += -words % lanes
            apart = words <= most
        if not (apart or now):
            return
        if apart:
            shares, room = few, room[-words:]
            context.memory = replace(context.memory, held=words)
        else:
            words = image_words(shares, len(room), in_steps=False)
            if words > len(room):
                raise MemoryError(f"scalar memory must have {words} words for kernels, not "
                                  f"{len(room)}, because the program sums values over a pod: "
                                  f"choose a chip with larger scalar memory")
            room = room[:words]
        nowhere = VmemBuffer("", 0, shares.workspace)
        code = StreamedSum(Builder(context.config), shares, device.core, nowhere, room,
                           _SEMAPHORES, in_steps=apart)
        image, number = self._image(code, room, device.torus.devices)
        self._prepared[device.number] = _Prepared(shares, room, image, number, apart)

    def write(self, operation: Operation, dying: Set[Value] = frozenset(), *,
              apart: bool = False) -> None:
        """Write a ``pod_sum``; with ``apart``, if possible, only the first of its steps.

        `passed`, `meanwhile` and `finish` write the later steps, between which kernels run.
        ``dying`` are the operands that are not used again. If there is only one operand, the
        workspace takes over its vectors, if possible.

        Raises
        ------
        VectorMemoryError
            If there is no room. The state is then as before, except that values were evicted.
        """
        context, places, memory = self._context, self._places, self._places.memory
        device: DeviceSum = operation.attributes["device"]
        self.finish()
        if device.number not in self._prepared:
            self.prepare(operation, apart=apart, now=True)
        prepared = self._prepared[device.number]
        shares, room = prepared.shares, prepared.room
        places.lock(operation.operands)
        try:
            operands = [places.load(value) for value in operation.operands]
            workspace = (places.extend(operation.operands[0], shares.workspace)
                         if len(operands) == 1 and dying else None
                         ) or places.allocate("sum", shares.workspace)
        finally:
            places.lock(())
        b = Builder(context.config)
        code = StreamedSum(b, shares, device.core, workspace, room, _SEMAPHORES,
                           in_steps=prepared.apart)
        # Other transfers may go on, and fill vectors that the sum does not use.
        memory.wait_exchanges()
        memory.settle(operands)
        memory.wait(prepared.number)
        assert device.number not in self._sums, operation
        self._sums[device.number] = _Sum(shares, workspace.address, prepared.image, prepared.apart)
        if prepared.apart:
            steps = code.steps(operands)
            cycles, kernels = shares.cycles(context.config), operation.attributes["meanwhile"]
            first, least, share = 1, cycles / len(steps), _SPREAD
            if kernels < cycles:
                first, least, share = min(_URGENT, len(steps) - 1), 0, _FIRST
            # The links need about this share of the sum's cycles for the blocks of these steps.
            silent = code.steps_before_arrivals
            waits = kernels < cycles * _SILENT * silent / len(steps)
            if waits:
                first = silent
            self._running = Running(operation, code, steps, shares, workspace, first, max(
                least, kernels * share / (len(steps) - first)), least, waits=waits)
            # The sum's transfers wait for the loads of segments.
            if kernels < cycles:
                context.stream.begin_segment()
            else:
                self._running.begin = context.stream.here
            self._write_steps(first)
            return
        code.write(operands)
        self._append(operation, b, shares.vectors, round(shares.cycles(context.config)))
        self._leave_results(operation, workspace)

    def _leave_results(self, operation: Operation, workspace: VmemBuffer) -> None:
        """Divide a sum's workspace: each result gets its vectors, and the rest are freed."""
        self._put_results(operation, workspace)
        self._release_rest(operation, workspace)

    def _put_results(self, operation: Operation, workspace: VmemBuffer) -> None:
        """Give each result its vectors of a sum's workspace."""
        first, memory = workspace.address, self._places.memory
        for value in operation.results:
            size = self._context.tilings[value].vectors
            self._places.put(value, memory.buffer("value", first, size))
            first += size

    def _release_rest(self, operation: Operation, workspace: VmemBuffer) -> None:
        """Free the vectors of a sum's workspace that no result gets."""
        kept = sum(self._context.tilings[value].vectors for value in operation.results)
        self._places.memory.release(VmemBuffer("rest", workspace.address + kept,
                                               workspace.vectors - kept))

    # ---- a sum in progress

    @property
    def running(self) -> bool:
        """Whether a sum is in progress."""
        return self._running is not None

    def uses(self, values: Set[Value]) -> bool:
        """Return whether ``values`` contain a result of the sum in progress, if there is one."""
        return self._running is not None and not values.isdisjoint(self._running.operation.results)

    def store(self, value: Value, destination: Rows, part: range | None) -> bool:
        """Let a value that is not used again be copied to HBM, in parts: one after each later step.

        One long transfer would delay the transfers of the sum. ``destination`` and ``part`` are
        those of `Places.copy_to`. Return whether the value is copied in this way.
        """
        running = self._running
        if running is None or not running.left or not destination.is_plain:
            return False
        buffer = self._places.take(value)
        if buffer is None:
            return False
        self._places.memory.settle([buffer])
        vectors = range(buffer.address, buffer.address + buffer.vectors)
        if part is not None:
            vectors = vectors[part.start:part.stop]
            destination = destination.moved(part.start * self._context.config.sublanes)
        self._leaving.append((vectors, destination))
        self._buffers.append(buffer)
        return True

    def _store(self, left: int) -> None:
        """Start transfers to HBM for some of the vectors in `_leaving`.

        The others follow in ``left`` more calls, about as many in each.
        """
        number, sublanes = 0, self._context.config.sublanes
        size = -(-sum(len(vectors) for vectors, _ in self._leaving) // (left + 1))
        while self._leaving and size:
            vectors, rows = self._leaving.pop(0)
            part, rest = vectors[:size], vectors[size:]
            number = self._places.memory.issue(Vectors(part.start), rows, len(part) * sublanes)
            if rest:
                self._leaving.insert(0, (rest, rows.moved(len(part) * sublanes)))
            size -= len(part)
        if not self._leaving:
            for buffer in self._buffers:
                self._places.memory.release(buffer, number)
            self._buffers.clear()

    def divided(self, vectors: range) -> list[range]:
        """Divide an elementwise kernel's vectors, so that steps of a sum fit between the parts.

        If no step is due within the kernel, return ``vectors`` as the only part.
        """
        running, count = self._running, 1
        if running is not None and running.between:
            count = round(_VECTOR_CYCLES * len(vectors) / max(running.period, _PART))
        size = -(-len(vectors) // max(1, count))
        return [vectors[first:first + size] for first in range(0, len(vectors), size)]

    def passed(self, cycles: int) -> None:
        """Write the steps that are due after a kernel that takes ``cycles`` cycles."""
        running = self._running
        if running is None:
            return
        running.cycles += cycles
        if running.between and running.cycles >= running.due(running.done, running.last):
            self._write_steps(1)

    def meanwhile(self, b: Builder) -> Meanwhile | None:
        """Return a function that places steps within a product; None if no sum is in progress.

        ``b`` receives the product's code.
        """
        running = self._running
        if running is None or not running.between:
            return None

        def choose(count: int, cycles: int) -> Mapping[int, Callable[[], None]]:
            numbers, last = list[int](), float(running.last)
            for done in range(running.done, len(running.steps)):
                due = math.ceil((running.due(done, last) - running.cycles) / cycles)
                number = max(due, numbers[-1] + 1 if numbers else 0)
                if number >= count:
                    break
                numbers.append(number)
                last = running.cycles + number * cycles
            return {number: partial(running.write_within, b, number * cycles)
                    for number in numbers}

        return choose

    def saved(self) -> Any:
        """Return the state to which `restore` goes back if a kernel is not written after all."""
        running = self._running
        return None if running is None else (running.done, running.last, running.code.saved())

    def restore(self, saved: Any) -> None:
        """Go back to a state that `saved` has returned."""
        if self._running is not None:
            self._running.done, self._running.last, state = saved
            self._running.code.restore(state)

    # ---- a kernel between the last steps

    def leads(self, operation: Operation) -> bool:
        """Let a kernel run between the last steps of the sum in progress, whose result it reads.

        This requires that the program ends with this kernel, and that each core needs only the half
        of the result that it reduces. Return whether this is so. If it is, the sum's result has its
        place from now on, and the cores of a chip do not exchange their halves.
        """
        context, running, tilings = self._context, self._running, self._context.tilings
        if running is None or len(operation.results) != 1 or not context.alike:
            return False
        shares, values, result = running.shares, running.operation.results, operation.result
        device: DeviceSum = running.operation.attributes["device"]
        first, rows = shares.start(device.core), context.ends.get(result)
        if (len(values) != 1 or tilings[values[0]] != tilings[result]
                or rows is None or not rows.is_plain or shares.padded != shares.vectors
                or context.needed.get(result) != (range(first, first + shares.half),)
                or running.done > running.code.steps_before_arrivals
                or sum(map(len, shares.numbered(device.core))) > _BEHIND
                or not is_flat(operation, KernelLowering(context.config, {
                    value: Place(VmemBuffer("", 0, tilings[value].vectors), tilings[value])
                    for value in (*operation.operands, result)}, self._places.allocate,
                    lambda buffer, words: None))):
            return False
        running.leads, running.waits, running.code.shared = True, True, False
        running.steps[-2:-1] = running.code.last_pieces
        self._put_results(running.operation, running.workspace)
        return True

    def completed(self, operation: Operation) -> list[list[range]]:
        """Return the vectors of its result that a kernel can compute after each call of `follow`.

        The list is empty unless `leads` has returned True for this kernel.
        """
        running = self._running
        if running is None or not running.leads or not self.uses({*operation.operands}):
            return []
        return running.shares.numbered(running.operation.attributes["device"].core)

    def follow(self) -> None:
        """Write the next step that completes vectors which a kernel reads (`completed`)."""
        running = self._running
        assert running is not None
        # The steps that end it are one for each piece, and one that waits for transfers.
        while running.left > running.shares.pieces + 1:
            self._write_steps(1)
        self._write_steps(1)

    def finish(self) -> None:
        """Write what is left of the sum in progress, if there is one."""
        running = self._running
        if running is None:
            return
        while self._leaving and running.left:
            self._write_steps(1)
        if running.left:
            self._write_steps(running.left)
        self._store(0)
        if running.begin is not None:
            self._context.stream.divide_finely(running.begin)
        self._running = None
        self._context.memory = replace(self._context.memory, held=0)
        if not running.leads:
            self._put_results(running.operation, running.workspace)
        self._release_rest(running.operation, running.workspace)

    def _write_steps(self, count: int) -> None:
        """Write the next ``count`` steps of the sum in progress, as a kernel."""
        running, b = self._running, Builder(self._context.config)
        assert running is not None
        share = count / len(running.steps)
        running.write(b, count)
        self._append(running.operation, b, round(share * running.shares.vectors), None)
        # While links are busy, HBM takes values slowly. No part may delay the last steps.
        last = min(_LAST, max(_LEAST_LAST, len(running.steps) // _LAST_SHARE))
        self._store(max(running.left - last, 0))

    def _image(self, code: StreamedSum, addresses: range, devices: int) -> tuple[Rows, int]:
        """Write the transfer of a sum's image to scalar memory.

        Return the image's rows in HBM, and the number of the transfer.

        ``code`` is the sum's code, ``addresses`` are the words of scalar memory for the image, and
        ``devices`` is the number of the pod's devices.
        """
        lanes, sublanes = self._context.config.lanes, self._context.config.sublanes
        rows = -(-len(addresses) // lanes)
        # A constant consists of whole vectors.
        words = code.image(-(-rows // sublanes) * sublanes * lanes)
        image = self._context.constants.differing(np.tile(
            np.array(words, np.uint32).reshape(1, -1, sublanes, lanes), (devices, 1, 1, 1)))
        return image, self._places.memory.issue(image, scalar_words(addresses.start), rows)

    def _append(self, operation: Operation, b: Builder, vectors: int, cycles: int | None) -> None:
        """Append the code of a sum of ``vectors`` vectors, or of a part of it.

        ``cycles`` are its predicted cycles; if None, they are estimated from the code.
        """
        context, machine = self._context, b.finish()
        code = emit(machine, context.config)
        if cycles is None:
            cycles = estimate(code)
        first = context.stream.here
        context.stream.stamp()
        context.stream.kernel(code)
        self._places.memory.clock.run(cycles)
        self._records.add(KernelRecord(operation.kind, operation.location, len(code), cycles,
                                       vectors * context.config.sublanes, 0, 0), first)

    def connect(self, device: int, torus: Torus, base: Callable[[int, int], int]) -> None:
        """Set the words of all sums' images that depend on the device, for one device of this plan.

        ``base(number, other)`` is the address of the workspace of sum ``number`` on device
        ``other``.
        """
        core, *place = torus.place(device)
        x, y = place
        for number, item in self._sums.items():
            near = torus.neighbour(device, "core", 1)
            others = [near, *(torus.neighbour(device, ring, way)
                              for ring, way in next_chips(item.shares, core))]
            self._context.constants.differ(item.image, device, sum_image(
                item.shares, core, (x, y), [base(number, other) for other in others],
                in_steps=item.in_steps))

    def base(self, number: int) -> int:
        """Return the address of the workspace of sum ``number`` (`DeviceSum.number`)."""
        return self._sums[number].base


def connect_sums(plans: Sequence[PodSums], torus: Torus) -> None:
    """Set the words of `sum_image` for all sums of all devices.

    ``plans`` has the sums of each device, in the order of the devices' numbers.
    """
    for device, sums in enumerate(plans):
        sums.connect(device, torus, lambda number, other: plans[other].base(number))
