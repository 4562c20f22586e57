"""Overlays: code of any length, split into segments that take turns in instruction memory.

Instruction memory holds a small resident part: the program's start, and the loader. The rest of it
is an area for segments. Segments lie alternately at the two ends of this area, so a segment can be
loaded while the one before it runs. A segment that would overwrite the running one is loaded by the
loader when the running one ends.

Each segment has a *scalar image*: the descriptors that the segment uses, and those that load the
segments to which it can branch. The image is in one of two halves of an area of scalar memory.

Code that fits as one segment is resident as a whole, and only its image is loaded.

A segment consists of

- its part of the code. Inserted in it are two bundles that start to load the segment which most
  likely follows (`Segment.following`, `load_places`), unless that would overwrite this segment;
- exits: one for each bundle of another segment to which this segment branches or runs on;
- entries: one for each of its bundles, except the first, that other segments branch to.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.compiler.program.code.resident import resident_bundles
from sim.compiler.program.code.scalars import ScalarMemory
from sim.compiler.program.code.segments import (
    Load,
    Segment,
    code_rows,
    cut_segments,
    load_places,
    occupied,
)
from sim.compiler.program.code.stream import Linear
from sim.compiler.program.code.writer import Overlays, SegmentWriter

__all__ = ["Added", "Overlays", "overlay"]

Image = npt.NDArray[np.uint32]
Added = Callable[[Sequence[Load], int, int | None], int]
"""Type of the parameter ``added`` of `overlay`."""

_WAIT = 64
"""If the core would wait more cycles than this for a load, other places for the load are tried."""


def overlay(linear: Linear, constants: Image, config: Config, name: str = "program",
            added: Added = lambda *_: 0) -> tuple[Overlays, list[Load]]:
    """Split code into segments, and lay out the HBM buffer that holds them.

    Parameters
    ----------
    linear : Linear
        The code. It must end with a halt, and must use neither the semaphore
        `sim.compiler.program.code.reserved.LOADED` nor the scalar registers `PAIR` and `TARGET`.
    constants : array of uint32, shape (rows, lanes)
        Constants: the first rows of the buffer.
    config : Config
        The chip.
    name : str
        Name of the program in messages.
    added : function
        ``added(loads, number, bundle)`` predicts for how many more cycles the core waits for
        transfers if ``loads[number]`` starts before this bundle instead; if the bundle is None, if
        this load does not occur.

    Returns
    -------
    Overlays, and list of Load
        The segments; and, for each segment except the last, the load of the segment that most
        likely follows it, if that is known.

    Raises
    ------
    MemoryError
        If the code cannot be split into segments that fit instruction and scalar memory.
    """
    memory = ScalarMemory(config)
    resident = resident_bundles()
    area = range(occupied(resident, config), config.imem_bundles)
    segments = cut_segments(linear, config, len(area), memory, name)
    for segment in segments:
        high = segment.number % 2
        segment.base = area.stop - occupied(segment.bundles, config) if high else area.start
    # The last segment halts: a load that it starts might still run after the halt.
    for segment in segments[:-1]:
        segment.ahead = (segment.following is not None
                         and segment.following.number % 2 != segment.number % 2
                         and not _overlap(segment, segment.following, config))
    loads = _place_loads(segments, linear, config, added)
    return SegmentWriter(linear, constants, config, segments).write(), loads


def _place_loads(segments: Sequence[Segment], linear: Linear, config: Config, added: Added
                 ) -> list[Load]:
    """Set `Segment.loads` to the first of its `load_places`, or to one where the core waits less.

    ``segments`` and ``added`` are those of `overlay`. Return all loads.
    """
    places = {segment: load_places(segment, linear) for segment in segments if segment.ahead}
    for segment, found in places.items():
        segment.loads = found[0]
    loading = [segment for segment in segments[:-1] if segment.following is not None]
    loads = [_load(segment, config) for segment in loading]
    for number, segment in enumerate(loading):
        if not segment.ahead or -added(loads, number, None) <= _WAIT:
            continue
        # The load waits for the transfers before it, one of which may be large.
        found = places[segment]
        waits = [0, *(added(loads, number, segment.first + place) for place in found[1:])]
        segment.loads = found[waits.index(min(waits))]
        loads[number] = _load(segment, config)
    return loads


def _load(segment: Segment, config: Config) -> Load:
    assert segment.following is not None
    return Load(segment.first + segment.loads if segment.ahead else segment.end,
                code_rows(segment.following.bundles, config), segment.ahead, segment.end)


def _overlap(one: Segment, other: Segment, config: Config) -> bool:
    return (one.base < other.base + occupied(other.bundles, config)
            and other.base < one.base + occupied(one.bundles, config))
