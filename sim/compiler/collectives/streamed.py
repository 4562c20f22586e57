"""The code of a core that sums values in vector memory over all cores of a pod, at the links' rate.

The sum goes through the phases of `sim.compiler.collectives.plan`, piece by piece, as
`sim.compiler.collectives.program` does. Before the first phase, the cores of a chip add their
numbers: core 0 sends to core 1 its numbers of the half that core 1 reduces, and core 1 does the
same for core 0. Each complete piece also goes to the other core of the chip.
`sim.compiler.collectives.shares` defines where pieces lie.

Walks through the blocks begin at places that depend on the chip. These places, and the addresses of
the workspaces of other cores, are in an *image*, which is in scalar memory when the code begins.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from golden.dma import Descriptor
from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace, pack_remote
from sim.compiler.collectives.plan import CORES, WAYS
from sim.compiler.collectives.shares import SumShares
from sim.compiler.machine import VmemBuffer
from sim.compiler.machine.builder import Builder
from sim.compiler.machine.ir import IndexLike, SReg

__all__ = ["Semaphores", "StreamedSum", "image_words", "sum_image"]

_SOURCE, _DESTINATION = 2, 6
"""Words of a descriptor: the low words of its source's and its destination's address."""
_BASES = 0
_WALKS = _BASES + 1 + 2 * len(WAYS)
_WALK_WORDS = 2 * len(WAYS)
_DESCRIPTORS = _WALKS + CORES * _WALK_WORDS
"""Where the parts of an image begin: the addresses of workspaces; where the walks begin, for each
core; and the descriptors."""
_PAIR, _COMPLETE, _SCATTER = (2 * len(WAYS) + number for number in range(3))
"""Numbers of descriptors. Those before them are for pieces that go to the next chip, for each way
along each axis. `_PAIR`: for numbers that the other core adds. `_COMPLETE`: for complete pieces
that go to the other core. From `_SCATTER` on, for each way: for the blocks of the first phase."""
_SEPARATE = _SCATTER + len(WAYS)
"""Number of descriptors, if each use has one of its own."""
_GROUP = 24
"""Maximum number of vector registers that the loads of one group of additions fill."""
_AXES = "x", "y"


@dataclass(frozen=True)
class Semaphores:
    """Numbers of the semaphores that a sum uses. All are zero before and after it.

    Attributes
    ----------
    links : mapping
        For the kind of ring ("x" or "y") and a direction (1 or -1): counts signals from the next
        chip in that direction. The first says that its workspace is free; each further one, that a
        piece (in the first phase, a block) from it has arrived.
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


def image_words(room: int) -> int:
    """Return the number of words of an image; scalar memory has room for ``room`` words.

    If they suffice, there are `_SEPARATE` descriptors, of which only addresses change. Otherwise,
    there is only one, and the code writes all of it before each transfer.
    """
    most = _DESCRIPTORS + _SEPARATE * DESCRIPTOR_WORDS
    return most if most <= room else _DESCRIPTORS + DESCRIPTOR_WORDS


