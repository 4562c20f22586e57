"""Overlays: code of any length, as segments that take turns in instruction memory.

Instruction memory holds a small resident part: the program's start, and the loader. The rest is for
segments. They lie at its two ends in turn, so that a segment is loaded while the one before it
runs. Each has a *scalar image* in one half of a part of scalar memory: the descriptors that it
uses, and those that load the segments to which it can go. A segment that would overwrite the one
that runs is loaded by the loader when that one ends.
Code that fits as one segment is resident as a whole, and only its image is loaded.

A segment consists of

- its start: two transfers that load the segment which most likely follows (`_Segment.next`);
- its part of the code;
- exits, one for each bundle of another segment that it branches to or runs into;
- entries for bundles other than its first that others branch to.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from hdl.isa import BUNDLE_PITCH, BUNDLE_WORDS, Slot
from sim.asm.assembler import Program
from sim.asm.operands import s, sem
from sim.compiler.program.code.cuts import cuts
from sim.compiler.program.code.encode import FIRST_IMMEDIATE_WORD, Operations, encode
from sim.compiler.program.code.stream import STAMP, Linear
from sim.compiler.program.kernel import SCALAR_READ
from sim.compiler.program.places.scalars import ScalarMemory
from sim.compiler.program.places.transfers import (
    Rows,
    TransferWords,
    Vectors,
    Words,
    scalar_words,
    transfer,
)

__all__ = ["CODE", "LOADED", "Overlays", "overlay"]

Image = npt.NDArray[np.uint32]

CODE = "code"
"""Name of the buffer that holds all segments."""
LOADED = 15
"""Semaphore that counts segments loaded."""
"""Semaphore of transfers to the window of scalar memory."""

_PAIR, _TARGET = s[28], s[29]
"""What the loader needs: address of the first of a pair of descriptors, and where to go then."""
_ROUNDS = 64


@dataclass(frozen=True)
class Overlays:
    """A program in a buffer of HBM.

    Attributes
    ----------
    rows : array of uint32, shape (rows, lanes)
        What the buffer holds, but for relocations.
    relocations : tuple of (int, str)
        Words of ``rows``, counted from its start, to which, and to the words behind them, the
        64-bit address of a buffer is to be added.
    start : array of uint32, shape (bundles, BUNDLE_WORDS)
        The resident part, to be loaded at 0; of one segment, all of it.
    address : tuple of (int, int)
        Bundle and immediate that need the low word of the address of the first rows; and those of
        the high word.
    segments : int
        Number of segments.
    offset : int
        Distance in bytes from the buffer's address to what ``address`` needs.
    stamps : tuple of int
        Words of ``rows``, or of ``start`` if it has all segments, at which the bundles before
        kernels begin.
    """

    rows: Image
    relocations: tuple[tuple[int, str], ...]
    start: Image
    address: tuple[tuple[int, int], tuple[int, int]]
    segments: int
    offset: int
    stamps: tuple[int, ...]

    def stopping(self) -> "Overlays":
        """The same program, which stops before each kernel, with its number in `STAMP`."""
        rows, start = self.rows.copy(), self.start.copy()
        flat = (start if self.segments == 1 else rows).reshape(-1)
        stops, _ = encode([[(Slot.S0, "add", (STAMP, s[0], number)), (Slot.S1, "halt", ())]
                           for number in range(1, len(self.stamps) + 1)])
        for stop, word in zip(stops, self.stamps, strict=True):
            flat[word:word + BUNDLE_WORDS] = stop
        return replace(self, rows=rows, start=start)

    def program(self, address: int) -> Program:
        """The resident part, for the address of the buffer."""
        words = self.start.copy()
        first = address + self.offset
        for (bundle, immediate), word in zip(self.address, (first & 0xFFFFFFFF, first >> 32),
                                             strict=True):
            words[bundle, FIRST_IMMEDIATE_WORD + immediate] = word
        data = words.astype("<u4").tobytes()
        size = 4 * BUNDLE_WORDS
        return Program(tuple(int.from_bytes(data[at:at + size], "little")
                             for at in range(0, len(data), size)), {})
@dataclass(eq=False)
class _Segment:
    """A part of the code, from bundle ``first`` to before ``end``.

    Attributes
    ----------
    exits : list of int
        Bundles of other segments that follow bundles of this one; the first, if it `runs_on`, is
        ``end``.
    entries : list of int
        Bundles other than ``first`` that follow bundles of other segments.
    following : _Segment or None
        The segment that most likely follows.
    base : int
        Address of its first bundle.
    ahead : bool
        It is loaded while the one before it runs: `following` does not overlap this one.
    used : list of int
        Descriptors that it uses.
    """

    number: int
    first: int
    end: int
    exits: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    following: "_Segment | None" = None
    base: int = 0
    ahead: bool = False
    used: list[int] = field(default_factory=list)
    targets: "list[_Segment]" = field(default_factory=list)

    @property
    def start(self) -> int:
        """Bundles before its part of the code: loads of the segment that follows."""
        return 2 if self.ahead else 0

    @property
    def bundles(self) -> int:
        """Bundles in instruction memory, at most: as if it had a start."""
        return 2 + self.end - self.first + 2 * len(self.exits) + 3 * len(self.entries)

    @property
    def descriptors(self) -> int:
        """Descriptors of its scalar image."""
        return 2 * len(self.targets) + len(self.used)


def overlay(linear: Linear, constants: Image, config: Config, name: str = "program") -> Overlays:
    """Cut code into segments, and lay out the buffer that holds them.

    Parameters
    ----------
    linear : Linear
        The code. It ends with a halt, and uses neither `LOADED` nor scalar registers 28 and 29.
    constants : array of uint32, shape (rows, lanes)
        First rows of the buffer.
    config : Config
        The chip.
    name : str
        What the program computes, for messages.

    Raises
    ------
    MemoryError
        If the memories of the chip are too small for any segment.
    """
    memory = ScalarMemory(config)
    resident = _resident_bundles()
    area = range(_whole_rows(resident, config), config.imem_bundles)
    segments = _segments(linear, config, len(area), memory, name)
    for segment in segments:
        high = segment.number % 2
        segment.base = area.stop - _occupied(segment.bundles, config) if high else area.start
    # The last segment halts, and must not leave a load behind.
    for segment in segments[:-1]:
        segment.ahead = (segment.following is not None
                         and segment.following.number % 2 != segment.number % 2
                         and not _overlap(segment, segment.following, config))
    return _Writer(linear, constants, config, segments).write()


def _occupied(bundles: int, config: Config) -> int:
    """Bundles of instruction memory that a transfer of so many writes: whole rows."""
    return -(-_code_rows(bundles, config) * config.lanes // BUNDLE_PITCH)


def _code_rows(bundles: int, config: Config) -> int:
    return -(-bundles * BUNDLE_PITCH // config.lanes)


def _whole_rows(bundles: int, config: Config) -> int:
    return _occupied(bundles, config)


def _overlap(one: _Segment, other: _Segment, config: Config) -> bool:
    return (one.base < other.base + _occupied(other.bundles, config)
            and other.base < one.base + _occupied(one.bundles, config))


def _segments(linear: Linear, config: Config, area: int, memory: ScalarMemory,
              name: str) -> list[_Segment]:
    """Cut the code so that each segment fits the area, and its image its half."""
    most = len(memory.images[0]) // DESCRIPTOR_WORDS
    whole = _cut(linear, [0])
    # Nothing else needs the other half.
    if _occupied(whole[0].bundles, config) <= area and whole[0].descriptors <= 2 * most:
        return whole
    spare, spare_descriptors = 8, 4
    # What is not code depends on the cuts: leave more for it until all segments fit.
    for _ in range(_ROUNDS):
        soft, hard = area // 2 - spare, area - spare
        if soft < 1 or most - spare_descriptors < 1:
            break
        segments = _cut(linear, cuts(linear, soft, hard, most - spare_descriptors))
        excess = max(_occupied(segment.bundles, config) for segment in segments) - area
        missing = max(segment.descriptors for segment in segments) - most
        if excess <= 0 and missing <= 0:
            return segments
        spare += max(excess, 0)
        spare_descriptors += max(missing, 0)
    raise MemoryError(f"{name} must be cut into segments of at most {area} bundles and {most} "
                      "descriptors, the memories of this chip; that is not possible")


def _cut(linear: Linear, firsts: Sequence[int]) -> list[_Segment]:
    """Segments, with their exits, entries and descriptors."""
    ends = [*firsts[1:], len(linear.words)]
    segments = [_Segment(number, first, end)
                for number, (first, end) in enumerate(zip(firsts, ends, strict=True))]
    for segment in segments[:-1]:
        if not _jumps(linear, segment.end - 1):
            _connect(segment, segments[segment.number + 1], segment.end)
    starts = np.array(firsts)
    inside = np.searchsorted(starts, linear.branches[:, [0, 2]], side="right") - 1
    for (source, target), (_, _, at) in zip(inside.tolist(), linear.branches.tolist(),
                                            strict=True):
        if source != target:
            _connect(segments[source], segments[target], at)
    for (bundle, _, descriptor) in linear.transfers.tolist():
        segment = segments[int(np.searchsorted(starts, bundle, side="right")) - 1]
        if descriptor not in segment.used:
            segment.used.append(descriptor)
    for segment in segments:
        if segment.targets:
            segment.following = segment.targets[0]
    return segments


def _connect(source: _Segment, target: _Segment, at: int) -> None:
    """Note that bundle ``at`` of a segment follows a bundle of another."""
    if at not in source.exits:
        source.exits.append(at)
    if target not in source.targets:
        source.targets.append(target)
    if at != target.first and at not in target.entries:
        target.entries.append(at)


_JUMP = encode([[(Slot.S1, "jump", ("anywhere",))]])[0][0]


def _jumps(linear: Linear, bundle: int) -> bool:
    """Whether a bundle is a jump alone, as `Stream.jump` writes it."""
    words = linear.words[bundle].copy()
    words[FIRST_IMMEDIATE_WORD:] = 0
    return bool((words == _JUMP).all())


def _resident(config: Config, entry: int, single: bool = False) -> tuple[list[Operations], int]:
    """The program's start and the loader; and the loader's address.

    The start makes a descriptor, which loads the rows that `ScalarMemory.fixed` describes, and runs
    into the loader, which loads a segment with a pair of descriptors and goes there. Of a single
    segment, the start loads the image alone.
    """
    memory = ScalarMemory(config)
    words = transfer(config, Rows(CODE, 0), scalar_words(memory.fixed.start),
                     len(memory.fixed) // config.lanes, LOADED).words
    at, value = memory.kernel.start, s[30]
    sources: list[object] = list(words)
    sources[_ADDRESS_WORDS.start:_ADDRESS_WORDS.stop] = ["low", "high"]
    bundles: list[Operations] = [[(Slot.S1, "add", (value, s[0], sources[0]))]]
    for number in range(DESCRIPTOR_WORDS):
        store = (Slot.S0, "store", (value, s[0], at + number))
        following = [(Slot.S1, "add", (value, s[0], source))
                     for source in sources[number + 1:number + 2]]
        bundles.append([store, *following])
    bundles += [
        [(Slot.MISC, "dma", (at,))],
        [(Slot.MISC, "wait", (sem[LOADED], 1)), *_load(memory.first_pair, entry)],
    ]
    loader = len(bundles)
    if single:
        bundles += [
            [(Slot.MISC, "dma", (_PAIR,))],
            [(Slot.MISC, "wait", (sem[LOADED], 1)), (Slot.S1, "jump", (_TARGET,))],
            [],
        ]
        return bundles, loader
    bundles += [
        [(Slot.MISC, "dma", (_PAIR,)), (Slot.S0, "add", (_PAIR, _PAIR, DESCRIPTOR_WORDS))],
        [(Slot.MISC, "dma", (_PAIR,))],
        [(Slot.MISC, "wait", (sem[LOADED], 1)), (Slot.S1, "jump", (_TARGET,))],
    ]
    return bundles, loader


def _load(pair: int, target: int) -> Operations:
    """Operations that tell the loader what to load, and where to go then."""
    return [(Slot.S0, "add", (_PAIR, s[0], pair)), (Slot.S1, "add", (_TARGET, s[0], target))]


_ADDRESS_WORDS = range(2, 4)
"""Words of a descriptor that hold the source's address."""


