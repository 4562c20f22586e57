"""Writes the code with which a core takes part in a sum over all cores of a pod.

The values are in vector memory; the sum takes place at the rate of the links.
The sum goes through the phases of `sim.compiler.collectives.plan`, piece by piece, as
`sim.compiler.collectives.program` does. Before the first phase, the cores of a chip add their
numbers: core 0 sends to core 1 its numbers of the half that core 1 reduces, and core 1 does the
same for core 0. When a core has computed the final value of a piece, or received it from another
chip, it sends this value to the other core of its own chip, too.
`sim.compiler.collectives.shares` defines where pieces lie, and `sim.compiler.collectives.schedule`
in which order a core works on them.

The code visits blocks in *walks* (`sim.compiler.collectives.walks`). Where a walk begins depends on
the chip. The code finds these places, and the addresses of other cores' workspaces, in an *image*:
words that are in scalar memory when the code begins. If the code is written in steps
(`StreamedSum.steps`), the image has the places of all blocks instead of those where walks begin.

A sum in steps may *lead* a kernel, of which each core needs only the vectors of its own half. Then
the cores of a chip do not send each other complete pieces. The image also tells which vectors are
complete after each of the last steps: the kernel computes them before the next step. A complete
block does not change, so the kernel may read it while transfers send it to other chips.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, partial, reduce
from itertools import takewhile
from typing import Any

from golden.dma import Descriptor
from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace, pack_remote
from sim.compiler.collectives.plan import CORES
from sim.compiler.collectives.schedule import Event, Goes, Tick, last_ticks, ticks
from sim.compiler.collectives.shares import SumShares
from sim.compiler.collectives.walks import WALK_WORDS, Table, Walk, begins, completed, table
from sim.compiler.machine import RangeAt, VmemBuffer
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import IndexLike, SReg

__all__ = ["Form", "Semaphores", "StreamedSum", "image_words", "next_chips", "room_for_steps",
           "sum_image"]

_SOURCE, _DESTINATION = 2, 6
"""Words of a descriptor: the low words of its source's and its destination's address."""
_QUARTERS, _AXES = 2, ("x", "y")
_BASES = 0
_PLACES = _BASES + 1 + _QUARTERS * len(_AXES)
"""Offsets of two parts of a sum's image: addresses of workspaces, and places of blocks. If the sum
is written in steps, the second part has the words of `table`; if it leads a kernel, the words of
`RangeAt.first` and `RangeAt.fewer` follow, for all vectors of `completed`. Otherwise, it has only
the places where walks begin, first for this core's quarters, then for the other core's. The third
and last part of the image has the descriptors."""
_PAIR, _COMPLETE, _SCATTER, _SEPARATE = (
    (len(_AXES) + number) * _QUARTERS for number in range(4))
"""First numbers of groups of descriptors, each with one descriptor for each quarter. `_PAIR`: for
numbers that the other core adds. `_COMPLETE`: for complete pieces that go to the other core.
`_SCATTER`: for the blocks of the first phase. The descriptors before `_PAIR` are for pieces that go
to the next chip, one for each axis of each quarter. `_SEPARATE` is the number of all these
descriptors; an image that is too small for them has only one descriptor (`image_words`)."""
_LEFT = 16
"""Minimum number of words of scalar memory for kernels while a sum is in progress."""
_GROUP = 24
"""Maximum number of vector registers that the loads of one group of additions fill."""


@dataclass(frozen=True)
class Semaphores:
    """Numbers of the semaphores that a sum uses. All are zero before and after it.

    Attributes
    ----------
    links : mapping
        For the kind of ring ("x" or "y") and a direction (1 or -1): counts signals from the next
        chip in that direction. The first signal says that that chip's workspace is free; each later
        one, that a piece (in the first phase, a block) has arrived from that chip.
    free : int
        Becomes 1 when the other core has begun the sum.
    sent : int
        Counts pieces (in the first phase, blocks) that have left this core for other chips.
    paired : int
        Counts pieces of the other core's numbers that have arrived.
    complete : int
        Counts complete pieces that have been copied from this core to the other one or back.
    """

    links: Mapping[tuple[str, int], int]
    free: int
    sent: int
    paired: int
    complete: int


class Form(Enum):
    """How the code of a sum is written."""

    WHOLE = "whole"
    """Without steps (`StreamedSum.write`)."""
    STEPS = "steps"
    """In steps (`StreamedSum.steps`), between which the image must not change."""
    LEADS = "leads"
    """In steps, of which the last ones lead a kernel (`StreamedSum.completed`)."""


def image_words(shares: SumShares, room: int, form: Form) -> int:
    """Return the number of words of an image; scalar memory has room for ``room`` words.

    If ``room`` suffices, the image has `_SEPARATE` descriptors, of which only addresses change.
    Otherwise, it has only one descriptor, which the code rewrites before each transfer.
    """
    first = _PLACES + len(_places(shares, 0, (0, 0), form))
    most = first + _SEPARATE * DESCRIPTOR_WORDS
    return most if most <= room else first + DESCRIPTOR_WORDS


def room_for_steps(config: Config, shares: SumShares, words: int) -> int:
    """Return the maximum number of words of the image of a sum in steps; whole rows are loaded.

    Kernels that run between the steps, and an undivided sum before this one, use the rest of the
    ``words`` words of scalar memory that kernels have.
    """
    left = max(_LEFT, image_words(shares, 0, Form.WHOLE))
    return max(0, words - left) // config.lanes * config.lanes


def _places(shares: SumShares, core: int, place: tuple[int, int], form: Form) -> list[int]:
    """Return the second part of the image of a core of the chip with coordinates ``place``."""
    if form is Form.WHOLE:
        return [word for quarter in shares.quarters(core) + shares.quarters(1 - core)
                for word in begins(quarter, place)]
    parts = completed(shares, core, place) if form is Form.LEADS else []
    return table(shares, core, place) + [
        word for step in parts for vectors, most in step
        for word in (vectors.start, (len(vectors) - most) % (1 << 32))]


def sum_image(shares: SumShares, core: int, place: tuple[int, int], bases: Sequence[int],
              form: Form) -> list[int]:
    """Return the first words of the image of a core: those that depend on the chip.

    Parameters
    ----------
    shares : SumShares
    core : int
        Number of the core.
    place : tuple of int
        Coordinates (x, y) of its chip.
    bases : sequence of int
        Addresses of the workspaces of the chip's other core, and of the cores to which this core
        sends, in the order of `next_chips`.
    form : Form
    """
    return [*bases, *[0] * (_PLACES - _BASES - len(bases)), *_places(shares, core, place, form)]


def next_chips(shares: SumShares, core: int) -> list[tuple[str, int]]:
    """Return the kinds of rings ("x" or "y") and the directions in which a core sends.

    The two axes of its first quarter come first, then those of its second one. Along an axis with
    only one chip, nothing is sent.
    """
    return [(_AXES[axis], quarter.way) for quarter in shares.quarters(core)
            for axis in quarter.axes]


class StreamedSum:
    """Writes the code of a core.

    Parameters
    ----------
    b : Builder
        Receives the code.
    shares : SumShares
    core : int
        Number of the core.
    workspace : VmemBuffer
        The core's workspace.
    image : range
        Addresses of the image in scalar memory.
    semaphores : Semaphores
    form : Form, optional
        If the sum leads a kernel, only the core's own half of the workspace holds sums in the end.
        The other core's code must have the same form.
    """

    def __init__(self, b: Builder, shares: SumShares, core: int, workspace: VmemBuffer,
                 image: range, semaphores: Semaphores, form: Form = Form.WHOLE) -> None:
        self._b, self._group = b, _GROUP
        self._shares, self._core, self._image = shares, core, image.start
        first = _PLACES + len(_places(shares, core, (0, 0), form))
        self._table = None if form is Form.WHOLE else Table(b, image[_PLACES:first])
        self._leads = form is Form.LEADS
        self._descriptors_at = image.start + first
        self._separate = len(image) >= first + _SEPARATE * DESCRIPTOR_WORDS
        self._config: Config = b.config
        self._semaphores = semaphores
        self._workspace = workspace
        everything, pairs, arrivals = shares.buffers
        self._all, self._pairs = workspace.part(everything), workspace.part(pairs)
        self._arrivals = [workspace.part(numbers) for numbers in arrivals]
        self._quarters = shares.quarters(core)
        self._late: dict[int, Walk | Table] = {}
        self._done: list[Any] = []

    def image(self, words: int) -> list[int]:
        """Return ``words`` words of the image, with zeros for what depends on the chip."""
        made = [0] * words
        for number, descriptor in self._descriptors().items() if self._separate else ():
            at = self._descriptor(number) - self._image
            made[at:at + DESCRIPTOR_WORDS] = descriptor
        return made

    def write(self, operands: Sequence[VmemBuffer]) -> None:
        """Write the code; ``operands`` are the values, in order.

        It leaves the sums at the start of the workspace, in the same order.
        """
        self._begin(operands)
        for count, tick in ticks(self._quarters):
            self._tick(count, tick)
        self._end()

    def steps(self, operands: Sequence[VmemBuffer]) -> list[Callable[[], None]]:
        """Return functions for `write_steps`, each of which writes a step of the sum.

        All steps together do the same as the code of `write`: the first one begins the sum, and
        each of the others is a tick. Between two steps, a core may execute any code that waits for
        no other core: `sim.compiler.collectives.schedule` says why no core then waits forever.
        """
        found = [partial(self._begin, operands)]
        for count, tick in ticks(self._quarters):
            found += [partial(self._tick, 1, tick)] * count
        if self._leads:
            *_, (_, last, _) = last_ticks(self._quarters)
            found[-1:] = [partial(self._last_piece, last, q) for q in range(self._shares.pieces)]
        return [*found, self._end]

    @cached_property
    def completed(self) -> list[list[RangeAt]]:
        """Vectors of its own half that the core completes in the last steps, if it leads a kernel.

        There is a list for each of the `steps` from the first one on in which vectors are complete
        afterwards, except for the very last step, which completes none.
        """
        if not self._leads:
            return []
        parts = completed(self._shares, self._core, (0, 0))
        end = self._descriptors_at
        words = iter(range(end - 2 * sum(map(len, parts)), end))
        return [[RangeAt(next(words), next(words), most) for _, most in step] for step in parts]

    @property
    def steps_before_arrivals(self) -> int:
        """Number of `steps`, from the first one on, that need no block of another chip."""
        silent = takewhile(lambda counted: not any(event.arrives for _, event in counted[1].events),
                           ticks(self._quarters))
        return 1 + sum(count for count, _ in silent)

    def write_steps(self, b: Builder, steps: Sequence[Callable[[], None]],
                    group: int = _GROUP) -> None:
        """Write the code of consecutive ``steps`` to a builder.

        The vectors of a piece are added in groups, one after the other; the loads of a group fill
        at most ``group`` vector registers. If ``group`` is less than the default and one group is
        not enough, a loop adds one vector at a time instead, which needs few registers.
        """
        assert self._table is not None
        self._b = self._table.b = b
        self._group = group
        for step in steps:
            step()

    def saved(self) -> tuple[Any, ...]:
        """Return what `restore` needs in order to write the following steps once more."""
        assert self._table is not None
        return self._table.count, [*self._done]

    def restore(self, saved: tuple[Any, ...]) -> None:
        """Set the state to ``saved``, a result of the method `saved`."""
        assert self._table is not None
        self._table.count, self._done = saved

    def _begin(self, operands: Sequence[VmemBuffer]) -> None:
        """Write the code before the first tick."""
        b, near, shares = self._b, self._semaphores, self._shares
        self._invite()
        walks = [self._table or Walk(b, quarter, self._image + _PLACES + number * WALK_WORDS)
                 for number, quarter in enumerate(self._quarters + shares.quarters(1 - self._core))]
        self._walks, self._others = walks[:_QUARTERS], walks[_QUARTERS:]
        self._done = [b.scalar_variable(0) if self._table is None else 0 for _ in self._quarters]
        # The other core gets its first block while this core copies its own half.
        theirs, own = (range(shares.start(core), shares.start(core) + shares.half)
                       for core in (1 - self._core, self._core))
        self._copy(operands, theirs)
        b.wait(near.free, 1)
        with b.loop(shares.pieces) as q:
            for number, quarter in enumerate(self._quarters):
                self._send_pair(number, q, q * quarter.size)
        for walk in self._others:
            walk.next()
        self._copy(operands, own)
        for number in range(_QUARTERS):
            for axis in self._rings(number):
                b.wait(self._link(number, axis, arrives=False), 1)

    def _end(self) -> None:
        """Write the code after the last tick, which waits for the transfers of both cores."""
        shares, left = self._shares, 0
        for first, second in (quarter.sides for quarter in self._quarters):
            blocks = (first - 1) * second
            left += blocks + (blocks + 2 * (second - 1)) * shares.pieces
        self._b.wait(self._semaphores.sent, left)
        if not self._leads:
            self._b.wait(self._semaphores.complete,
                         CORES * _QUARTERS * shares.chips * shares.pieces)

    def _rings(self, number: int) -> Iterator[int]:
        """Yield the axes of quarter ``number`` along which there are several chips."""
        return (axis for axis, side in enumerate(self._quarters[number].sides) if side > 1)

    def _link(self, number: int, axis: int, *, arrives: bool) -> int:
        """Return the semaphore that counts signals for quarter ``number`` along ``axis``.

        With ``arrives``, these signals come from the previous chip, whose data arrives; otherwise,
        from the next chip, whose workspace is free.
        """
        quarter = self._quarters[number]
        return self._semaphores.links[_AXES[quarter.axes[axis]],
                                      -quarter.way if arrives else quarter.way]

    def _invite(self) -> None:
        """Write code that tells the senders to this core that its workspace is free."""
        b = self._b
        for number in range(_QUARTERS):
            for axis in self._rings(number):
                b.signal_remote(self._link(number, axis, arrives=False),
                                pack_remote(*self._hops(number, axis, -1), self._core), 1)
        b.signal_other(self._semaphores.free, 1)

    def _copy(self, operands: Sequence[VmemBuffer], half: range) -> None:
        """Write loops that copy operands to the workspace, but only to its vectors ``half``.

        In the workspace, the operands lie one after the other. An operand that is already at its
        place is not copied.
        """
        first = 0
        for operand in operands:
            begin = max(half.start - first, 0)
            count = min(half.stop - first, operand.vectors) - begin
            if count > 0 and operand.address != self._all.address + first:
                with self._b.loop(count) as i:
                    self._b.store(self._b.load(operand, i + begin), self._all, i + (first + begin))
            first += operand.vectors

    # ---- the other core's half

    def _send_pair(self, number: int, q: IndexLike, done: Any) -> None:
        """Write the transfer of piece ``q`` of the next block of quarter ``number``.

        The quarter belongs to the other core's half. ``done`` is the number of vectors of the
        quarter that have been sent before.
        """
        self._transfer(_PAIR + number,
                       self._others[number].at() + q * self._quarters[number].size,
                       self._base(0) + (done + self._pair(number)))

    def _pair(self, number: int) -> int:
        """Return where, in a workspace, the other core's numbers of quarter ``number`` arrive."""
        before = sum(quarter.vectors for quarter in self._quarters[:number])
        return self._pairs.address - self._workspace.address + before

    # ---- ticks

    def _tick(self, count: int, tick: Tick) -> None:
        """Write a tick that is executed ``count`` times."""
        b = self._b
        with b.loop(count):
            for number, event in tick.events:
                if event.goes and 0 in event.arrives:
                    self._await(number, 0)
            places = [b.scalar_variable(self._walk(number, event).at())
                      for number, event in tick.events]
            with b.loop(self._shares.pieces) as q:
                for number in tick.pairs:
                    quarter = self._quarters[number]
                    self._send_pair(number, q, self._done[number] + q * quarter.size + (
                        quarter.block if number in dict(tick.events) else 0))
                for (number, event), at in zip(tick.events, places, strict=True):
                    if event.goes:
                        self._sum(number, event, at, q)
                    else:
                        self._pass(number, event, at)
                    b.assign(at, at + self._quarters[number].size)
            for (number, event), at in zip(tick.events, places, strict=True):
                if event.goes is Goes.FIRST:
                    # A link's queue has only a few places, so whole blocks let the core go on to
                    # the next phase.
                    block = self._quarters[number].block
                    self._send(_SCATTER, number, 0, at - block,
                               self._slot(number, 0, self._done[number]))
            for number in tick.pairs:
                self._others[number].next()
            for number, event in tick.events:
                if event.goes:
                    self._count(number)
                walk = self._walk(number, event)
                if event.goes is not Goes.COMPLETE:
                    walk.next()
                    continue
                self._late[number] = walk.following()
                walk.again()

    def _last_piece(self, tick: Tick, q: int) -> None:
        """Write piece ``q`` of the last tick, in which only complete pieces arrive."""
        assert self._table is not None
        count = self._table.count
        places = [self._b.value(self._walk(number, event).at() + q * self._quarters[number].size)
                  for number, event in tick.events]
        if q < self._shares.pieces - 1:
            self._table.count = count
        for (number, event), at in zip(tick.events, places, strict=True):
            self._pass(number, event, at)

    def _walk(self, number: int, event: Event) -> Walk | Table:
        return self._late[number] if event.late else self._walks[number]

    def _count(self, number: int) -> None:
        """Count a block of quarter ``number`` whose sum this core has computed."""
        done = self._done[number] + self._quarters[number].block
        if self._table is None:
            self._b.assign(self._done[number], done)
        else:
            self._done[number] = done

    def _sum(self, number: int, event: Event, at: SReg, q: IndexLike) -> None:
        """Write code that adds arrived numbers to a piece of this core, and sends the sum.

        The piece is piece ``q`` of a block of quarter ``number``; it is at place ``at``.
        """
        b, done = self._b, self._done[number] + q * self._quarters[number].size
        b.wait(self._semaphores.paired, 1)
        if 1 in event.arrives:
            self._await(number, 1)
        self._add(number, at, done, [
            self._arrived(number, axis, done) for axis in event.arrives])
        if event.goes is Goes.SECOND:
            self._send(0, number, 1, at, self._slot(number, 1, done))
        if event.goes is Goes.COMPLETE:
            for axis in reversed(list(self._rings(number))):
                self._send(0, number, axis, at, at)
            self._hand_over(number, at)

    def _pass(self, number: int, event: Event, at: SReg) -> None:
        """Write code that waits for a complete piece at place ``at`` and sends it on."""
        [axis] = event.arrives
        self._await(number, axis)
        for further in event.on:
            self._send(0, number, further, at, at)
        self._hand_over(number, at)

    # ---- parts of a tick

    def _slot(self, number: int, axis: int, done: Any) -> Any:
        """Return where a piece of quarter ``number`` arrives, in the next chip's workspace.

        The piece is sent along ``axis``, after ``done`` vectors of the quarter.
        """
        buffer = self._arrivals[2 * number + axis]
        before = axis * self._quarters[number].arrivals[0]
        return done + (buffer.address - self._workspace.address - before)

    def _arrived(self, number: int, axis: int, done: Any) -> tuple[VmemBuffer, Any]:
        """Return the buffer, and the place in it, of a piece that arrived along ``axis``.

        ``done`` vectors of this quarter have been added before.
        """
        quarter = self._quarters[number]
        sent = quarter.arrivals[0] + quarter.block if axis else quarter.segment
        return self._arrivals[2 * number + axis], done - sent

    def _await(self, number: int, axis: int) -> None:
        self._b.wait(self._link(number, axis, arrives=True), 1)

    def _add(self, number: int, at: SReg, done: Any, parts: Sequence[tuple[VmemBuffer, Any]]
             ) -> None:
        """Write code that adds the numbers of both cores, and ``parts``, which have arrived.

        The sum replaces this core's numbers, at place ``at`` of the workspace. ``done`` vectors of
        the quarter have been added before.
        """
        b, size = self._b, self._quarters[number].size
        pairs = done + self._pair(number)
        taken = [(self._all, at + 0), (self._workspace, pairs), *parts]
        if size * len(taken) > self._group < _GROUP:
            with b.loop(size) as one:
                loads = [b.load(buffer, start + one) for buffer, start in taken]
                b.store(reduce(partial(b.vector, "fadd"), loads), self._all, at + one)
            return
        group = self._group // len(taken)
        for first in range(0, size, group):
            numbers = range(first, min(first + group, size))
            loaded = [[b.load(buffer, start + each) for buffer, start in taken]
                      for each in numbers]
            for each, vectors in zip(numbers, loaded, strict=True):
                b.store(reduce(partial(b.vector, "fadd"), vectors), self._all, at + each)

    def _send(self, kind: int, number: int, axis: int, at: Any, target: Any) -> None:
        """Write the transfer from place ``at`` to place ``target`` of the next chip's workspace.

        ``kind`` is `_SCATTER` for a block, 0 for a piece of quarter ``number``.
        """
        following = _QUARTERS * number + axis
        self._transfer(kind + (number if kind else following), at,
                       self._base(1 + following) + target)

    def _hand_over(self, number: int, at: Any) -> None:
        """Write the transfer of a complete piece to the other core, unless a kernel follows."""
        if not self._leads:
            self._transfer(_COMPLETE + number, at, self._base(0) + at)

    def _base(self, number: int) -> SReg:
        return self._b.smem_load(self._image + _BASES + number)

    def _descriptors(self) -> dict[int, tuple[int, ...]]:
        """Return the words of all descriptors, by number, with addresses of 0."""
        near, made = self._semaphores, dict[int, Descriptor]()
        for number, quarter in enumerate(self._quarters):
            rows = quarter.size * self._config.sublanes
            made[_PAIR + number] = Descriptor(
                DmaSpace.VMEM, DmaSpace.OTHER_VMEM, rows, semaphore=near.paired, signal_other=True)
            made[_COMPLETE + number] = Descriptor(
                DmaSpace.VMEM, DmaSpace.OTHER_VMEM, rows, semaphore=near.complete, signal=True,
                signal_other=True)
            for at, axis, count in ((_QUARTERS * number, 0, 1), (_QUARTERS * number + 1, 1, 1),
                                    (_SCATTER + number, 0, quarter.pieces)):
                made[at] = Descriptor(
                    DmaSpace.VMEM, DmaSpace.REMOTE_VMEM, count * rows,
                    destination_address=pack_remote(
                        *self._hops(number, axis, 1), self._core) << 32,
                    semaphore=near.sent, signal=True, signal_remote=True,
                    remote_semaphore=self._link(number, axis, arrives=True))
        return {number: descriptor.pack() for number, descriptor in made.items()}

    def _descriptor(self, number: int) -> int:
        """Return the address of a descriptor."""
        return self._descriptors_at + self._separate * number * DESCRIPTOR_WORDS

    def _transfer(self, number: int, source: Any, target: Any) -> None:
        """Write a transfer from place ``source`` of the workspace to the address ``target``.

        ``number`` is that of its descriptor.
        """
        b, at = self._b, self._descriptor(number)
        for word, value in () if self._separate else enumerate(self._descriptors()[number]):
            if word in (0, 1, _DESTINATION + 1):
                b.smem_store(value, at + word)
        b.smem_store(b.value(source + self._workspace.address), at + _SOURCE)
        b.smem_store(b.value(target), at + _DESTINATION)
        b.dma(at)

    def _hops(self, number: int, axis: int, sign: int) -> tuple[int, int]:
        """Return the hops to the next chip along ``axis``, or to the previous if ``sign`` is -1."""
        quarter = self._quarters[number]
        hops = sign * quarter.way
        return (hops, 0) if quarter.axes[axis] == 0 else (0, hops)
