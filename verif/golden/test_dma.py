"""Transfers of the golden core: the words that they copy, and the faults of descriptors.

The expected results are computed here row by row and word by word, from the text of the manual.
"""

import itertools
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest

from golden.core import GoldenCore
from golden.dma import Descriptor, allocate_hbm
from hdl.config import Config
from hdl.dma.format import DESCRIPTOR, DmaSpace
from hdl.encoding import bundle_words
from hdl.isa import Fault

TINY = Config.preset("tiny")
ODD = Config(array=6, sublanes=3, vmem_bytes=72 * 7, smem_words=150, imem_bundles=9,
             hbm_bytes=4096, hbm_channels=1)
FLAT = Config(array=4, sublanes=1, vmem_bytes=16 * 20, smem_words=64, imem_bundles=20,
              hbm_bytes=4096)
SPACES = {space.name: space for space in DmaSpace}
VECTOR = ("VMEM", "OTHER_VMEM", "VREG", "MASK")
READABLE = ("HBM", "VMEM", "OTHER_VMEM", "SMEM", "VREG", "MASK")
WRITABLE = ("HBM", "VMEM", "OTHER_VMEM", "SMEM", "IMEM")


def pair(config: Config, rng: np.random.Generator) -> tuple[GoldenCore, GoldenCore]:
    """Return two connected cores with random contents."""
    hbm = allocate_hbm(config)
    hbm[:] = rng.integers(0, 1 << 32, hbm.shape, np.uint32)
    cores = GoldenCore(config, hbm), GoldenCore(config, hbm)
    cores[0].connect(cores[1])
    for golden in cores:
        for array in (golden.vmem, golden.smem, golden.vectors):
            array[:] = rng.integers(0, 1 << 32, array.shape, np.uint32)
        golden.masks[1:] = rng.integers(0, 2, golden.masks[1:].shape)
        golden.program[:] = [int.from_bytes(rng.bytes(36), "little")
                              for _ in range(config.imem_bundles)]
    return cores


def flat(golden: Any) -> dict[str, dict[int, int]]:
    """Return all words of two cores: a dictionary by the space's name and then by address.

    A bundle has 9 words, but 16 addresses: the other 7 are absent.
    """
    masks = sum(golden.masks[i].astype(np.int64) << i for i in range(8))
    return {
        "HBM": {i: int(word) for i, word in enumerate(golden.hbm.reshape(-1))},
        "VMEM": {i: int(word) for i, word in enumerate(golden.vmem.reshape(-1))},
        "OTHER_VMEM": {i: int(word) for i, word in enumerate(golden.peer.vmem.reshape(-1))},
        "SMEM": {i: int(word) for i, word in enumerate(golden.smem)},
        "IMEM": {16 * i + w: bundle >> 32 * w & 0xFFFFFFFF
                 for i, bundle in enumerate(golden.program) for w in range(9)},
        "VREG": {i: int(word) for i, word in enumerate(golden.vectors.reshape(-1))},
        "MASK": {i: int(word) for i, word in enumerate(np.asarray(masks).reshape(-1))},
    }


def capacity(name: str, config: Config) -> int:
    """Return the number of word addresses of a space, including unused ones of bundles."""
    register = config.sublanes * config.lanes
    return {"HBM": config.hbm_bytes // (4 * config.lanes) * config.lanes,
            "VMEM": config.vmem_vectors * register, "OTHER_VMEM": config.vmem_vectors * register,
            "SMEM": config.smem_words, "IMEM": 16 * config.imem_bundles,
            "VREG": 32 * register, "MASK": register}[name]


