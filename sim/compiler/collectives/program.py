"""The program of a core for an all-reduce, the same for all chips.

The program goes through the phases of `sim.compiler.collectives.plan` piece by piece. Each step of
a loop handles one piece of both quarters: it waits until the piece has arrived, adds it, and sends
it on. So transfers from HBM, the links in both directions, the vector unit, and transfers to HBM
work at the same time. A phase begins with the first pieces that the phase before it completes.

No buffer for arriving pieces is used twice in a round, so neighbours synchronize once a round:
when a core's buffers are free, it signals this to the four neighbours that send pieces to it.
In phases 3 and 4, a piece with its final value replaces the partial sum of that piece. The core no
longer needs this sum: it has already sent it, because the final value depends on it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from hdl.dma.format import pack_remote
from sim.asm.assembler import Program
from sim.asm.descriptor import descriptor, hbm, remote_vmem, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.compiler.collectives.plan import WAYS, RingPlan

__all__ = ["AHEAD", "BEHIND", "Word", "reduce_program", "scalar_memory"]


class Word(IntEnum):
    """Addresses of the words in scalar memory that depend on the chip.

    *For each way* means two words: one for the quarter that goes forward, one for the quarter that
    goes backward.
    """

    FIRST = 0
    """Holds the chip's coordinate along the core's first axis."""
    SOURCE = 1
    """Holds the HBM address of the first of the chip's one or two arrays."""
    SOURCE_STEP = 2
    """Holds the distance in bytes from the first array to the second."""
    RESULT = 3
    RESULT_STEP = 4
    """`RESULT` and `RESULT_STEP`: the address of the first sum in HBM, and the distance in bytes
    from the first sum to the second.
    """
    BLOCK = 5
    """Holds, for each way, the number of the block that the chip sends first in each segment."""
    RANK = 7
    """Holds, for each way, the chip's rank (`RingPlan.rank`)."""
    SHIFT = 9
    """Holds, for each way, the number of vectors from a block's place in this chip's buffer to its
    place in the next chip's: the size of a block if this chip has the greatest rank, otherwise 0.
    """
    SENDS = 11
    """Holds the number of pieces that the core sends in a round, both ways together."""


_SENDS = 12
_PITCH = 10
_LOAD = _SENDS + 4 * _PITCH
_STORE = _LOAD + _PITCH
_SOURCE, _DESTINATION = 2, 6
"""Numbers of the descriptor words that hold the low 32 bits of the source's and of the
destination's address.
"""

_ARRIVED = ((0, 1), (2, 3))
"""Semaphores that count the arrived pieces, by axis (0 is the core's first) and by way."""
_LOADED, _STORED, _SENT, _FREE = 4, 5, 6, 7

# Scalar registers.
_AT = "s1"
"""Register of the current piece's position: its distance in vectors from its quarter's start."""
_COUNT = "s2"
_BASE, _STEP = "s11", "s12"
"""`_BASE` holds the HBM address of the current round's forward quarter: in the first array while
arrays are loaded, in the first sum while sums are stored. `_STEP` holds the distance in bytes from
the first array (or sum) to the second.
"""
_T, _U = "s13", "s14"
_SUM, _ADDEND = "s15", "s16"
_RETURN = "s17"
_LOAD_AT, _LOADS_LEFT = "s18", "s19"
_ROUNDS, _ROUND = "s20", "s21"
"""`_ROUNDS` holds the number of rounds whose phase 2 has not ended yet. `_ROUND` holds the offset
in bytes of the current round in the array.
"""
_TO = "s22"
_FOLLOW_AT, _LAG = _LOAD_AT, _LOADS_LEFT
"""`_FOLLOW_AT` holds the position of the piece that subroutine ``follow`` stores next. `_LAG` holds
the number of calls of ``follow`` that still do nothing.
"""
_FOLLOWED = "s31"
AHEAD = 3
"""Number of pieces, for each way, whose loads from HBM start before the first piece is used."""
BEHIND = 6
"""Number of pieces, for each way, that a core sends in phase 4 before it waits for an arrival."""


