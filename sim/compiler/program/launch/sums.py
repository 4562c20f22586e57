"""Writes the code of sums over all cores of a pod; their operands are in vector memory."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.streamed import (
    Form,
    Semaphores,
    StreamedSum,
    image_words,
    next_chips,
    room_for_steps,
    sum_image,
)
from sim.compiler.graph.ir import Operation, Value
from sim.compiler.graph.torus import Torus
from sim.compiler.kernels.lowering import Meanwhile
from sim.compiler.machine import RangeAt, VmemBuffer, emit
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
from sim.compiler.program.compiled import KernelRecord, SumRecord
from sim.compiler.program.context import Context
from sim.compiler.program.launch.led import is_led
from sim.compiler.program.launch.records import Records
from sim.compiler.program.places.meeting import DeviceSum

__all__ = ["PodSums", "Running", "connect_sums"]

_SEMAPHORES = Semaphores(LINKS, FREE, BLOCK_READ, BLOCK_WRITTEN, EXCHANGED)
"""Kernels that run between the steps of a sum use none of these semaphores."""
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
    form : Form
        How it is written.
    record : SumRecord
    """

    shares: SumShares
    base: int
    image: Rows
    form: Form
    record: SumRecord

    @classmethod
    def of(cls, operation: Operation, prepared: "_Prepared", base: int) -> "_Sum":
        """Return what is known of a sum after its code has been written."""
        return cls(prepared.shares, base, prepared.image, prepared.form, SumRecord(
            prepared.shares.vectors, round(operation.attributes.get("meanwhile", 0)),
            prepared.form is not Form.WHOLE, prepared.form is Form.LEADS))


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
    form : Form
        How the sum is written.
    """

    shares: SumShares
    room: range
    image: Rows
    number: int
    form: Form


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
    placed : bool
        Whether the sum's results have their places already, because a kernel follows the last steps
        (`PodSums.leads`).
    """

    operation: Operation
    code: StreamedSum
    steps: list[Callable[[], None]]
    shares: SumShares
    workspace: VmemBuffer
    first: int = field(default=0)
    period: float = field(default=0.0)
    least: float = field(default=0.0)
    done: int = field(default=0)
    cycles: int = field(default=0)
    last: int = field(default=0)
    begin: int | None = field(default=None)
    waits: bool = field(default=False)
    placed: bool = field(default=False)

    @property
    def left(self) -> int:
        """Number of steps that are not written yet."""
        return len(self.steps) - self.done

    @property
    def ahead(self) -> int:
        """Number of steps that are not written yet and precede those that lead a kernel."""
        return self.left - len(self.code.completed) - 1 if self.code.completed else self.left

    @property
    def between(self) -> int:
        """Number of steps that are not written yet and may run between kernels."""
        return 0 if self.waits else max(0, self.ahead)

    def spread(self, cycles: float) -> bool:
        """Choose when steps are due; the sum takes about ``cycles`` cycles.

        Return whether the kernels take longer than the sum.
        """
        kernels, steps = self.operation.attributes["meanwhile"], len(self.steps)
        self.first, self.least, share = 1, cycles / steps, _SPREAD
        if kernels < cycles:
            self.first, self.least, share = min(_URGENT, self.ahead, steps - 1), 0, _FIRST
        # The links need about this share of the sum's cycles for the blocks of these steps.
        silent = self.code.steps_before_arrivals
        self.waits = kernels < cycles * _SILENT * silent / steps
        if self.waits:
            self.first = silent
        self.period = max(self.least, kernels * share / (steps - self.first))
        return bool(kernels >= cycles)

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
        # The sum that may lead the program's last operation, and this operation.
        self._led: dict[Operation, Operation] = {}
        # Vectors that follow the next steps to HBM, and the buffers that they leave.
        self._leaving: list[tuple[range, Rows]] = []
        self._buffers: list[VmemBuffer] = []

    def expect(self, operations: Sequence[Operation], apart: Sequence[Operation],
               led: Operation | None) -> None:
        """Prepare for sums; those that are also in ``apart`` are to be divided into steps.

        If a sum has a single operand, this is computed where the vectors behind it have room for
        the rest of the workspace. ``led``, if given, is the program's last operation; no other one
        uses results of the last sum.
        """
        if led is not None:
            self._led[operations[-1]] = led
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
            divided = SumShares.in_steps(context.config, shape, vectors,
                                         operation.attributes["meanwhile"])
            leads = operation in self._led and is_led(
                context, self._led[operation], operation, divided)
            most = room_for_steps(context.config, shares, len(room))
            fitting = [(form, words) for form in (Form.LEADS, Form.STEPS)[not leads:]
                       if (words := image_words(divided, most, form)) <= most]
            apart = bool(fitting)
        if not (apart or now):
            return
        if apart:
            form, words = fitting[0]
            words += -words % context.config.lanes
            shares, room = divided, room[-words:]
            context.memory = replace(context.memory, held=words)
        else:
            form, words = Form.WHOLE, image_words(shares, len(room), Form.WHOLE)
            if words > len(room):
                raise MemoryError(f"scalar memory must have {words} words for kernels, not "
                                  f"{len(room)}, because the program sums values over a pod: "
                                  f"choose a chip with larger scalar memory")
            room = room[:words]
        nowhere = VmemBuffer("", 0, shares.workspace)
        code = StreamedSum(Builder(context.config), shares, device.core, nowhere, room,
                           _SEMAPHORES, form)
        image, number = self._image(code, room, device.torus.devices)
        self._prepared[device.number] = _Prepared(shares, room, image, number, form)

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
                           prepared.form)
        # Other transfers may go on, and fill vectors that the sum does not use.
        memory.wait_exchanges()
        memory.settle(operands)
        memory.wait(prepared.number)
        assert device.number not in self._sums, operation
        self._sums[device.number] = _Sum.of(operation, prepared, workspace.address)
        if prepared.form is Form.WHOLE:
            code.write(operands)
            self._append(operation, b, shares.vectors, round(shares.cycles(context.config)))
            self._leave_results(operation, workspace)
            return
        if prepared.form is Form.LEADS:
            half = range(shares.vectors)[shares.start(device.core):][:shares.half]
            context.needed[self._led[operation].result] = (half,)
        running = self._running = Running(operation, code, code.steps(operands), shares, workspace)
        # The sum's transfers wait for the loads of segments.
        if running.spread(shares.cycles(context.config)):
            running.begin = context.stream.here
        else:
            context.stream.begin_segment()
        self._write_steps(running.first)

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
            for done in range(running.done, running.done + running.between):
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
        """Return whether the last steps of the sum in progress lead the kernel of an operation.

        If so, the sum's result has its place from now on.
        """
        running = self._running
        if (running is None or not running.code.completed
                or operation is not self._led[running.operation]):
            return False
        self._put_results(running.operation, running.workspace)
        running.placed = True
        return True

    def completed(self) -> list[list[RangeAt]]:
        """Return the vectors that the kernel which the sum leads can compute after each `follow`.

        The list is empty if `leads` has not returned True during this sum.
        """
        running = self._running
        return running.code.completed if running is not None and running.placed else []

    @property
    def repeats(self) -> bool:
        """Whether the vectors of `completed` may have some in common."""
        running = self._running
        return (running is not None and running.placed
                and running.shares.padded > running.shares.vectors)

    def follow(self) -> None:
        """Write the next step that completes vectors which a kernel reads (`completed`)."""
        running = self._running
        assert running is not None
        if running.ahead > 0:
            self._write_steps(running.ahead)
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
        if not running.placed:
            self._put_results(running.operation, running.workspace)
        self._release_rest(running.operation, running.workspace)

    def _write_steps(self, count: int) -> None:
        """Write the next ``count`` steps of the sum in progress, as a kernel."""
        running, b, stream = self._running, Builder(self._context.config), self._context.stream
        assert running is not None
        share, first, leads = count / len(running.steps), stream.here, running.ahead == 0
        running.write(b, count)
        self._append(running.operation, b, round(share * running.shares.vectors), None)
        if leads:
            # While code is loaded, a transfer to HBM would hold up those to other chips.
            stream.end_gap(first)
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
                item.form))

    def base(self, number: int) -> int:
        """Return the address of the workspace of sum ``number`` (`DeviceSum.number`)."""
        return self._sums[number].base

    @property
    def agreed(self) -> dict[int, tuple[SumShares, bool]]:
        """What all devices must decide alike: for each sum, its division, and whether it leads."""
        return {number: (item.shares, item.record.leads) for number, item in self._sums.items()}

    @property
    def made(self) -> tuple[SumRecord, ...]:
        """Facts about all sums, in the order of the code."""
        return tuple(item.record for item in self._sums.values())


def connect_sums(plans: Sequence[PodSums], torus: Torus) -> None:
    """Set the words of `sum_image` for all sums of all devices.

    ``plans`` has the sums of each device, in the order of the devices' numbers.
    """
    for device, sums in enumerate(plans):
        assert sums.agreed == plans[0].agreed, device
        sums.connect(device, torus, lambda number, other: plans[other].base(number))