def _resident_bundles() -> int:
    return len(_resident(Config(), 0)[0])


class _Writer:
    """Writes segments with their images to the rows of a buffer."""

    def __init__(self, linear: Linear, constants: Image, config: Config,
                 segments: list[_Segment]) -> None:
        self._linear = linear
        self._config = config
        self._segments = segments
        self._single = len(segments) == 1
        self._firsts = [segment.first for segment in segments]
        self._memory = ScalarMemory(config)
        self._loader = _resident(config, 0)[1]
        self._entries: dict[tuple[int, int], int] = {}
        self._exits: dict[tuple[int, int], int] = {}
        self._place()
        self._rows_of = self._arrange(len(constants))
        self._constants = constants

    # ---- addresses

    def _place(self) -> None:
        """Addresses of all exits and entries."""
        for segment in self._segments:
            self._entries[segment.number, segment.first] = segment.base
            at = segment.base + segment.start + segment.end - segment.first
            for target in segment.exits:
                self._exits[segment.number, target] = at
                at += self._exit_size(segment, target)
            for entry in segment.entries:
                self._entries[segment.number, entry] = at
                at += 3 if segment.ahead else 1

    def _owner(self, bundle: int) -> _Segment:
        return self._segments[bisect_right(self._firsts, bundle) - 1]

    def _is_ahead(self, segment: _Segment, target: int) -> bool:
        return segment.ahead and self._owner(target) is segment.following

    def _exit_size(self, segment: _Segment, target: int) -> int:
        return 1 if self._is_ahead(segment, target) else 2

    def _inside(self, segment: _Segment, bundle: int) -> int:
        """Address of a bundle of a segment."""
        return segment.base + segment.start + bundle - segment.first

    # ---- contents

    def _arrange(self, constants: int) -> dict[tuple[str, int], tuple[int, int]]:
        """First row and number of rows: of what the start loads, and of all codes and images."""
        config, lanes = self._config, self._config.lanes
        fixed = len(self._memory.fixed) // lanes
        places = {("fixed", 0): (constants, fixed)}
        at = constants + fixed
        for segment in self._segments:
            image = max(1, -(-segment.descriptors * DESCRIPTOR_WORDS // lanes))
            code = 0 if self._single else _code_rows(self._length(segment), config)
            for what, rows in (("code", code), ("image", image)):
                places[what, segment.number] = (at, rows)
                at += rows
        return places

    def _length(self, segment: _Segment) -> int:
        """Bundles of a segment, as it is."""
        exits = sum(self._exit_size(segment, target) for target in segment.exits)
        entries = (3 if segment.ahead else 1) * len(segment.entries)
        return segment.start + segment.end - segment.first + exits + entries

    def _pair(self, segment: _Segment) -> list[TransferWords]:
        """The descriptors that load a segment: its code, if it is not resident, then its image."""
        code, code_rows = self._rows_of["code", segment.number]
        image, image_rows = self._rows_of["image", segment.number]
        half = self._memory.images[segment.number % 2].start
        load = transfer(self._config, Rows(CODE, image), scalar_words(half), image_rows, LOADED)
        if self._single:
            return [load]
        return [transfer(self._config, Rows(CODE, code),
                         Words(DmaSpace.IMEM, BUNDLE_PITCH * segment.base), code_rows, None), load]

    def _pair_address(self, segment: _Segment, target: _Segment) -> int:
        """Address of the pair that loads another segment, in a segment's image."""
        half = self._memory.images[segment.number % 2].start
        return half + 2 * DESCRIPTOR_WORDS * segment.targets.index(target)

    def write(self) -> Overlays:
        """All of it."""
        lanes = self._config.lanes
        last, rows = self._rows_of["image", len(self._segments) - 1]
        memory = np.zeros((last + rows, lanes), np.uint32)
        memory[:len(self._constants)] = self._constants
        flat, relocations = memory.reshape(-1), []
        bundles, _ = _resident(self._config, self._segments[0].base, self._single)
        start, fixups = encode(bundles)
        for segment in self._segments:
            code = self._segment_code(segment)
            if self._single:
                gap = np.zeros((segment.base - len(start), BUNDLE_WORDS), np.uint32)
                start = np.concatenate([start, gap, code])
                code = code[:0]
            at = self._rows_of["code", segment.number][0] * lanes
            spread = flat[at:at + BUNDLE_PITCH * len(code)].reshape(-1, BUNDLE_PITCH)
            spread[:, :BUNDLE_WORDS] = code
            descriptors = [word for target in segment.targets for word in self._pair(target)]
            descriptors += [self._linear.descriptors[number] for number in segment.used]
            at = self._rows_of["image", segment.number][0] * lanes
            relocations += _put(flat, at, descriptors)
        to_window = transfer(self._config, Vectors(0), scalar_words(self._memory.window.start),
                             self._config.sublanes, SCALAR_READ)
        at = self._rows_of["fixed", 0][0] * lanes
        relocations += _put(flat, at, [to_window, *self._pair(self._segments[0])])
        places = {symbol: (bundle, immediate) for bundle, immediate, symbol in fixups}
        return Overlays(memory, tuple(relocations), start, (places["low"], places["high"]),
                        len(self._segments), self._rows_of["fixed", 0][0] * self._config.row_bytes,
                        tuple(map(self._word, self._linear.stamps)))

    def _word(self, bundle: int) -> int:
        """Word of the rows, or of a single segment's program, at which a bundle begins."""
        segment = self._owner(bundle)
        if self._single:
            return BUNDLE_WORDS * self._inside(segment, bundle)
        first = self._rows_of["code", segment.number][0] * self._config.lanes
        return first + BUNDLE_PITCH * (segment.start + bundle - segment.first)

    def _segment_code(self, segment: _Segment) -> Image:
        """The bundles of a segment."""
        start: list[Operations] = []
        if segment.ahead:
            assert segment.following is not None
            pair = self._pair_address(segment, segment.following)
            start = [[(Slot.MISC, "dma", (pair + step,))] for step in (0, DESCRIPTOR_WORDS)]
        rest: list[Operations] = []
        for target in segment.exits:
            rest += self._exit(segment, target)
        for entry in segment.entries:
            rest += [*start, [(Slot.S1, "jump", (_Fixed(self._inside(segment, entry)),))]]
        code = np.concatenate([_absolute(start), self._own(segment), _absolute(rest)])
        assert len(code) == self._length(segment)
        return code

    def _exit(self, segment: _Segment, target: int) -> list[Operations]:
        """Bundles that go to a bundle of another segment."""
        owner = self._owner(target)
        entry = self._entries[owner.number, target]
        if self._is_ahead(segment, target):
            return [[(Slot.MISC, "wait", (sem[LOADED], 1)),
                     (Slot.S1, "jump", (_Fixed(entry),))]]
        wait = [(Slot.MISC, "wait", (sem[LOADED], 1))] if segment.ahead else []
        return [[*wait, *_load(self._pair_address(segment, owner), entry)],
                [(Slot.S1, "jump", (_Fixed(self._loader),))]]

    def _own(self, segment: _Segment) -> Image:
        """A segment's part of the code, with addresses."""
        linear = self._linear
        code = linear.words[segment.first:segment.end].copy()
        for bundle, immediate, target in _part(linear.branches, segment):
            if segment.first <= target < segment.end:
                address = self._inside(segment, target)
            else:
                address = self._exits[segment.number, target]
            code[bundle - segment.first, FIRST_IMMEDIATE_WORD + immediate] = address
        first = (self._memory.images[segment.number % 2].start
                 + 2 * DESCRIPTOR_WORDS * len(segment.targets))
        for bundle, immediate, number in _part(linear.transfers, segment):
            code[bundle - segment.first, FIRST_IMMEDIATE_WORD + immediate] = (
                first + DESCRIPTOR_WORDS * segment.used.index(number))
        return code


@dataclass(frozen=True)
class _Fixed:
    """An address that lies in an immediate, even if it is short."""

    address: int


def _absolute(bundles: Sequence[Operations]) -> Image:
    """Bundles with `_Fixed` operands as words."""
    words, fixups = encode(bundles)
    for bundle, immediate, symbol in fixups:
        assert isinstance(symbol, _Fixed)
        words[bundle, FIRST_IMMEDIATE_WORD + immediate] = symbol.address
    return words


def _part(table: npt.NDArray[np.int64], segment: _Segment) -> list[list[int]]:
    """Rows of a table of fixups that belong to a segment."""
    chosen = (table[:, 0] >= segment.first) & (table[:, 0] < segment.end)
    return table[chosen].tolist()


def _put(flat: Image, at: int, descriptors: Sequence[TransferWords]) -> list[tuple[int, str]]:
    """Write descriptors from word ``at`` on; return their relocations."""
    relocations = []
    for descriptor in descriptors:
        flat[at:at + DESCRIPTOR_WORDS] = descriptor.words
        relocations += [(at + word, buffer) for word, buffer in descriptor.relocations]
        at += DESCRIPTOR_WORDS
    return relocations