@dataclass(frozen=True)
class _Walk:
    """Scalar registers of a *walk*: a loop through an array in HBM, piece by piece.

    An attribute that is a tuple has one register for each way, forward and backward.

    Attributes
    ----------
    at : tuple of str
        Address of the current piece in HBM.
    block, segment : tuple of str
        Offset in bytes of the piece's block in its segment, and of that segment in the quarter.
    pieces, blocks : str
        Numbers of pieces left in the block and of blocks left in the segment, including the current
        piece and block.
    next : str
        Name of the subroutine that moves the walk to the next piece.
    """

    at: tuple[str, str]
    block: tuple[str, str]
    segment: tuple[str, str]
    pieces: str
    blocks: str
    next: str


_WALK = _Walk(("s3", "s4"), ("s5", "s6"), ("s7", "s8"), "s9", "s10", "next")
_LATER = _Walk(("s23", "s24"), ("s25", "s26"), ("s27", "s28"), "s29", "s30", "next_later")
"""`_WALK`: the main walk. `_LATER`: in phase 4, the walk through all segments but the last."""


@dataclass(frozen=True)
class _Send:
    """How a core sends the current piece to a neighbour along ``axis``; 0 is the core's first axis.

    The piece goes to the neighbour's buffer of sums or, if ``scatters``, to its buffer for pieces
    that arrive along this axis. Its position in that buffer is its position in this core's buffer
    of sums plus ``offset``, in vectors; if ``shifts``, the number in `Word.SHIFT` is added, too.
    """

    axis: int
    offset: int
    scatters: bool = False
    shifts: bool = False


