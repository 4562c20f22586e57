"""Segments of code: where they are cut, and how they follow each other."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hdl.config import Config
from hdl.dma.format import DESCRIPTOR_WORDS
from hdl.isa import BUNDLE_PITCH, Slot
from sim.compiler.program.code.cuts import cuts
from sim.compiler.program.code.encode import FIRST_IMMEDIATE_WORD, encode
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.stream import Linear

__all__ = ["Segment", "code_rows", "cut_segments", "occupied", "place_loads"]

_ROUNDS = 64
"""Attempts to cut code so that all segments fit."""
_FEW = 16
"""Bundles of a segment that may come before the loads of the following one, however long it is."""


@dataclass(eq=False)
class Segment:
    """A part of the code, from bundle ``first`` to before ``end``.

    Attributes
    ----------
    exits : list of int
        Bundles of other segments that follow bundles of this one; the first, if it `runs_on`, is
        ``end``.
    entries : list of int
        Bundles other than ``first`` that follow bundles of other segments.
    following : Segment or None
        The segment that most likely follows.
    base : int
        Address of its first bundle.
    ahead : bool
        It is loaded while the one before it runs: `following` does not overlap this one.
    loads : int
        Bundles of its code before those that load the following segment, if it is loaded `ahead`.
    used : list of int
        Descriptors that it uses.
    """

    number: int
    first: int
    end: int
    exits: list[int] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)
    following: "Segment | None" = None
    base: int = 0
    ahead: bool = False
    loads: int = 0
    used: list[int] = field(default_factory=list)
    targets: "list[Segment]" = field(default_factory=list)

    @property
    def start(self) -> int:
        """Bundles within its part of the code that load the segment that follows."""
        return 2 if self.ahead else 0

    @property
    def bundles(self) -> int:
        """Bundles in instruction memory, at most: as if it had a start."""
        return 2 + self.end - self.first + 2 * len(self.exits) + 3 * len(self.entries)

    @property
    def descriptors(self) -> int:
        """Descriptors of its scalar image."""
        return 2 * len(self.targets) + len(self.used)


def occupied(bundles: int, config: Config) -> int:
    """Bundles of instruction memory that a transfer of so many writes: whole rows."""
    return -(-code_rows(bundles, config) * config.lanes // BUNDLE_PITCH)


def code_rows(bundles: int, config: Config) -> int:
    """Rows of HBM that hold so many bundles."""
    return -(-bundles * BUNDLE_PITCH // config.lanes)


def cut_segments(linear: Linear, config: Config, area: int, memory: ScalarMemory,
                 name: str) -> list[Segment]:
    """Cut code so that each segment fits its part of memory.

    Parameters
    ----------
    linear : Linear
        The code.
    config : Config
        The chip.
    area : int
        Bundles of instruction memory that are not resident.
    memory : ScalarMemory
        Has the room for the segments' images.
    name : str
        What the program computes, for messages.

    Raises
    ------
    MemoryError
        If the memories of the chip are too small for any segment.
    """
    most = len(memory.images[0]) // DESCRIPTOR_WORDS
    whole = _cut(linear, [0])
    # Nothing else needs the other half.
    if occupied(whole[0].bundles, config) <= area and whole[0].descriptors <= 2 * most:
        return whole
    spare, spare_descriptors = 8, 4
    # What is not code depends on the cuts: leave more for it until all segments fit.
    for _ in range(_ROUNDS):
        soft, hard = area // 2 - spare, area - spare
        if soft < 1 or most - spare_descriptors < 1:
            break
        segments = _cut(linear, cuts(linear, soft, hard, most - spare_descriptors))
        excess = max(occupied(segment.bundles, config) for segment in segments) - area
        missing = max(segment.descriptors for segment in segments) - most
        if excess <= 0 and missing <= 0:
            return segments
        spare += max(excess, 0)
        spare_descriptors += max(missing, 0)
    raise MemoryError(f"{name} must be cut into segments of at most {area} bundles and {most} "
                      "descriptors, the memories of this chip; that is not possible: choose a "
                      "chip with larger instruction and scalar memory")


def _cut(linear: Linear, firsts: Sequence[int]) -> list[Segment]:
    """Segments, with their exits, entries and descriptors."""
    ends = [*firsts[1:], len(linear.words)]
    segments = [Segment(number, first, end)
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


def _connect(source: Segment, target: Segment, at: int) -> None:
    """Note that bundle ``at`` of a segment follows a bundle of another."""
    if at not in source.exits:
        source.exits.append(at)
    if target not in source.targets:
        source.targets.append(target)
    if at != target.first and at not in target.entries:
        target.entries.append(at)


def place_loads(segment: Segment, linear: Linear) -> None:
    """Choose where a segment loads the following one: `Segment.loads`.

    Transfers complete in order, so those of operands that the segment starts soon go first, if
    then the rest of its code is still as long as what is loaded. All ways through the segment must
    pass the place once.
    """
    assert segment.following is not None
    size = segment.end - segment.first
    latest = max(_FEW, size - segment.following.bundles)
    starts = linear.transfers[:, 0] - segment.first
    places = np.unique(starts[(starts >= 0) & (starts < min(latest, size))] + 1)
    source = linear.branches[:, 0] - segment.first
    target = linear.branches[:, 2] - segment.first
    for place in places[::-1].tolist():
        before = (source >= 0) & (source < place)
        into = (target >= 0) & (target < place)
        leaves = before & ((target < 0) | (target >= place))
        enters = into & ~before & ((target > 0) | ((source >= place) & (source < size)))
        if not leaves.any() and not enters.any():
            segment.loads = place
            return


_JUMP = encode([[(Slot.S1, "jump", ("anywhere",))]])[0][0]


def _jumps(linear: Linear, bundle: int) -> bool:
    """Whether a bundle is a jump alone, as `Stream.jump` writes it."""
    words = linear.words[bundle].copy()
    words[FIRST_IMMEDIATE_WORD:] = 0
    return bool((words == _JUMP).all())
