"""Writes segments, their scalar images, and the descriptors that load them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from hdl.isa import BUNDLE_PITCH, BUNDLE_WORDS, Slot
from sim.asm.assembler import Program
from sim.asm.operands import s, sem
from sim.compiler.program.code.encode import FIRST_IMMEDIATE_WORD, Operations, encode
from sim.compiler.program.code.reserved import LOADED, SCALAR_READ, STAMP
from sim.compiler.program.code.resident import load, resident
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.segments import Segment, code_rows
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.code.transfers import (
    CODE,
    Rows,
    TransferWords,
    Vectors,
    Words,
    scalar_words,
    transfer,
)

__all__ = ["Overlays", "SegmentWriter"]

Image = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Overlays:
    """One core's program: the contents of its HBM buffer, and its resident part.

    Attributes
    ----------
    rows : array of uint32, shape (rows, lanes)
        Contents of the buffer before relocation.
    relocations : tuple of (int, str)
        Pairs (word, buffer): the number of a word, counted from the start of ``rows``, and the name
        of a buffer. The buffer's address is added to the 64-bit number in that word (low half) and
        the next one (high half).
    start : array of uint32, shape (bundles, BUNDLE_WORDS)
        The resident part, to be loaded at address 0; if there is one segment, the whole code.
    address : tuple of (int, int)
        Two pairs (bundle, immediate) of ``start``: they receive the low and the high word of the
        address of the rows that the program's start loads. Empty if it loads none.
    segments : int
        Number of segments.
    offset : int
        Distance in bytes from the buffer's address to the rows that the program's start loads.
    stamps : tuple of int
        For each kernel, the number of the first word of the bundle before it; in ``start`` if there
        is one segment, otherwise in ``rows``.
    row_numbers : tuple of (int, str)
        Pairs (word, buffer): the number of the buffer's first row in HBM is added to that word; in
        ``start`` if there is one segment, otherwise in ``rows``.
    """

    rows: Image
    relocations: tuple[tuple[int, str], ...]
    start: Image
    address: tuple[tuple[int, int], ...]
    segments: int
    offset: int
    stamps: tuple[int, ...]
    row_numbers: tuple[tuple[int, str], ...] = ()

    def stopping(self) -> "Overlays":
        """Return a copy that halts before each kernel, whose number is then in register `STAMP`."""
        rows, start = self.rows.copy(), self.start.copy()
        flat = (start if self.segments == 1 else rows).reshape(-1)
        stops, _ = encode([[(Slot.S0, "add", (STAMP, s[0], number)), (Slot.S1, "halt", ())]
                           for number in range(1, len(self.stamps) + 1)])
        for stop, word in zip(stops, self.stamps, strict=True):
            flat[word:word + BUNDLE_WORDS] = stop
        return replace(self, rows=rows, start=start)

    def program(self, addresses: Mapping[str, int]) -> Program:
        """Return the resident part with addresses filled in.

        ``addresses`` maps names of buffers to byte addresses in HBM; `CODE` names the buffer that
        holds ``rows``.
        """
        words = self.start.copy()
        if self.segments == 1:
            flat, row_bytes = words.reshape(-1), 4 * self.rows.shape[1]
            for word, buffer in self.row_numbers:
                flat[word] += np.uint32(addresses[buffer] // row_bytes)
        first = addresses[CODE] + self.offset
        for (bundle, immediate), word in zip(self.address, (first & 0xFFFFFFFF, first >> 32),
                                             strict=False):
            words[bundle, FIRST_IMMEDIATE_WORD + immediate] = word
        data = words.astype("<u4").tobytes()
        size = 4 * BUNDLE_WORDS
        return Program(tuple(int.from_bytes(data[at:at + size], "little")
                             for at in range(0, len(data), size)), {})


class SegmentWriter:
    """Writes segments and their scalar images to the rows of a buffer.

    The scalar image of a segment has the descriptors that the segment uses, and those that load the
    segments to which it can branch.
    """

    def __init__(self, linear: Linear, constants: Image, config: Config,
                 segments: list[Segment]) -> None:
        self._linear = linear
        self._config = config
        self._segments = segments
        self._single = len(segments) == 1
        self._firsts = [segment.first for segment in segments]
        self._memory = ScalarMemory(config)
        self._loader = resident(config, 0)[1]
        self._entries: dict[tuple[int, int], int] = {}
        self._exits: dict[tuple[int, int], int] = {}
        self._assign_addresses()
        self._rows_of = self._arrange(len(constants))
        self._constants = constants

    # ---- addresses

    def _assign_addresses(self) -> None:
        """Assign addresses in instruction memory to all exits and entries."""
        for segment in self._segments:
            self._entries[segment.number, segment.first] = segment.base
            at = segment.base + segment.start + segment.end - segment.first
            for target in segment.exits:
                self._exits[segment.number, target] = at
                at += self._exit_size(segment, target)
            for entry in segment.entries:
                self._entries[segment.number, entry] = at
                at += 3 if segment.ahead else 1

    def _owner(self, bundle: int) -> Segment:
        return self._segments[bisect_right(self._firsts, bundle) - 1]

    def _is_ahead(self, segment: Segment, target: int) -> bool:
        return segment.ahead and self._owner(target) is segment.following

    def _exit_size(self, segment: Segment, target: int) -> int:
        return 1 if self._is_ahead(segment, target) else 2

    def _inside(self, segment: Segment, bundle: int) -> int:
        """Return the instruction-memory address of a bundle of ``segment``, given its index."""
        return segment.base + self._offset(segment, bundle)

    def _offset(self, segment: Segment, bundle: int) -> int:
        """Return the offset of a bundle from the start of ``segment``, in bundles.

        ``bundle`` is the bundle's index in the code.
        """
        offset = bundle - segment.first
        return offset + segment.start if offset >= segment.loads else offset

    # ---- contents

    def _arrange(self, constants: int) -> dict[tuple[str, int], tuple[int, int]]:
        """Lay out the buffer; return (first row, number of rows) of each part.

        The parts are ``("fixed", 0)``, which the program's start loads, and ``("code", number)``
        and ``("image", number)`` of each segment. They follow the ``constants`` rows of constants.
        """
        config, lanes = self._config, self._config.lanes
        fixed = len(self._memory.fixed) // lanes
        places = {("fixed", 0): (constants, fixed)}
        at = constants + fixed
        for segment in self._segments:
            image = max(1, -(-segment.descriptors * DESCRIPTOR_WORDS // lanes))
            code = 0 if self._single else code_rows(self._length(segment), config)
            for what, rows in (("code", code), ("image", image)):
                places[what, segment.number] = (at, rows)
                at += rows
        return places

    def _length(self, segment: Segment) -> int:
        """Return how many bundles a segment takes in instruction memory, with exits and entries."""
        exits = sum(self._exit_size(segment, target) for target in segment.exits)
        entries = (3 if segment.ahead else 1) * len(segment.entries)
        return segment.start + segment.end - segment.first + exits + entries

    def _pair(self, segment: Segment) -> list[TransferWords]:
        """Return the descriptors that load a segment: code (unless it is resident) and image."""
        code, code_rows = self._rows_of["code", segment.number]
        image, image_rows = self._rows_of["image", segment.number]
        half = self._memory.images[segment.number % 2].start
        load = transfer(self._config, Rows(CODE, image), scalar_words(half), image_rows, LOADED)
        if self._single:
            return [load]
        return [transfer(self._config, Rows(CODE, code),
                         Words(DmaSpace.IMEM, BUNDLE_PITCH * segment.base), code_rows, None), load]

    def _pair_address(self, segment: Segment, target: Segment) -> int:
        """Return where, in scalar memory, ``segment`` has the descriptors that load ``target``."""
        half = self._memory.images[segment.number % 2].start
        return half + 2 * DESCRIPTOR_WORDS * segment.targets.index(target)

    def write(self) -> Overlays:
        """Write the rows of the buffer (constants, segments, images); return the program."""
        lanes = self._config.lanes
        last, rows = self._rows_of["image", len(self._segments) - 1]
        memory = np.zeros((last + rows, lanes), np.uint32)
        memory[:len(self._constants)] = self._constants
        flat, relocations = memory.reshape(-1), []
        address: tuple[tuple[int, int], ...]
        bundles, _ = resident(self._config, self._segments[0].base, self._single)
        if self._single and not self._linear.transfers.size and not self._linear.reads_window:
            # No descriptor is needed.
            bundles = [[(Slot.S1, "jump", (_Fixed(self._segments[0].base),))]]
            start, address = _absolute(bundles), ()
        else:
            start, fixups = encode(bundles)
            places = {symbol: (bundle, immediate) for bundle, immediate, symbol in fixups}
            address = (places["low"], places["high"])
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
        return Overlays(memory, tuple(relocations), start, address,
                        len(self._segments), self._rows_of["fixed", 0][0] * self._config.row_bytes,
                        tuple(map(self._word, self._linear.stamps)),
                        tuple((self._word(bundle) + FIRST_IMMEDIATE_WORD + immediate, rows.buffer)
                              for bundle, immediate, rows in self._linear.rows))

    def _word(self, bundle: int) -> int:
        """Return the offset of a bundle's first word from the start of the buffer's rows, in words.

        If the whole program is resident, the offset counts from the start of the program instead.
        ``bundle`` is the bundle's index in the code.
        """
        segment = self._owner(bundle)
        if self._single:
            return BUNDLE_WORDS * self._inside(segment, bundle)
        first = self._rows_of["code", segment.number][0] * self._config.lanes
        return first + BUNDLE_PITCH * self._offset(segment, bundle)

    def _segment_code(self, segment: Segment) -> Image:
        """Return a segment's encoded bundles: its code, loads, exits and entries."""
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
        own = self._own(segment)
        code = np.concatenate([own[:segment.loads], _absolute(start), own[segment.loads:],
                               _absolute(rest)])
        assert len(code) == self._length(segment)
        return code

    def _exit(self, segment: Segment, target: int) -> list[Operations]:
        """Return an exit: bundles that load another segment and continue at bundle ``target``."""
        owner = self._owner(target)
        entry = self._entries[owner.number, target]
        if self._is_ahead(segment, target):
            return [[(Slot.MISC, "wait", (sem[LOADED], 1)),
                     (Slot.S1, "jump", (_Fixed(entry),))]]
        wait = [(Slot.MISC, "wait", (sem[LOADED], 1))] if segment.ahead else []
        return [[*wait, *load(self._pair_address(segment, owner), entry)],
                [(Slot.S1, "jump", (_Fixed(self._loader),))]]

    def _own(self, segment: Segment) -> Image:
        """Return a segment's part of the program's code, with the addresses in it filled in."""
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
        for bundle, immediate, rows in linear.rows:
            if segment.first <= bundle < segment.end:
                code[bundle - segment.first, FIRST_IMMEDIATE_WORD + immediate] = rows.first
        return code


@dataclass(frozen=True)
class _Fixed:
    """A known address that is placed in an immediate even if it would fit the operand's field."""

    address: int


def _absolute(bundles: Sequence[Operations]) -> Image:
    """Encode bundles whose symbols are all `_Fixed` addresses."""
    words, fixups = encode(bundles)
    for bundle, immediate, symbol in fixups:
        assert isinstance(symbol, _Fixed)
        words[bundle, FIRST_IMMEDIATE_WORD + immediate] = symbol.address
    return words


def _part(table: npt.NDArray[np.int64], segment: Segment) -> list[list[int]]:
    """Return the rows of ``table`` for bundles of a segment; column 0 has the bundles' numbers."""
    chosen = (table[:, 0] >= segment.first) & (table[:, 0] < segment.end)
    return table[chosen].tolist()


def _put(flat: Image, at: int, descriptors: Sequence[TransferWords]) -> list[tuple[int, str]]:
    """Write descriptors from word ``at`` of ``flat`` on; return their relocations."""
    relocations = []
    for descriptor in descriptors:
        flat[at:at + DESCRIPTOR_WORDS] = descriptor.words
        relocations += [(at + word, buffer) for word, buffer in descriptor.relocations]
        at += DESCRIPTOR_WORDS
    return relocations