class _Writer:
    """Writes the subroutines of a core's program, and the code that begins its walks (`_Walk`).

    Parameters
    ----------
    plan : RingPlan
        How the all-reduce divides its array.
    core : int
        Number of the core.
    """

    def __init__(self, plan: RingPlan, core: int) -> None:
        self._plan, self._core = plan, core
        self._sides = plan.sides(core)
        self._lines: list[str] = []
        self._labels = 0
        first, second = self._sides
        self._blocks, self._in_block = plan.blocks(core), plan.block // plan.piece
        self._segment = self._blocks * plan.block
        across = self._blocks if plan.spread > 1 else second - 1
        # Buffers, by way: the array, the second array, and the pieces that arrive along each axis.
        starts, end = [], 0
        for size in (plan.quarter, plan.quarter * (plan.arrays - 1),
                     (first - 1) * self._segment, across * plan.block):
            starts.append((end, end + size))
            end += len(WAYS) * size
        self._sums, self._others, *self._arrivals = starts
        assert end <= plan.config.vmem_vectors

    def _subroutines(self) -> None:
        """Write all subroutines.

        ``follow`` returns to the address in register `_FOLLOWED`, all others to that in `_RETURN`.
        """
        self._write_add()
        plan = self._plan
        self._label("load")
        self._put(f"s1.beq {_LOADS_LEFT}, 0, loaded")
        for number, buffers in enumerate((self._sums, self._others)[:plan.arrays]):
            self._move(_LOAD, buffers, _LOAD_AT, _WALK, _SOURCE, _DESTINATION, number)
        self._put(f"s0.add {_LOAD_AT}, {_LOAD_AT}, {plan.piece} "
                  f"| s1.add {_LOADS_LEFT}, {_LOADS_LEFT}, -1")
        self._write_next(_WALK)
        self._label("loaded")
        self._put(f"s1.jump {_RETURN}")
        for name, at, walk in (("store", _AT, _WALK), ("store_later", _FOLLOW_AT, _LATER)):
            self._label(name)
            for number in range(plan.arrays):
                self._move(_STORE, self._sums, at, walk, _DESTINATION, _SOURCE, number)
            self._put(f"s1.jump {walk.next}")
        self._write_next(_LATER)
        self._write_follow()

    def _write_follow(self) -> None:
        """Write the subroutine ``follow``: wait for the next piece of segment 0, then store it.

        The program calls it once for each piece that it sends in phase 3 or 4. The first calls do
        nothing, because the pieces are still on their way; register `_LAG` counts these calls.
        """
        self._label("follow")
        self._put(f"s1.beq {_LAG}, 0, follows")
        self._put(f"s0.add {_LAG}, {_LAG}, -1 | s1.jump {_FOLLOWED}")
        self._label("follows")
        for way in range(len(WAYS)):
            self._put(f"misc.wait sem{_ARRIVED[0][way]}, 1 "
                      f"| s0.add {_SUM}, {_FOLLOW_AT}, {self._sums[way]}")
        self._call("store_later")
        self._put(f"s0.add {_FOLLOW_AT}, {_FOLLOW_AT}, {self._plan.piece} "
                  f"| s1.jump {_FOLLOWED}")

    def _move(self, descriptor: int, buffers: tuple[int, int], at: str, walk: _Walk, far: int,
              near: int, array: int) -> None:
        """Write code that starts two transfers from or to HBM: for each way, a transfer of a piece.

        The transfers use the descriptor at address ``descriptor`` of scalar memory in turn. Before
        each, the word ``far`` of the descriptor becomes the piece's address in HBM, which ``walk``
        has reached. The word ``near`` becomes its address in vector memory: the start of the way's
        buffer, in ``buffers``, plus the number of vectors in register ``at``. ``array`` is the
        array's number, 0 or 1.
        """
        for way, first in enumerate(walk.at):
            source = _U if array else first
            if array:
                self._put(f"s0.add {source}, {first}, {_STEP}")
            self._put(f"s0.store {source}, s0, {descriptor + far} "
                      f"| s1.add {_T}, {at}, {buffers[way]}")
            self._put(f"s0.store {_T}, s0, {descriptor + near}")
            self._put(f"misc.dma {descriptor}")

    def _write_add(self) -> None:
        """Write the subroutine ``add``: add one piece to another in vector memory.

        Registers `_ADDEND` and `_SUM` hold the addresses of the pieces; the sum replaces the piece
        at `_SUM`.

        Each vector of the sum takes two cycles, one for each load. It is added four cycles after
        its first load, and stored after four more.
        """
        self._label("add")
        vectors, depth = self._plan.piece, 6
        steps: list[list[str]] = [[] for _ in range(2 * vectors + 7)]
        for number in range(vectors):
            total, addend = 1 + number % depth, 1 + depth + number % depth
            at = 2 * number
            steps[at].append(f"ld.load v{total}, {_SUM}, {number}")
            steps[at + 1].append(f"ld.load v{addend}, {_ADDEND}, {number}")
            steps[at + 4].append(f"v0.fadd v{total}, v{total}, v{addend}")
            steps[at + 8].append(f"st.store v{total}, {_SUM}, {number}")
        steps[-1].append(f"s1.jump {_RETURN}")
        for step in steps:
            self._put(" | ".join(step))

    def _write_next(self, walk: _Walk) -> None:
        """Write the subroutine that moves ``walk`` to the next piece."""
        plan = self._plan
        self._label(walk.next)
        size = plan.piece * plan.vector_bytes
        self._put(" | ".join(f"s{way}.add {at}, {at}, {size}" for way, at in enumerate(walk.at)))
        self._put(f"s1.loop {walk.pieces}, {_RETURN}")
        inside = self._new()
        self._put(f"s0.add {walk.pieces}, s0, {self._in_block} "
                  f"| s1.loop {walk.blocks}, {inside}")
        self._rotate(walk.segment, 0, -1)
        self._put(f"s0.add {walk.blocks}, s0, {self._blocks}")
        self._label(inside)
        self._rotate(walk.block, 1, -1)
        self._address(walk)
        self._put(f"s1.jump {_RETURN}")

    def _begin(self, walk: _Walk, word: Word, step: int) -> None:
        """Write the start of a walk: at segment 0 or, if ``step`` is -1, at the last segment.

        ``word`` of scalar memory has the address of the first array; the next word has the distance
        from the first array to the second.
        """
        plan = self._plan
        for place, following, offsets, axis in ((Word.BLOCK, 1, walk.block, 1),
                                                (Word.FIRST, 0, walk.segment, 0)):
            self._put(f"s0.load {_T}, s0, {place.value}")
            self._put(f"s0.load {_U}, s0, {place + following}")
            self._put(" | ".join(f"s{way}.mul {offset}, {number}, {self._pitch(axis)}"
                                 for way, (offset, number) in enumerate(zip(
                                     offsets, (_T, _U), strict=True))))
        if step:
            self._rotate(walk.segment, 0, 1)
        self._put(f"s0.load {_T}, s0, {word.value}")
        self._put(f"s0.load {_STEP}, s0, {word.value + 1} | s1.add {_BASE}, {_T}, {_ROUND}")
        half = self._core * len(WAYS) * plan.quarter * plan.vector_bytes
        self._put(f"s0.add {_BASE}, {_BASE}, {half}")
        self._put(f"s0.add {walk.pieces}, s0, {self._in_block} "
                  f"| s1.add {walk.blocks}, s0, {self._blocks}")
        self._address(walk)

    def _rotate(self, offsets: tuple[str, str], axis: int, sign: int) -> None:
        """Write code that moves the two ways' offsets by a segment (axis 0) or a block (axis 1).

        With ``sign`` 1, each offset moves in the direction of its way; with -1, against it. At the
        end of the ring, an offset starts again at the ring's other end.
        """
        pitch = self._pitch(axis)
        whole = pitch * (self._blocks if axis else self._sides[0])
        # From an offset that grows, `whole` is subtracted: a sum outside of the ring is negative.
        steps = [pitch - whole if sign * way > 0 else -pitch for way in WAYS]
        names = [(f"s{way}", offset, where) for way, (offset, where) in enumerate(
            zip(offsets, (_T, _U), strict=True))]
        self._put(" | ".join(f"{slot}.add {offset}, {offset}, {step}"
                             for (slot, offset, _), step in zip(names, steps, strict=True)))
        self._put(" | ".join(f"{slot}.sar {t}, {offset}, 31" for slot, offset, t in names))
        self._put(" | ".join(f"{slot}.and {t}, {t}, {whole}" for slot, _, t in names))
        self._put(" | ".join(f"{slot}.add {offset}, {offset}, {t}" for slot, offset, t in names))

    def _address(self, walk: _Walk) -> None:
        """Write code that computes ``walk.at``, a block's address in HBM for each way."""
        quarter = self._plan.quarter * self._plan.vector_bytes
        for base, offsets in (((_BASE, _BASE), walk.segment), (walk.at, walk.block)):
            self._put(" | ".join(f"s{way}.add {at}, {base[way]}, {offsets[way]}"
                                 for way, at in enumerate(walk.at)))
        self._put(f"s0.add {walk.at[1]}, {walk.at[1]}, {quarter}")

    def _pitch(self, axis: int) -> int:
        """Return the size in bytes of a segment (axis 0) or of a block (axis 1)."""
        return (self._plan.block if axis else self._segment) * self._plan.vector_bytes

    def _signal_neighbours(self) -> None:
        """Write code that tells the neighbours that this core's buffers for arrivals are free."""
        for hops in _ways(self._plan, self._core):
            self._put(f"s0.add {_T}, s0, {pack_remote(*hops, self._core)}")
            self._put(f"misc.signal_remote sem{_FREE}, {_T}, 1")

    def _axes(self) -> int:
        return sum(side > 1 for side in self._sides)

    def _put(self, bundle: str) -> None:
        self._lines.append(f"{{ {bundle} }}")

    def _new(self) -> str:
        self._labels += 1
        return f"at{self._labels}"

    def _label(self, name: str) -> None:
        self._lines.append(f"{name}:")

    def _call(self, name: str) -> None:
        self._put(f"s1.call {_RETURN}, {name}")