def sum_image(shares: SumShares, core: int, place: tuple[int, int], bases: Sequence[int]
              ) -> list[int]:
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
        sends: along its first axis forward and backward, then along its second axis forward and
        backward. Those along the second axis are missing if there is only one chip along it.
    """
    words = [0] * _DESCRIPTORS
    words[_BASES:_BASES + len(bases)] = bases
    for number, walked in enumerate((core, 1 - core)):
        (one, two), (_, second) = shares.axes(walked), shares.sides(walked)
        block, at = shares.block(walked), _WALKS + number * _WALK_WORDS
        for way in range(len(WAYS)):
            words[at + 2 * way] = place[one] * second * block
            words[at + 2 * way + 1] = place[two] * block
    return words


class _Walk:
    """Scalar registers of a walk through the blocks of both of a core's quarters at once.

    A walk begins with the block that the core of this chip sends first.
    """

    def __init__(self, b: Builder, shares: SumShares, core: int, image: int) -> None:
        self._b = b
        (first, second), self._block = shares.sides(core), shares.block(core)
        self._segment = second * self._block
        self._quarter = first * self._segment
        self._first = shares.start(core)
        self._segments = [b.scalar_variable(b.smem_load(image + 2 * way))
                          for way in range(len(WAYS))]
        self._blocks = [b.scalar_variable(b.smem_load(image + 2 * way + 1))
                        for way in range(len(WAYS))]

    def copy(self) -> "_Walk":
        """Return a walk in registers of its own, which is at the same block."""
        made = copy(self)
        made._segments = [self._b.scalar_variable(register) for register in self._segments]
        made._blocks = [self._b.scalar_variable(register) for register in self._blocks]
        return made

    def at(self, way: int) -> Any:
        """Return the first vector, in the workspace, of the current block of quarter ``way``."""
        return self._segments[way] + self._blocks[way] + (self._first + way * self._quarter)

    def next_block(self) -> None:
        """Go on to the next block of the segment; after the last one, to the first."""
        self._advance(self._blocks, self._block, self._segment)

    def next_segment(self) -> None:
        """Go on to the next segment; after the last one, to the first."""
        self._advance(self._segments, self._segment, self._quarter)

    def _advance(self, registers: Sequence[SReg], step: int, size: int) -> None:
        if step == size:
            return
        b = self._b
        for register, way in zip(registers, WAYS, strict=True):
            b.assign(register, register - way * step)
            with b.when("lt" if way > 0 else "ge", register, 0 if way > 0 else size):
                b.assign(register, register + way * size)


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
    """

    def __init__(self, b: Builder, shares: SumShares, core: int, workspace: VmemBuffer,
                 image: range, semaphores: Semaphores) -> None:
        self._b, self._shares, self._core, self._image = b, shares, core, image.start
        self._separate = len(image) >= _DESCRIPTORS + _SEPARATE * DESCRIPTOR_WORDS
        self._config: Config = b.config
        self._semaphores = semaphores
        self._workspace = workspace
        self._all, self._pairs, *arrivals = (
            workspace.part(numbers) for numbers in shares.buffers(core))
        self._arrivals = arrivals
        self._first, self._second = shares.sides(core)
        self._size, self._block = shares.sizes[core], shares.block(core)
        self._segment = self._second * self._block
        self._kinds = [_AXES[axis] for axis in shares.axes(core)]

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
        b, near = self._b, self._semaphores
        self._invite()
        self._walk = _Walk(b, self._shares, self._core, self._image + _WALKS)
        self._other = _Walk(b, self._shares, 1 - self._core, self._image + _WALKS + _WALK_WORDS)
        self._bases = [b.smem_load(self._image + _BASES + number)
                       for number in range(1 + len(WAYS) * (1 + (self._second > 1)))]
        # The other core gets its first block while this core copies its own half.
        theirs, own = (
            range(self._shares.start(core), self._shares.start(core) + self._shares.half(core))
            for core in (1 - self._core, self._core))
        self._copy(operands, theirs)
        b.wait(near.free, 1)
        self._begin_pairs()
        self._copy(operands, own)
        for kind, side in zip(self._kinds, (self._first, self._second), strict=True):
            for way in WAYS if side > 1 else ():
                b.wait(near.links[kind, way], 1)
        self._scatter()
        self._gather()
        blocks = (self._first - 1) * self._second
        pieces = (blocks + 2 * (self._second - 1)) * self._shares.pieces
        b.wait(near.sent, len(WAYS) * (blocks + pieces))
        b.wait(near.complete, 2 * len(WAYS) * self._shares.chips * self._shares.pieces)

    def _invite(self) -> None:
        """Write signals to all cores that send to this one: this core's workspace is free."""
        b = self._b
        for axis, (kind, side) in enumerate(zip(self._kinds, (self._first, self._second),
                                                strict=True)):
            for way in WAYS if side > 1 else ():
                b.signal_remote(self._semaphores.links[kind, way],
                                pack_remote(*self._hops(axis, -way), self._core), 1)
        b.signal_other(self._semaphores.free, 1)

    def _copy(self, operands: Sequence[VmemBuffer], half: range) -> None:
        """Write loops that copy the part of the operands in ``half`` of the workspace to it."""
        first = 0
        for operand in operands:
            begin = max(half.start - first, 0)
            count = min(half.stop - first, operand.vectors) - begin
            if count > 0:
                with self._b.loop(count) as i:
                    self._b.store(self._b.load(operand, i + begin), self._all, i + (first + begin))
            first += operand.vectors

    # ---- the other core's half

    def _begin_pairs(self) -> None:
        """Write code that sends the other core the first block of both quarters of its half.

        Block n + 1 follows while this core works on block n of its own half (`_pair`).
        """
        b, shares = self._b, self._shares
        self._steps = b.scalar_variable(shares.chips)
        self._turn = b.scalar_variable(shares.sides(1 - self._core)[1])
        start = shares.buffers(1 - self._core)[1].start
        self._targets = [b.scalar_variable(
            self._bases[0] + (start + way * shares.quarter(1 - self._core)))
            for way in range(len(WAYS))]
        with b.loop(shares.pieces) as q:
            self._send_pairs(q)
        self._next_pairs()

    def _pair(self, q: IndexLike) -> None:
        """Write code that sends the other core piece ``q`` of the next block of both its quarters.

        It sends nothing after the last block.
        """
        with self._b.unless("eq", self._steps, 0):
            self._send_pairs(q)

    def _send_pairs(self, q: IndexLike) -> None:
        size = self._shares.sizes[1 - self._core]
        for way, target in enumerate(self._targets):
            self._transfer(_PAIR, self._other.at(way) + q * size, target)
            self._b.assign(target, target + size)

    def _next_pairs(self) -> None:
        """Write code that goes on to the next block of the other core's half."""
        b = self._b
        b.assign(self._steps, self._steps - 1)
        self._other.next_block()
        b.assign(self._turn, self._turn - 1)
        with b.when("eq", self._turn, 0):
            self._other.next_segment()
            b.assign(self._turn, b.value(self._shares.sides(1 - self._core)[1]))

    # ---- the phases

    def _scatter(self) -> None:
        """Write the first two phases; the second one begins with the last segment of the first."""
        b = self._b
        self._piece = b.scalar_variable(0)
        self._blocks(self._second, partial(self._scattered, begins=True), scatters=True)
        self._walk.next_segment()
        if self._first > 2:
            with b.loop(self._first - 2):
                self._blocks(self._second, self._scattered, waits=True, scatters=True)
                self._walk.next_segment()
        self._blocks(1, partial(self._completed, begins=True, ends=self._second == 1), waits=True)
        if self._second > 2:
            self._blocks(self._second - 2, self._completed, waits=True)
        if self._second > 1:
            self._blocks(1, partial(self._completed, ends=True), waits=True)

    def _scattered(self, way: int, at: SReg, *, begins: bool = False) -> None:
        """Write the code for a piece of the first phase, at place ``at`` of the workspace.

        ``begins`` says that nothing arrives from another chip to be added.
        """
        self._b.wait(self._semaphores.paired, 1)
        self._add(way, at, [] if begins else [self._arrived(0, way)])

    def _completed(self, way: int, at: SReg, *, begins: bool = False, ends: bool = False) -> None:
        """Write the code that completes a piece along the first axis, and continues it.

        ``begins`` says that nothing arrives along the second axis to be added, and ``ends`` that
        the piece is then complete along that axis, too.
        """
        self._b.wait(self._semaphores.paired, 1)
        parts = [self._arrived(0, way)]
        if not begins:
            self._await(1, way)
            parts.append(self._arrived(1, way))
        self._add(way, at, parts)
        if not ends:
            self._send(1, way, at, self._slot(1, way, self._piece))
            return
        if self._second > 1:
            self._send(1, way, at, at)
        self._send(0, way, at, at)
        self._hand_over(at)

    def _gather(self) -> None:
        """Write the last two phases.

        On a ring of two chips, nothing that arrives in the last phase goes on to other chips. Then
        this phase follows the one before it by a block, so that the core is not late at the end.
        """
        b = self._b
        if self._first == 2 and self._second > 1:
            late = self._walk.copy()
            late.next_segment()
            with b.loop(self._second - 1):
                late.next_block()
            if self._second > 2:
                with b.loop(self._second - 2):
                    self._blocks(1, partial(self._gathered, 1, on=True), pairs=False, late=late)
            self._blocks(1, partial(self._gathered, 1, on=False), pairs=False, late=late)
            self._walk = late
            self._blocks(1, partial(self._gathered, 0, on=False), pairs=False)
            return
        for axis, side, blocks in ((1, self._second, 1), (0, self._first, self._second)):
            if not axis:
                self._walk.next_segment()
            if side > 2:
                with b.loop(side - 2):
                    self._blocks(blocks, partial(self._gathered, axis, on=True), pairs=False)
                    self._after(axis)
            if side > 1:
                self._blocks(blocks, partial(self._gathered, axis, on=False), pairs=False)
                self._after(axis)

    def _after(self, axis: int) -> None:
        if not axis:
            self._walk.next_segment()

    def _gathered(self, axis: int, way: int, at: SReg, *, on: bool) -> None:
        """Write the code for a complete piece that arrives along ``axis``.

        ``on`` says that the next chip along this axis needs it, too.
        """
        self._await(axis, way)
        if on:
            self._send(axis, way, at, at)
        if axis:
            self._send(0, way, at, at)
        self._hand_over(at)

    # ---- parts of a step

    def _blocks(self, count: int, step: Callable[..., None], *, pairs: bool = True,
                waits: bool = False, scatters: bool = False, late: _Walk | None = None) -> None:
        """Write loops over pieces of ``count`` blocks.

        Parameters
        ----------
        count : int
        step : callable
            Writes what is done with a piece. It gets the number of the way, and the piece's place
            in the workspace.
        pairs : bool
            Send pieces for the other core, too, and add each piece's vectors to register `_piece`,
            which counts the vectors of a quarter that are done.
        waits : bool
            Wait, before a block, until the one that arrives along the first axis is complete.
        scatters : bool
            Send each block along the first axis. A link's queue has only a few places, so whole
            blocks let the core go on to the next phase.
        late : _Walk or None
            If given, a walk through as many blocks of the last phase, which are received, too.
        """
        b = self._b
        with b.loop(count):
            for way in range(len(WAYS)) if waits else ():
                self._await(0, way)
            places = [b.scalar_variable(walk.at(way)) for walk in (self._walk, late)
                      for way in range(len(WAYS)) if walk is not None]
            with b.loop(self._shares.pieces) as q:
                if pairs:
                    self._pair(q)
                for number, at in enumerate(places):
                    if number < len(WAYS):
                        step(number, at)
                    else:
                        self._gathered(0, number - len(WAYS), at, on=False)
                    b.assign(at, at + self._size)
                if pairs:
                    b.assign(self._piece, self._piece + self._size)
            for way in range(len(WAYS)) if scatters else ():
                self._transfer(_SCATTER + way, self._walk.at(way), self._bases[1 + way]
                               + self._slot(0, way, self._piece - self._block))
            if pairs:
                with b.unless("eq", self._steps, 0):
                    self._next_pairs()
            for walk in (self._walk, late):
                if walk is not None:
                    walk.next_block()

    def _start(self, axis: int, way: int) -> int:
        """Return a piece's place on arrival along ``axis``, less the sender's `_piece`.

        The place is counted in vectors from the start of the buffer for pieces that arrive.
        """
        buffer, before = self._arrivals[axis], axis * (self._first - 1) * self._segment
        return way * (buffer.vectors // len(WAYS)) - before

    def _slot(self, axis: int, way: int, piece: Any) -> Any:
        """Return the place, in the next chip's workspace, where a piece arrives along ``axis``.

        ``piece`` is the value of `_piece` for the piece that is sent.
        """
        start = self._arrivals[axis].address - self._workspace.address
        return piece + (start + self._start(axis, way))

    def _arrived(self, axis: int, way: int) -> tuple[VmemBuffer, Any]:
        """Return the buffer and the place in it where the current piece has arrived."""
        sent = self._segment if axis == 0 else self._block
        return self._arrivals[axis], self._piece + (self._start(axis, way) - sent)

    def _await(self, axis: int, way: int) -> None:
        self._b.wait(self._semaphores.links[self._kinds[axis], -WAYS[way]], 1)

    def _add(self, way: int, at: SReg, parts: Sequence[tuple[VmemBuffer, Any]]) -> None:
        """Write code that adds this core's numbers, the other core's, and ``parts``, which arrived.

        The sum replaces this core's numbers, at place ``at`` of the workspace.
        """
        b, quarter = self._b, self._shares.quarter(self._core)
        taken = [(self._all, at + 0), (self._pairs, self._piece + way * quarter), *parts]
        group = _GROUP // len(taken)
        for first in range(0, self._size, group):
            numbers = range(first, min(first + group, self._size))
            loaded = [[b.load(buffer, start + number) for buffer, start in taken]
                      for number in numbers]
            for number, vectors in zip(numbers, loaded, strict=True):
                b.store(reduce(partial(b.vector, "fadd"), vectors), self._all, at + number)

    def _send(self, axis: int, way: int, at: Any, target: Any) -> None:
        """Write the transfer of the piece at ``at`` to place ``target`` of the next chip."""
        number = len(WAYS) * axis + way
        self._transfer(number, at, self._bases[1 + number] + target)

    def _hand_over(self, at: Any) -> None:
        """Write the transfer of a complete piece to the other core."""
        self._transfer(_COMPLETE, at, self._bases[0] + at)

    def _descriptors(self) -> dict[int, tuple[int, ...]]:
        """Return the words of all descriptors, by number, with addresses of 0."""
        near, rows = self._semaphores, self._size * self._config.sublanes
        other = self._shares.sizes[1 - self._core] * self._config.sublanes
        made = {_PAIR: Descriptor(DmaSpace.VMEM, DmaSpace.OTHER_VMEM, other,
                                  semaphore=near.paired, signal_other=True),
                _COMPLETE: Descriptor(DmaSpace.VMEM, DmaSpace.OTHER_VMEM, rows,
                                      semaphore=near.complete, signal=True, signal_other=True)}
        block = self._block * self._config.sublanes
        for first, axis, size in ((0, 0, rows), (len(WAYS), 1, rows), (_SCATTER, 0, block)):
            for number, way in enumerate(WAYS if axis == 0 or self._second > 1 else ()):
                made[first + number] = Descriptor(
                    DmaSpace.VMEM, DmaSpace.REMOTE_VMEM, size,
                    destination_address=pack_remote(*self._hops(axis, way), self._core) << 32,
                    semaphore=near.sent, signal=True, signal_remote=True,
                    remote_semaphore=near.links[self._kinds[axis], -way])
        return {number: descriptor.pack() for number, descriptor in made.items()}

    def _descriptor(self, number: int) -> int:
        """Return the address of a descriptor."""
        return self._image + _DESCRIPTORS + self._separate * number * DESCRIPTOR_WORDS

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

    def _hops(self, axis: int, way: int) -> tuple[int, int]:
        return (way, 0) if self._kinds[axis] == "x" else (0, way)
