"""Overlays: code that is larger than instruction memory gives the same results as other code."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from golden.core import GoldenCore
from hdl.config import Config
from hdl.isa import BUNDLE_PITCH, Fault, Slot
from sim.asm.operands import s
from sim.compiler.program.code.cuts import crossings, cuts
from sim.compiler.program.code.overlay import Added, Overlays, overlay
from sim.compiler.program.code.segments import Load, Segment, load_places
from sim.compiler.program.code.stream import Linear, Stream
from sim.compiler.program.code.transfers import CODE, Rows, Vectors, transfer
from systolith import Device

TINY = Config.preset("tiny")
AT = 96
"""Row of HBM at which the buffer of code begins."""


def add(stream: Stream, register: int, amount: int) -> None:
    stream.bundle((Slot.S0, "add", (s[register], s[register], amount)))


def clear(stream: Stream) -> None:
    for register in range(1, 8):
        stream.bundle((Slot.S0, "add", (s[register], s[0], 0)))


def image(overlays: Overlays, config: Config) -> np.ndarray:
    rows = overlays.rows.copy()
    flat = rows.reshape(-1)
    for word, buffer in overlays.relocations:
        assert buffer == CODE
        flat[word] += AT * config.row_bytes
    return rows


def golden(linear: Linear, config: Config = TINY,
           added: Added = lambda *_: 0) -> tuple[GoldenCore, Overlays]:
    overlays, loads = overlay(linear, np.zeros((2, config.lanes), np.uint32), config, added=added)
    assert len(loads) < overlays.segments
    assert all(0 <= load.bundle <= len(linear.words) for load in loads)
    core = GoldenCore(config)
    rows = image(overlays, config)
    core.hbm[AT:AT + len(rows)] = rows
    core.smem[:] = 0xDEADBEEF
    core.load_program(overlays.program({CODE: AT * config.row_bytes}))
    for _ in range(2):
        core.start()
        core.run(1_000_000)
        assert core.fault is Fault.NONE
        assert not core.running
        assert not core.semaphores.any()
    return core, overlays


def straight(length: int) -> Stream:
    stream = Stream()
    clear(stream)
    for number in range(length):
        add(stream, 1 + number % 3, number)
    stream.halt()
    return stream


def expected(length: int) -> list[int]:
    return [sum(range(first, length, 3)) for first in range(3)]


@pytest.mark.parametrize("length", [1, 100, 300, 480, 485, 490, 500, 2000])
def test_straight_code_of_any_length_runs(length: int) -> None:
    core, overlays = golden(straight(length).finish())
    assert core.scalars[1:4].tolist() == expected(length)
    assert (overlays.segments == 1) == (length <= 485)


def nested(outer: int, inner: int, body: int, tail: int) -> Stream:
    """Two nested loops; the inner one has ``body`` bundles, the outer one ``tail`` more."""
    stream = Stream()
    clear(stream)
    add(stream, 4, outer)
    first, second = stream.label("outer"), stream.label("inner")
    stream.bind(first)
    stream.bundle((Slot.S0, "add", (s[5], s[0], inner)))
    stream.bind(second)
    for _ in range(body):
        add(stream, 1, 1)
    stream.bundle((Slot.S1, "loop", (s[5], second)))
    skip = stream.label("skip")
    stream.branch("beq", 4, 1, skip)
    for _ in range(tail):
        add(stream, 2, 1)
    stream.bind(skip)
    add(stream, 3, 1)
    stream.bundle((Slot.S1, "loop", (s[4], first)))
    add(stream, 6, 7)
    stream.halt()
    return stream


@pytest.mark.parametrize(("body", "tail"), [(3, 5), (3, 700), (300, 30), (450, 3), (450, 450),
                                            (700, 5), (1300, 900)])
def test_loops_and_branches_cross_segments(body: int, tail: int) -> None:
    core, overlays = golden(nested(3, 4, body, tail).finish())
    assert core.scalars[1:4].tolist() == [12 * body, 2 * tail, 3]
    assert core.scalars[6] == 7
    assert (overlays.segments == 1) == (body + tail < 460)


def test_loop_that_fits_is_not_cut() -> None:
    linear = nested(3, 4, 300, 500).finish()
    cost = crossings(linear)
    first = 7 + 2
    assert cost[first] == 1
    assert cost[first + 1] == 2
    found = cuts(linear, 240, 480, 100)
    assert [at for at in found if first + 1 < at < first + 301] == []


def test_segments_are_short_in_code_that_is_divided_finely() -> None:
    stream = Stream()
    for number in range(600):
        if number == 300:
            stream.divide_finely(100)
        if number == 320:
            stream.begin_segment()
        add(stream, 1, 1)
    stream.halt()
    linear = stream.finish()
    # A quarter of the preferred maximum; the first segment may end as far behind bundle 100.
    # A segment begins where it must, and the one before is not shorter than a quarter.
    assert cuts(linear, 120, 240, 100) == [0, 120, 150, 180, 210, 240, 270, 320, 440, 560]
    core, overlays = golden(linear)
    assert core.scalars[1] == 2 * 600  # in two runs
    assert overlays.segments > 3


@pytest.mark.parametrize("length", [150, 600])
def test_the_next_segment_is_loaded_in_a_gap(length: int) -> None:
    """Unless all code fits in one segment."""
    stream = Stream()
    for number in range(length):
        if number == 90:
            stream.end_gap(70)
        stream.stamp()
        add(stream, 1, 1)
    stream.halt()
    linear = stream.finish()
    assert linear.gaps == ((70, 2 * 90),)
    assert cuts(linear, 400, 800, 100)[:2] == [0, *([2 * 90] if length == 600 else [])]
    segments = [Segment(0, 0, 2 * 90), Segment(1, 2 * 90, len(linear.words))]
    segments[0].following = segments[1]
    assert load_places(segments[0], linear) == [70]


def test_segments_use_as_many_descriptors_as_they_hold() -> None:
    stream = Stream()
    for number in range(60):
        stream.start(transfer(TINY, Rows(CODE, 0), Vectors(number), TINY.sublanes, 8))
    stream.wait(8, 60)
    stream.halt()
    linear = stream.finish()
    core, overlays = golden(linear)
    assert overlays.segments > 5
    assert not core.vmem[:60].any()
    # No cut helps a bundle that needs more of them than a segment holds.
    transfers = linear.transfers.copy()
    transfers[:, 0] = 5
    with pytest.raises(MemoryError, match=r"descriptors for each segment; a bundle "
                       r"must use at most \d+ descriptors, not 60: choose a chip"):
        overlay(replace(linear, transfers=transfers), np.zeros(0, np.uint32), TINY, "program")


def random_block(rng: np.random.Generator, stream: Stream, depth: int) -> None:
    """Adds transfers, sums, branches and loops; a loop may be longer than instruction memory."""
    for _ in range(int(rng.integers(1, 5))):
        kind = int(rng.integers(4 if depth < 3 else 2))
        if kind == 0:
            started = int(rng.integers(1, 4))
            for _ in range(started):
                stream.start(transfer(TINY, Rows(CODE, 0), Vectors(int(rng.integers(3))),
                                      TINY.sublanes, 8))
                if rng.random() < 0.5:
                    add(stream, 2, 1)
            stream.wait(8, started)
        elif kind == 1:
            for _ in range(int(rng.choice([1, 5, 40, 150]))):
                add(stream, int(rng.integers(1, 4)), int(rng.integers(100)))
        elif kind == 2:
            skip = stream.label("skip")
            stream.branch("beq" if rng.random() < 0.5 else "bne", 10 + depth, 1, skip)
            random_block(rng, stream, depth + 1)
            stream.bind(skip)
        else:
            again = stream.label("again")
            stream.bundle((Slot.S0, "add", (s[11 + depth], s[0], int(rng.integers(1, 4)))))
            stream.bind(again)
            random_block(rng, stream, depth + 1)
            stream.bundle((Slot.S1, "loop", (s[11 + depth], again)))


@pytest.mark.parametrize("seed", range(12))
def test_random_code_does_what_it_does_in_a_large_memory(seed: int) -> None:
    states = []
    for config in (TINY, Config.preset("tiny", imem_bundles=1 << 15, smem_words=1 << 13)):
        rng = np.random.default_rng([31, seed])
        stream = Stream()
        clear(stream)
        for register in range(10, 16):
            stream.bundle((Slot.S0, "add", (s[register], s[0], 0)))
        while stream.here < 900:
            random_block(rng, stream, 0)
        stream.halt()
        linear = stream.finish()
        core, overlays = golden(linear, config)
        states.append(core.scalars[1:16].tolist())
        assert (overlays.segments > 1) == (config is TINY)
    assert states[0] == states[1]


def test_transfers_at_the_beginning_of_a_segment_go_before_the_loads_of_the_next() -> None:
    stream = Stream()
    clear(stream)
    for number in range(3):
        stream.start(transfer(TINY, Rows(CODE, 0), Vectors(number), TINY.sublanes, 8))
    again = stream.label("again")
    add(stream, 4, 2)
    stream.bind(again)
    add(stream, 1, 1)
    stream.bundle((Slot.S1, "loop", (s[4], again)))
    stream.wait(8, 3)
    for _ in range(400):
        add(stream, 1, 1)
    stream.halt()
    linear = stream.finish()
    segments = [Segment(0, 0, 200), Segment(1, 200, len(linear.words))]
    for after in (segments[1], Segment(1, 200, 220)):
        segments[0].following = after
        assert load_places(segments[0], linear) == [10, 9, 8, 0]
    # A loop that begins before the place would load the segment again.
    linear.branches[0, 2] = 9
    assert load_places(segments[0], linear) == [9, 8, 0]


@pytest.mark.parametrize("cycles", [60, 100])
def test_a_load_for_which_the_core_would_wait_long_starts_later(cycles: int) -> None:
    stream = Stream()
    clear(stream)
    for _ in range(10):
        stream.stamp()
        for _ in range(50):
            add(stream, 1, 1)
    stream.halt()
    linear, first = stream.finish(), []

    def added(loads: Sequence[Load], number: int, place: int | None) -> int:
        if not number and place is not None:
            first.append(place)
        before, after = (cycles if at is not None and at < linear.stamps[2] else 0
                         for at in (loads[number].bundle, place))
        return after - before

    core, _ = golden(linear, added=added)
    assert core.scalars[1] == 500
    chosen = [load.bundle for load in overlay(
        linear, np.zeros((0, TINY.lanes), np.uint32), TINY, added=added)[1]]
    assert chosen[0] == (0 if cycles == 60 else linear.stamps[2])
    assert (linear.stamps[3] in first) == (cycles == 100)


def test_too_small_memories_are_refused() -> None:
    config = Config.preset("tiny", imem_bundles=20)
    with pytest.raises(MemoryError, match="cannot be split into segments that fit this chip"):
        overlay(straight(100).finish(), np.zeros((0, 4), np.uint32), config)


def test_code_larger_than_hbm_is_refused() -> None:
    config = replace(TINY, hbm_bytes=64 << 10)
    bundles = config.hbm_bytes // (4 * BUNDLE_PITCH)
    with pytest.raises(MemoryError, match="code must fit HBM, which has 65536 bytes"):
        overlay(straight(bundles).finish(), np.zeros((0, config.lanes), np.uint32), config)


def test_rtl_and_golden_core_agree() -> None:
    overlays, _ = overlay(nested(2, 2, 300, 600).finish(), np.zeros((2, 4), np.uint32), TINY)
    with Device.open("tiny") as device:
        rows = image(overlays, TINY)
        buffer = device.allocate((AT + len(rows)) * TINY.row_bytes)
        assert buffer.address == 0
        device.copy_in(buffer, rows, AT * TINY.row_bytes)
        for _ in range(2):
            device.run({0: overlays.program({CODE: AT * TINY.row_bytes})}, cycles=100_000)
            assert device.read_scalars(0)[1:4].tolist() == [1200, 600, 2]
            assert not device.read_semaphores(0).any()