class _Core(_Writer):
    """Writes the program of a core, phase by phase."""

    def text(self) -> str:
        """Return the program as text."""
        plan = self._plan
        self._put(f"s0.add {_ROUNDS}, s0, {plan.rounds} | s1.add {_ROUND}, s0, 0")
        self._signal_neighbours()
        self._label("round")
        self._begin(_WALK, Word.SOURCE, 0)
        pieces = plan.quarter // plan.piece
        self._put(f"s0.add {_LOAD_AT}, s0, 0 | s1.add {_LOADS_LEFT}, s0, {pieces}")
        for _ in range(min(AHEAD, pieces)):
            self._call("load")
        self._put(f"misc.wait sem{_FREE}, {2 * self._axes()} | s0.add {_AT}, s0, 0")
        self._scatter()
        self._put(f"s0.add {_ROUNDS}, {_ROUNDS}, -1")
        last = self._new()
        self._put(f"s1.beq {_ROUNDS}, 0, {last}")
        self._signal_neighbours()
        self._label(last)
        self._begin(_LATER, Word.RESULT, 0)
        self._begin(_WALK, Word.RESULT, -1)
        self._gather()
        self._put(f"s0.load {_T}, s0, {Word.SENDS.value}")
        self._put(f"misc.wait sem{_SENT}, {_T}")
        self._put(f"misc.wait sem{_STORED}, {pieces * len(WAYS) * plan.arrays}")
        self._put(f"s0.add {_ROUND}, {_ROUND}, {plan.round_bytes} "
                  f"| s1.bne {_ROUNDS}, 0, round")
        self._put("s1.halt")
        self._subroutines()
        return "\n".join(self._lines)

    def _scatter(self) -> None:
        """Write phases 1 and 2, and phase 3's first step, which forwards the complete block."""
        first, second = self._sides
        segment, block, blocks = self._segment, self._plan.block, self._blocks
        last = (first - 1) * segment
        along = _Send(0, 0, scatters=True)
        across = _Send(1, -last, scatters=True, shifts=self._plan.spread > 1)
        complete = _Send(1, -(blocks - 1) * block)
        self._pieces(blocks, load=True, sends=[along])
        self._pieces(blocks * (first - 2), load=True, add=0, sends=[along])
        if second == 1:
            self._pieces(1, load=True, add=0)
            return
        self._pieces(1, load=True, add=0, sends=[across], rank=0)
        self._pieces(blocks - 1, load=True, add=0)
        if self._plan.spread > 1:
            self._put(f"s0.add {_AT}, s0, {last}")
            for count, begins, ends in self._sections():
                self._loop(count * self._in_block,
                           partial(self._scatter_spread, across, complete, begins, ends))
            return
        self._put(f"s0.add {_AT}, s0, {last + block}")
        self._pieces(blocks - 2, add=1, sends=[across])
        self._pieces(1, add=1, sends=[complete])

    def _sections(self) -> Iterator[tuple[int, bool, bool]]:
        """Yield up to three parts of the last segment: the first block, those between, the last.

        Each part is (number of blocks, whether it has the segment's first block, whether it has
        the last).
        """
        blocks = self._blocks
        yield 1, True, blocks == 1
        if blocks > 1:
            yield blocks - 2, False, False
            yield 1, False, True

    def _scatter_spread(self, across: _Send, complete: _Send, begins: bool, ends: bool) -> None:
        """Write phase 2 of spread blocks, for two pieces of the last segment: one for each way.

        ``across`` says how partial sums are sent, and ``complete`` how complete sums are.
        ``begins`` tells whether the pieces belong to the first block of the segment, ``ends``
        whether they belong to the last block.
        """
        for way in range(len(WAYS)):
            done, own = self._new(), self._new()
            self._put(f"s0.add {_SUM}, {_AT}, {self._sums[way]}")
            if begins:
                self._skip(way, 0, done)
            self._put(f"misc.wait sem{_ARRIVED[1][way]}, 1")
            self._add(1, way)
            if ends:
                self._skip(way, self._plan.spread - 1, own)
            self._send(across, way)
            if ends:
                self._put(f"s1.jump {done}")
                self._label(own)
                self._send(complete, way)
            self._label(done)

    def _gather_spread(self, along: _Send, ends: bool) -> None:
        """Write phase 3 of spread blocks, for two pieces of the last segment: one for each way.

        ``along`` says how the pieces are sent on in phase 4; ``ends`` tells whether they belong to
        the last block of the segment.
        """
        for way in range(len(WAYS)):
            skip = self._new()
            self._put(f"s0.add {_SUM}, {_AT}, {self._sums[way]}")
            if ends:
                self._skip(way, self._plan.spread - 1, skip)
            self._put(f"misc.wait sem{_ARRIVED[1][way]}, 1")
            if ends:
                self._skip(way, self._plan.spread - 2, skip)
            self._send(_Send(1, 0, shifts=True), way)
            self._label(skip)
            self._send(along, way)
        self._call("store")
        self._put(f"s1.call {_FOLLOWED}, follow")

    def _skip(self, way: int, rank: int, label: str) -> None:
        """Write a jump to ``label`` that is taken on chips of rank ``rank``."""
        self._put(f"s0.load {_T}, s0, {Word.RANK + way}")
        self._put(f"s1.beq {_T}, {rank}, {label}")

    def _gather(self) -> None:
        """Write phases 3 and 4.

        While the core sends the last segment, segment 0 arrives along the same axis. Its pieces are
        stored in HBM at once, by calls of ``follow`` between the sends; but they are sent on later,
        because a neighbour expects all pieces of a segment before those of the next one.
        """
        first, second = self._sides
        segment, block, blocks = self._segment, self._plan.block, self._blocks
        last = (first - 1) * segment
        pieces = blocks * self._in_block
        behind = min(BEHIND, pieces)
        along = _Send(0, -last)
        self._put(f"s0.add {_FOLLOW_AT}, s0, 0 | s1.add {_LAG}, s0, {behind}")
        self._put(f"s0.add {_AT}, s0, {last}")
        if self._plan.spread > 1:
            for count, _, ends in self._sections():
                self._loop(count * self._in_block, partial(self._gather_spread, along, ends))
        else:
            self._pieces(second - 2, waits=1, sends=[_Send(1, block), along], last=True)
            if second > 1:
                self._pieces(1, waits=1, sends=[along], last=True)
            self._pieces(1, sends=[along], last=True)
        if first == 2:
            self._put(f"s0.add {_COUNT}, s0, {behind}")
            again = self._new()
            self._label(again)
            self._put(f"s1.call {_FOLLOWED}, follow")
            self._put(f"s1.loop {_COUNT}, {again}")
            return
        on = [_Send(0, segment)]
        self._put(f"s0.add {_AT}, s0, 0")
        self._loop(pieces - behind, partial(self._piece, sends=on))
        self._loop(pieces * (first - 3) + behind,
                   partial(self._piece, waits=0, sends=on, store=True))
        self._pieces(blocks, waits=0, store=True)

    def _loop(self, pieces: int, step: Callable[[], None]) -> None:
        """Write a loop over ``pieces`` pieces; ``step`` writes the body.

        Before the loop, register `_AT` holds the position of the first piece; in the loop, that of
        the current piece.
        """
        if pieces <= 0:
            return
        again = self._new()
        self._put(f"s0.add {_COUNT}, s0, {pieces}")
        self._label(again)
        step()
        self._put(f"s0.add {_AT}, {_AT}, {self._plan.piece} | s1.loop {_COUNT}, {again}")

    def _pieces(self, blocks: int, **options: Any) -> None:
        """Write a loop over the pieces of the next ``blocks`` blocks.

        ``options`` are parameters of `_piece`.
        """
        self._loop(blocks * self._in_block, partial(self._piece, **options))

    def _piece(self, *, load: bool = False, waits: int | None = None, add: int | None = None,
               sends: Sequence[_Send] = (), rank: int | None = None, store: bool = False,
               last: bool = False) -> None:
        """Write what a core does with a piece of each way.

        Parameters
        ----------
        load : bool
            Start the load of a later piece, and wait for this one.
        waits, add : int or None
            Number of an axis, 0 for the core's first one: wait for the piece that the neighbour
            along this axis sends. With ``add``, also add that piece to this core's.
        sends : sequence of _Send
            How to send the piece, once for each item.
        rank : int or None
            If given, and blocks are spread, only chips of this rank send the piece.
        store, last : bool
            Store the piece in HBM. ``last`` is for pieces of the last segment: each is followed by
            a call of ``follow``, which stores a piece of segment 0.
        """
        plan = self._plan
        if load:
            self._call("load")
            self._put(f"misc.wait sem{_LOADED}, {len(WAYS) * plan.arrays}")
        for way in range(len(WAYS)):
            self._put(f"s0.add {_SUM}, {_AT}, {self._sums[way]}")
            if load and plan.arrays > 1:
                self._put(f"s0.add {_ADDEND}, {_AT}, {self._others[way]}")
                self._call("add")
            axis = waits if add is None else add
            if axis is not None:
                self._put(f"misc.wait sem{_ARRIVED[axis][way]}, 1")
            if add is not None:
                self._add(add, way)
            other = self._new()
            if rank is not None and plan.spread > 1:
                self._put(f"s0.load {_T}, s0, {Word.RANK + way}")
                self._put(f"s1.bne {_T}, {rank}, {other}")
            for send in sends:
                self._send(send, way)
            self._label(other)
        if store:
            self._put(f"s0.add {_FOLLOW_AT}, {_AT}, 0")
            self._call("store_later")
        if last:
            self._call("store")
            self._put(f"s1.call {_FOLLOWED}, follow")

    def _add(self, axis: int, way: int) -> None:
        """Write code that adds the piece that has arrived along ``axis`` to this core's piece.

        ``way`` is the number of the quarter's direction: 0 is forward, 1 is backward.
        """
        first, _ = self._sides
        begins = self._segment
        if axis:
            begins *= first - 1
            begins += self._plan.block if self._plan.spread == 1 else 0
        self._put(f"s0.add {_ADDEND}, {_AT}, {self._arrivals[axis][way] - begins}")
        self._call("add")

    def _send(self, send: _Send, way: int) -> None:
        """Write the transfer that sends the piece at the address in `_SUM`, as ``send`` says."""
        at = _SENDS + _PITCH * (len(WAYS) * send.axis + way)
        buffer = self._arrivals[send.axis] if send.scatters else self._sums
        offset = buffer[way] - self._sums[way] + send.offset
        self._put(f"s0.store {_SUM}, s0, {at + _SOURCE} | s1.add {_TO}, {_SUM}, {offset}")
        if send.shifts:
            self._put(f"s0.load {_T}, s0, {Word.SHIFT + way}")
            self._put(f"s1.add {_TO}, {_TO}, {_T}")
        self._put(f"s0.store {_TO}, s0, {at + _DESTINATION}")
        self._put(f"misc.dma {at}")