def first_word(name: str, address: int, run: int, stride: int, row: int, config: Config) -> int:
    """Return the address, in words, at which a row of a transfer's source or destination begins."""
    lanes, sublanes = config.lanes, config.sublanes
    if name in ("SMEM", "IMEM"):
        return address + row * lanes
    if name == "HBM":
        within, runs = (row % run, row // run) if run else (row, 0)
        place = address + within * 4 * lanes + runs * stride
        assert place % 4 == 0
        return place // 4
    block, sublane = divmod(row, sublanes)
    within, runs = (block % run, block // run) if run else (block, 0)
    return ((address + within + runs * stride) * sublanes + sublane) * lanes


def sides(descriptor: Descriptor) -> list[tuple[str, int, int, int]]:
    return [(name, getattr(descriptor, f"{side}_address"), getattr(descriptor, f"{side}_run"),
             getattr(descriptor, f"{side}_stride"))
            for side in ("source", "destination")
            for name in [DmaSpace(getattr(descriptor, f"{side}_space")).name]]


def expected_fault(descriptor: Descriptor, config: Config, cores: int = 2) -> Fault:
    """Return the first fault of a descriptor; the ranges are checked row by row."""
    given = descriptor
    try:
        both = sides(given)
    except ValueError:
        return Fault.DMA_DESCRIPTOR
    if both[0][0] not in READABLE or both[1][0] not in WRITABLE or (
            given.reserved or given.signal_remote or given.remote_semaphore):
        return Fault.DMA_DESCRIPTOR
    if given.rows == 0 or given.rows >= 1 << 24:
        return Fault.DMA_DESCRIPTOR
    if cores == 1 and (given.signal_other or "OTHER_VMEM" in (both[0][0], both[1][0])):
        return Fault.DMA_DESCRIPTOR
    for name, address, run, stride in both:
        if name != "HBM" and address > 0xFFFFFFFF:
            return Fault.DMA_DESCRIPTOR
        if (name in ("SMEM", "IMEM") and run) or (stride and not run):
            return Fault.DMA_DESCRIPTOR
    for name, address, _, stride in both:
        if name == "HBM" and (address % (4 * config.lanes) or stride % (4 * config.lanes)):
            return Fault.DMA_ALIGNMENT
        if (name == "IMEM" and address % 16) or (name in VECTOR and given.rows % config.sublanes):
            return Fault.DMA_ALIGNMENT
    for name, address, run, stride in both:
        for row in range(given.rows):
            place = first_word(name, address, run, stride, row, config)
            if place < 0 or place + config.lanes > capacity(name, config):
                return Fault.DMA_RANGE
    return Fault.NONE


def expected_words(descriptor: Descriptor, before: Mapping[str, dict[int, int]],
                   config: Config) -> dict[str, dict[int, int]]:
    """Return the words that a transfer should leave in all spaces."""
    (source, *from_), (destination, *to) = sides(descriptor)
    after = {name: dict(words) for name, words in before.items()}
    for row in range(descriptor.rows):
        get = first_word(source, from_[0], from_[1], from_[2], row, config)
        put = first_word(destination, to[0], to[1], to[2], row, config)
        for lane in range(config.lanes):
            if put + lane in after[destination]:
                after[destination][put + lane] = before[source][get + lane]
    return after


def assert_done(golden: GoldenCore, descriptor: Descriptor, seed: int | None = None) -> Fault:
    """Execute a transfer, and check its fault and all words against the expected ones."""
    config = golden.config
    before = flat(golden)
    fault = expected_fault(descriptor, config)
    assert golden.transfer(descriptor) is fault, (seed, descriptor)
    expected = before if fault else expected_words(descriptor, before, config)
    after = flat(golden)
    for name, words in expected.items():
        assert after[name] == words, (seed, name, descriptor)
    return fault


def some_side(name: str, rows: int, config: Config,
              rng: np.random.Generator) -> tuple[int, int, int]:
    """Return a random address, run and stride, which are mostly valid."""
    lanes = config.lanes
    unit = 4 * lanes if name == "HBM" else 1
    if name in ("SMEM", "IMEM"):
        limit = max(1, capacity(name, config) - rows * lanes + 1)
        address = int(rng.integers(limit))
        return (address - address % 16 if name == "IMEM" else address), 0, 0
    register = config.lanes * (1 if name == "HBM" else config.sublanes)
    size = capacity(name, config) // register
    blocks = rows if name == "HBM" else max(1, rows // config.sublanes)
    run = int(rng.integers(0, blocks + 2))
    stride = int(rng.integers(-5, 6)) if run else 0
    reach = (blocks - 1) // run * stride if run else 0
    length = min(run or blocks, blocks)
    low, high = max(0, -reach), size - length - max(0, reach)
    first = int(rng.integers(low, high + 1)) if high >= low else int(rng.integers(size))
    return first * unit, run, stride * unit


def some_descriptor(source: str, destination: str, config: Config, rng: np.random.Generator,
                    wrong: float = 0.0) -> Descriptor:
    rows = int(rng.integers(1, 7))
    if source in VECTOR or destination in VECTOR:
        rows = config.sublanes * int(rng.integers(1, 7))
    values: dict[str, int] = {"rows": rows}
    for side, name in (("source", source), ("destination", destination)):
        if name == "MASK":
            run = int(rng.integers(1, 3)) if rows > config.sublanes else int(rng.integers(2))
            address, stride = 0, 0
        else:
            address, run, stride = some_side(name, rows, config, rng)
        values |= {f"{side}_space": SPACES[name], f"{side}_address": address,
                   f"{side}_run": run, f"{side}_stride": stride}
    if rng.random() < wrong:
        name = str(rng.choice([name for name in DESCRIPTOR if name != "signal_other"]))
        field = DESCRIPTOR[name]
        small = int(rng.integers(-8, 40))
        low = -1 << field.width - 1 if field.signed else 0
        values[name] = min(max(small, low), low + (1 << field.width) - 1)
    return Descriptor(**values)


@pytest.mark.parametrize(("source", "destination"), list(itertools.product(READABLE, WRITABLE)))
def test_every_pair_of_spaces_copies_row_by_row(source: str, destination: str) -> None:
    for number, config in enumerate((TINY_SMALL, ODD, FLAT)):
        seed = 100 + number
        rng = np.random.default_rng(seed)
        golden, _ = pair(config, rng)
        done = 0
        for _ in range(12):
            descriptor = some_descriptor(source, destination, config, rng)
            # Where source and destination overlap, the golden core reads all of it first.
            done += assert_done(golden, descriptor, seed) is Fault.NONE
        assert done >= 3, (config, done)


TINY_SMALL = Config.preset("tiny", hbm_bytes=4096, vmem_bytes=1024, imem_bundles=40)


def test_random_descriptors_have_the_faults_that_they_should() -> None:
    counts = dict.fromkeys(Fault, 0)
    for number, config in enumerate((TINY_SMALL, ODD, FLAT)):
        seed = 200 + number
        rng = np.random.default_rng(seed)
        golden, _ = pair(config, rng)
        for _ in range(1500):
            descriptor = some_descriptor(str(rng.choice(READABLE)), str(rng.choice(WRITABLE)),
                                         config, rng, wrong=0.8)
            fault = expected_fault(descriptor, config)
            counts[fault] += 1
            assert descriptor.check(config, 2) is fault, (seed, descriptor)
            if fault:
                assert golden.transfer(descriptor) is fault
    for fault in (Fault.NONE, Fault.DMA_DESCRIPTOR, Fault.DMA_RANGE, Fault.DMA_ALIGNMENT):
        assert counts[fault] > 200, counts
    assert sum(counts.values()) == 4500


def test_words_of_a_descriptor() -> None:
    descriptor = Descriptor(
        source_space=DmaSpace.SMEM, destination_space=DmaSpace.OTHER_VMEM, semaphore=13,
        signal=1, signal_other=0, signal_remote=1, remote_semaphore=9, reserved=5, rows=0x00ABCDEF,
        source_address=0x0123456789ABCDEF, source_run=0x11111111, source_stride=-2,
        destination_address=0xFEDCBA9876543210, destination_run=0x22222222,
        destination_stride=-1 << 31)
    words = (0x002CDD23, 0x00ABCDEF, 0x89ABCDEF, 0x01234567, 0x11111111, 0xFFFFFFFE,
             0x76543210, 0xFEDCBA98, 0x22222222, 0x80000000)
    assert descriptor.pack() == words
    assert Descriptor.unpack(words) == descriptor
    assert Descriptor.unpack(np.array(words, np.uint32)) == descriptor
    other = Descriptor(0, 0, 1, signal_other=1)
    assert other.pack() == (1 << 13, 1, 0, 0, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(("change", "error", "message"), [
    ({"rows": 1 << 32}, ValueError, "rows must fit 32 bits, not 4294967296"),
    ({"rows": -1}, ValueError, "rows must fit 32 bits, not -1"),
    ({"source_stride": 1 << 31}, ValueError, "source_stride must fit 32 bits as a signed number"),
    ({"semaphore": 16}, ValueError, "semaphore must fit 4 bits, not 16"),
    ({"destination_address": 1.5}, TypeError, "destination_address must be an integer, not 1.5"),
])
def test_values_that_do_not_fit_are_named(change: Any, error: type[Exception],
                                          message: str) -> None:
    with pytest.raises(error, match=message):
        Descriptor(**{"source_space": 0, "destination_space": 0, "rows": 1} | change)


GOOD = {"source_space": DmaSpace.HBM, "destination_space": DmaSpace.VMEM, "rows": 8}
ROW = TINY.row_bytes
HBM, VMEM = DmaSpace.HBM, DmaSpace.VMEM
SMEM, IMEM = DmaSpace.SMEM, DmaSpace.IMEM
CHECKS: dict[Fault, list[dict[str, int]]] = {
    Fault.DMA_DESCRIPTOR: [
        {"source_space": 7}, {"source_space": 15}, {"destination_space": 7},
        {"source_space": IMEM}, {"destination_space": DmaSpace.VREG},
        {"destination_space": DmaSpace.MASK}, {"reserved": 1}, {"reserved": 1 << 12},
        {"rows": 0}, {"rows": 1 << 24}, {"rows": 0xFFFFFFFE}, {"destination_address": 1 << 32},
        {"source_space": SMEM, "source_address": 1 << 63},
        {"source_space": SMEM, "source_run": 1}, {"destination_space": IMEM, "destination_run": 8},
        {"source_stride": ROW}, {"destination_stride": -1},
        {"source_space": SMEM, "source_stride": 4},
        # Chips without links.
        {"source_space": DmaSpace.VMEM, "destination_space": DmaSpace.REMOTE_VMEM,
         "destination_address": 1 << 32}, {"signal_remote": 1}, {"remote_semaphore": 8},
    ],
    Fault.DMA_ALIGNMENT: [
        {"source_address": 4}, {"source_address": ROW - 1}, {"source_run": 1, "source_stride": 8},
        # A stride is checked even if it is not used: the run is as long as the transfer.
        {"source_run": 8, "source_stride": -1},
        {"rows": 7}, {"rows": (1 << 24) - 1},
        {"source_space": DmaSpace.MASK, "rows": 1, "destination_space": HBM},
        {"destination_space": IMEM, "destination_address": 8},
    ],
    Fault.DMA_RANGE: [
        {"source_address": 1 << 20}, {"source_address": (1 << 20) - 7 * ROW},
        {"source_address": (1 << 64) - ROW}, {"source_address": 1 << 63},
        {"source_run": 1, "source_stride": -ROW, "source_address": 6 * ROW},
        {"source_run": 1, "source_stride": -1 << 31, "source_address": 1 << 33},
        {"source_run": 3, "source_stride": 1 << 19},
        {"source_run": 1, "source_stride": (1 << 31) - ROW},
        {"destination_address": 253}, {"destination_address": 0xFFFFFFFE},
        {"destination_run": 1, "destination_stride": 0x55555556},
        {"destination_run": 2, "destination_stride": 255},
        {"rows": 8 * 65536 + 2}, {"rows": (1 << 24) - 2},
        {"source_space": SMEM, "source_address": 225}, {"source_space": SMEM, "rows": 66},
        {"source_space": SMEM, "source_address": 0xFFFFFFF0},
        {"source_space": DmaSpace.VREG, "source_address": 29},
        {"source_space": DmaSpace.MASK, "source_address": 1, "rows": 2},
        {"source_space": DmaSpace.MASK, "rows": 4},
        {"destination_space": IMEM, "destination_address": 16 * 511, "rows": 5},
        {"destination_space": IMEM, "destination_address": 0xFFFFFFF0, "rows": 5},
    ],
    Fault.NONE: [
        {}, {"source_address": (1 << 20) - 8 * ROW},
        {"source_run": 1, "source_stride": -ROW, "source_address": 7 * ROW},
        {"source_run": 1, "source_stride": 0}, {"source_run": 3, "source_stride": (1 << 19) - ROW},
        {"source_run": 0xFFFFFFFF, "source_stride": 1 << 30},
        {"source_run": 3, "source_stride": -ROW, "source_address": 2 * ROW},
        # The last run is cut short: a whole one would not fit.
        {"destination_run": 3, "destination_stride": 255},
        {"destination_run": 3, "destination_stride": -253, "destination_address": 253},
        {"destination_address": 252}, {"rows": 512},
        {"source_space": SMEM, "source_address": 224}, {"source_space": SMEM, "rows": 64},
        {"source_space": DmaSpace.VREG, "source_address": 28},
        {"source_space": DmaSpace.MASK, "rows": 2},
        {"source_space": DmaSpace.MASK, "rows": 8, "source_run": 1},
        {"destination_space": IMEM, "destination_address": 16 * 511, "rows": 4},
        {"destination_space": IMEM, "destination_address": 16 * 510, "rows": 8},
        {"semaphore": 15, "signal": 1},
    ],
}


@pytest.mark.parametrize(("fault", "change"), [
    (fault, change) for fault, changes in CHECKS.items() for change in changes])
def test_checks(fault: Fault, change: dict[str, Any]) -> None:
    descriptor = Descriptor(**GOOD | change)
    assert descriptor.check(TINY, 2) is fault
    if descriptor.rows < 10000:
        assert expected_fault(descriptor, TINY) is fault


def test_order_of_checks() -> None:
    """If a descriptor has two faults, the one that is checked first is reported."""
    tried = 0
    order = [Fault.DMA_DESCRIPTOR, Fault.DMA_ALIGNMENT, Fault.DMA_RANGE]
    for earlier, later in itertools.combinations(order, 2):
        for one, other in itertools.product(CHECKS[earlier], CHECKS[later]):
            if one.keys() & other.keys():
                continue
            if {"source_space", "destination_space"} & (one.keys() | other.keys()):
                # An address that is wrong in one space may be valid in another.
                continue
            tried += 1
            assert Descriptor(**GOOD | one | other).check(TINY, 2) is earlier, (one, other)
    assert tried > 100


def test_the_other_core_needs_two() -> None:
    for change in ({"source_space": DmaSpace.OTHER_VMEM, "destination_space": HBM},
                   {"destination_space": DmaSpace.OTHER_VMEM}, {"signal_other": 1},
                   # This fault is reported before all others.
                   {"signal_other": 1, "rows": 7}, {"signal_other": 1, "source_address": 1 << 40}):
        descriptor = Descriptor(**GOOD | change)
        assert descriptor.check(TINY, 1) is Fault.DMA_DESCRIPTOR
        alone = GoldenCore(TINY)
        assert alone.transfer(descriptor) is Fault.DMA_DESCRIPTOR
    assert Descriptor(**GOOD | {"signal_other": 1}).check(TINY, 2) is Fault.NONE


def test_blocks_at_one_place_are_written_in_their_order() -> None:
    seed = 5
    golden, _ = pair(TINY_SMALL, np.random.default_rng(seed))
    for run, stride in ((1, 0), (2, 1), (3, 1), (3, -2), (2, -1), (4, 0)):
        for space, unit in ((HBM, ROW), (VMEM, 1)):
            descriptor = Descriptor(
                DmaSpace.VREG, space, 22, destination_address=20 * unit, destination_run=run,
                destination_stride=stride * unit)
            assert assert_done(golden, descriptor, seed) is Fault.NONE


def test_source_and_destination_may_overlap_in_this_core() -> None:
    seed = 6
    golden, _ = pair(TINY_SMALL, np.random.default_rng(seed))
    for space, unit in ((HBM, ROW), (VMEM, 1), (SMEM, 1)):
        for shift in (1, -1, 3):
            start = 8 * unit
            descriptor = Descriptor(space, space, 16, source_address=start,
                                    destination_address=start + shift * unit)
            assert assert_done(golden, descriptor, seed) is Fault.NONE


def test_a_partly_written_bundle_keeps_its_other_words() -> None:
    golden, _ = pair(TINY_SMALL, np.random.default_rng(7))
    before = list(golden.program)
    descriptor = Descriptor(SMEM, IMEM, 5, destination_address=16 * 3)
    assert golden.transfer(descriptor) is Fault.NONE
    words = [int(word) for word in golden.smem[:20]]
    assert golden.program[:3] == before[:3]
    assert golden.program[5:] == before[5:]
    assert bundle_words(golden.program[3]) == tuple(words[:9])
    assert bundle_words(golden.program[4]) == (
        *words[16:20], *bundle_words(before[4])[4:])


def test_completion_signals() -> None:
    for own, other in itertools.product((0, 1), repeat=2):
        golden, peer = pair(TINY, np.random.default_rng(8))
        golden.semaphores[9], peer.semaphores[9] = 5, 7
        assert golden.transfer(Descriptor(
            HBM, VMEM, 2, semaphore=9, signal=own, signal_other=other)) is Fault.NONE
        assert golden.semaphores.tolist() == [0] * 9 + [5 + own] + [0] * 6
        assert peer.semaphores.tolist() == [0] * 9 + [7 + other] + [0] * 6


def test_completion_signals_may_overflow() -> None:
    golden, peer = pair(TINY, np.random.default_rng(9))
    golden.semaphores[1] = peer.semaphores[1] = 0xFFFFFFFF
    descriptor = Descriptor(HBM, VMEM, 2, semaphore=1, signal_other=1)
    assert golden.transfer(descriptor) is Fault.NONE
    assert (golden.fault, peer.fault) == (Fault.NONE, Fault.SEMAPHORE)
    assert golden.transfer(Descriptor(HBM, VMEM, 2, semaphore=1, signal=1)) is Fault.NONE
    assert golden.fault is Fault.SEMAPHORE
    assert golden.semaphores[1] == peer.semaphores[1] == 0xFFFFFFFF


def test_hbm_takes_memory_only_where_it_is_written() -> None:
    config = Config.preset("v2", hbm_bytes=1 << 36)
    hbm = allocate_hbm(config)
    assert hbm.shape == (1 << 27, 128)
    assert hbm.dtype == np.uint32
    assert hbm.flags.c_contiguous
    assert hbm.flags.writeable
    golden = GoldenCore(config, hbm)
    golden.vmem[3] = 7
    last = (1 << 36) - 8 * config.row_bytes
    assert golden.transfer(Descriptor(
        VMEM, HBM, 8, source_address=3, destination_address=last)) is Fault.NONE
    assert (hbm[-8:] == 7).all()
    assert not hbm[-9].any()


@pytest.mark.parametrize(("hbm", "error", "message"), [
    ([], TypeError, r"hbm must be an array of uint32, not \[\]"),
    (np.zeros((65536, 4), np.int32), TypeError, "hbm must be an array of uint32"),
    (np.zeros((65536, 8), np.uint32), ValueError, r"shape \(65536, 4\), not \(65536, 8\)"),
    (np.zeros((65536, 8), np.uint32)[:, ::2], ValueError, "hbm must be contiguous"),
])
def test_wrong_hbm_is_refused(hbm: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GoldenCore(TINY, hbm)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="config must be a Config, not None"):
        allocate_hbm(cast(Any, None))
    with pytest.raises(TypeError, match="descriptor must be a Descriptor, not 3"):
        GoldenCore(TINY).transfer(cast(Any, 3))
    with pytest.raises(ValueError, match="words must be 10, not 9"):
        Descriptor.unpack([0] * 9)
    with pytest.raises(ValueError, match=r"words\[2\] must fit 32 bits, not -1"):
        Descriptor.unpack([0, 0, -1, *[0] * 7])
