"""Segments of code: their boundaries, and the branches between them."""

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

__all__ = ["Load", "Segment", "code_rows", "cut_segments", "load_places", "occupied"]

_ROUNDS = 64
"""Maximum number of attempts to split code so that all segments fit instruction memory."""
_FEW = 16
"""The load of the following segment may always begin within this number of bundles from a segment's
start, even if too few bundles of the segment follow to hide the load (`load_places`).
"""


@dataclass(frozen=True)
class Load:
    """A load of a segment.

    Attributes
    ----------
    bundle : int
        Number of a bundle of the code; the load starts before this bundle.
    rows : int
        Number of HBM rows of the segment's code.
    ahead : bool
        Whether the previous segment runs during the load; if not, the core waits.
    end : int
        Number of the bundle after the previous segment. The exits of the previous segment wait for
        the load.
    """

    bundle: int
    rows: int
    ahead: bool
    end: int


@dataclass(eq=False)
class Segment:
    """A segment: bundles ``first`` to ``end - 1`` of the code.

    Attributes
    ----------
    number : int
        Position of the segment in the code, from 0.
    first, end : int
        Numbers of its first bundle, and of the bundle after its last one.
    exits : list of int
        Bundles of other segments to which this one branches. If execution runs on past this
        segment's last bundle, the first item is ``end``.
    entries : list of int
        Bundles of this segment, except ``first``, to which other segments branch.
    following : Segment or None
        The segment that most likely runs next.
    base : int
        Address of the segment's first bundle in instruction memory.
    ahead : bool
        Whether this segment loads `following` while it runs, because the two do not overlap in
        memory.
    loads : int
        Number of bundles of the segment's code before the two bundles that load `following`; valid
        only with `ahead`.
    used : list of int
        Numbers of the descriptors that the segment uses.
    targets : list of Segment
        Other segments to which this one branches or runs on.
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
        """Number of bundles inserted into the segment's code to load the following segment."""
        return 2 if self.ahead else 0

    @property
    def bundles(self) -> int:
        """Upper bound of the number of bundles that the segment takes in instruction memory."""
        return 2 + self.end - self.first + 2 * len(self.exits) + 3 * len(self.entries)

    @property
    def descriptors(self) -> int:
        """Number of descriptors in the segment's scalar image.

        These are the descriptors that the segment uses, and two for each segment to which it can
        branch: one loads the code, and one the scalar image.
        """
        return 2 * len(self.targets) + len(self.used)


def occupied(bundles: int, config: Config) -> int:
    """Return how many bundles of instruction memory the load of ``bundles`` bundles overwrites.

    The load writes whole rows, so this may be more than ``bundles``.
    """
    return -(-code_rows(bundles, config) * config.lanes // BUNDLE_PITCH)


def code_rows(bundles: int, config: Config) -> int:
    """Return the number of HBM rows that hold ``bundles`` bundles."""
    return -(-bundles * BUNDLE_PITCH // config.lanes)


def cut_segments(linear: Linear, config: Config, area: int, memory: ScalarMemory,
                 name: str) -> list[Segment]:
    """Split code so that each segment fits its part of instruction and scalar memory.

    Parameters
    ----------
    linear : Linear
        The code.
    config : Config
        The chip.
    area : int
        Bundles of instruction memory that are free for segments.
    memory : ScalarMemory
        Address map of scalar memory, with the room for segments' images.
    name : str
        Name of the program in messages.

    Raises
    ------
    MemoryError
        If the code cannot be split into segments that fit.
    """
    most = len(memory.images[0]) // DESCRIPTOR_WORDS
    whole = _cut(linear, [0])
    # A single segment may use both halves of the images.
    if occupied(whole[0].bundles, config) <= area and whole[0].descriptors <= 2 * most:
        return whole
    spare, spare_descriptors, detail = 8, 4, ""
    # The sizes of exits, entries and images depend on the cuts: leave more room until all fit.
    for _ in range(_ROUNDS):
        soft, hard = area // 2 - spare, area - spare
        if soft < 1 or most - spare_descriptors < 1:
            break
        try:
            segments = _cut(linear, cuts(linear, soft, hard, most - spare_descriptors))
        except MemoryError as error:
            detail = f"; {error}"
            break
        excess = max(occupied(segment.bundles, config) for segment in segments) - area
        missing = max(segment.descriptors for segment in segments) - most
        if excess <= 0 and missing <= 0:
            return segments
        spare += max(excess, 0)
        spare_descriptors += max(missing, 0)
    raise MemoryError(f"{name} cannot be split into segments that fit this chip's memories, {area} "
                      f"bundles and {most} descriptors for each segment{detail}: choose a chip "
                      "with larger instruction and scalar memory")


def _cut(linear: Linear, firsts: Sequence[int]) -> list[Segment]:
    """Make the segments that begin at ``firsts``, with their exits, entries and descriptors."""
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
    """Record that segment ``source`` branches or runs on to bundle ``at`` of ``target``."""
    if at not in source.exits:
        source.exits.append(at)
    if target not in source.targets:
        source.targets.append(target)
    if at != target.first and at not in target.entries:
        target.entries.append(at)


def load_places(segment: Segment, linear: Linear) -> list[int]:
    """Return where a segment's code may start to load the following segment, the best place first.

    The places are values of `Segment.loads`. With each of them, every path through the segment
    executes the load exactly once.

    1. Right after the start of a transfer of operands, the latest such place first. Transfers
       complete in order, so the load delays only the transfers that start after it. The segment's
       exits wait for the load. To keep this wait short, at least as many bundles follow the place
       as the following segment has, unless the place is within the first `_FEW` bundles.
    2. The segment's first bundle.
    3. The starts of all kernels. They serve if earlier transfers would delay the load too long at
       the places above.

    If the segment ends with one of `Linear.gaps`, the only place is the start of this gap.
    """
    assert segment.following is not None
    gaps = [first - segment.first for first, end in linear.gaps
            if segment.first < first and end == segment.end]
    size = segment.end - segment.first
    latest = max(_FEW, size - segment.following.bundles)
    starts = linear.transfers[:, 0] - segment.first
    places = np.unique(starts[(starts >= 0) & (starts < min(latest, size))] + 1)
    kernels = np.array(linear.stamps, np.int64) - segment.first
    kernels = kernels[(kernels > 0) & (kernels < size)]
    source = linear.branches[:, 0] - segment.first
    target = linear.branches[:, 2] - segment.first
    found = []
    for place in dict.fromkeys([*gaps, *places[::-1].tolist(), 0, *kernels.tolist()]):
        before = (source >= 0) & (source < place)
        into = (target >= 0) & (target < place)
        leaves = before & ((target < 0) | (target >= place))
        enters = into & ~before & ((target > 0) | ((source >= place) & (source < size)))
        if not place or (not leaves.any() and not enters.any()):
            found.append(place)
    return found[:1] if found[0] in gaps else found


_JUMP = encode([[(Slot.S1, "jump", ("anywhere",))]])[0][0]


def _jumps(linear: Linear, bundle: int) -> bool:
    """Return whether bundle number ``bundle`` only jumps to a label (`Stream.jump`)."""
    words = linear.words[bundle].copy()
    words[FIRST_IMMEDIATE_WORD:] = 0
    return bool((words == _JUMP).all())