def _hops(plan: RingPlan, core: int, axis: int, way: int) -> tuple[int, int]:
    """Return the hops (dx, dy) to the next chip in direction ``way``, 1 or -1, along ``axis``.

    Axis 0 is the core's first axis.
    """
    hops = [0, 0]
    hops[plan.axes(core)[axis]] = way
    return hops[0], hops[1]


def _ways(plan: RingPlan, core: int) -> Iterator[tuple[int, int]]:
    """Yield the hops (dx, dy) to each neighbour with which a core exchanges pieces."""
    for axis, side in enumerate(plan.sides(core)):
        if side > 1:
            yield from (_hops(plan, core, axis, way) for way in WAYS)


def _sends(plan: RingPlan, core: int, rank: int) -> int:
    """Return how many pieces of one quarter a core sends in a round, on a chip of this rank."""
    (first, second), blocks = plan.sides(core), plan.blocks(core)
    across = 2 * (second - 1)
    if plan.spread > 1:
        # The last block is complete on the chip of the greatest rank; the chip before it does not
        # send the sum on.
        across = 2 * blocks - (rank >= plan.spread - 2)
    return (2 * (first - 1) * blocks + across) * (plan.block // plan.piece)


def reduce_program(plan: RingPlan, core: int) -> Program:
    """Return the program of core number ``core`` of all chips.

    Before a run, the core's scalar memory must hold the result of `scalar_memory`, and its
    semaphores 0 to 7 must be 0; they are 0 again afterwards.

    Raises
    ------
    ValueError
        If the program does not fit instruction memory.
    """
    return assemble(_Core(plan, core).text(), plan.config)


def scalar_memory(plan: RingPlan, core: int, place: tuple[int, int], sources: Sequence[int],
                  results: Sequence[int]) -> list[int]:
    """Return the words that scalar memory of a core must hold, from address 0 on, before a run.

    Parameters
    ----------
    plan : RingPlan
        How the all-reduce divides its array.
    core : int
        Number of the core.
    place : tuple of int
        Coordinates (x, y) of its chip.
    sources, results : sequence of int
        Addresses in HBM of the arrays to add, and of their sums: ``plan.arrays`` each. An array has
        ``plan.bytes`` bytes. A sum may replace its array.
    """
    words = [0] * (_STORE + _PITCH)
    first, second = plan.axes(core)
    words[Word.FIRST] = place[first]
    for number, way in enumerate(WAYS):
        rank = plan.rank(core, place, way)
        words[Word.BLOCK + number] = (
            (place[second] - way * rank) % plan.shape[second] // plan.spread)
        words[Word.RANK + number] = rank
        words[Word.SHIFT + number] = plan.block if rank == plan.spread - 1 else 0
        words[Word.SENDS] += _sends(plan, core, rank)
    for word, addresses in ((Word.SOURCE, sources), (Word.RESULT, results)):
        words[word] = addresses[0]
        words[word + 1] = (addresses[-1] - addresses[0]) % (1 << 32)
    rows = plan.piece * plan.config.sublanes
    transfers = [(_LOAD, hbm(0), vmem(0), {"semaphore": sem[_LOADED]}),
                 (_STORE, vmem(0), hbm(0), {"semaphore": sem[_STORED]})]
    for axis, side in enumerate(plan.sides(core)):
        for way, hops in enumerate(WAYS if side > 1 else ()):
            transfers.append((
                _SENDS + _PITCH * (len(WAYS) * axis + way), vmem(0),
                remote_vmem(0, *_hops(plan, core, axis, hops), core),
                {"semaphore": sem[_SENT], "remote_semaphore": sem[_ARRIVED[axis][way]]}))
    for at, source, destination, signals in transfers:
        words[at:at + _PITCH] = descriptor(plan.config, source, destination, rows=rows, **signals)
    return words
