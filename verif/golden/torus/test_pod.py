"""Programs on golden pods: exchanges between chips, in every order of events, and their faults."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from golden.chip import GoldenChip
from golden.dma import Descriptor, check_remote
from golden.torus.egress import Packet
from golden.torus.pod import GoldenPod, Place
from hdl.config import Config
from hdl.dma.format import REMOTE_LAYOUT, DmaSpace, pack_remote, unpack_remote
from hdl.isa import Fault
from hdl.link.format import Direction
from sim.asm.descriptor import descriptor, remote_vmem, vmem, vreg
from sim.asm.operands import sem, v
from sim.asm.text import assemble
from verif.models.ring import ring_program

CONFIG = Config.preset("tiny", link_bytes=8)
ONE_CORE = replace(CONFIG, cores=1)
VMEM, REMOTE = DmaSpace.VMEM, DmaSpace.REMOTE_VMEM


def start(pod: GoldenPod, texts: Mapping[Place, str],
          descriptors: Mapping[int, tuple[int, ...]] = {}) -> None:
    for (x, y, number), text in texts.items():
        core = pod[x, y].cores[number]
        for at, words in descriptors.items():
            core.smem[at:at + len(words)] = words
        core.load_program(assemble(text, pod.config).bundles)
        core.start()


@pytest.mark.parametrize("shape", [(2, 1), (2, 2), (3, 2), (4, 4)])
def test_rings_reduce_in_every_order_of_events(shape: tuple[int, int]) -> None:
    """Core 0 adds along X and then along Y; core 1 adds along Y and then along X."""
    vectors = 3
    wanted: dict[int, Any] = {}
    for seed in range(3):
        pod = GoldenPod(shape, CONFIG, seed)
        rng = np.random.default_rng(4)
        for (x, y), chip in pod.chips.items():
            for number, core in enumerate(chip.cores):
                data = rng.integers(0, 1 << 32, (vectors, 2, 4), np.uint32)
                core.vmem[:vectors] = data
                if not seed:
                    wanted[number] = wanted.get(number, 0) + data
                program = ring_program(CONFIG, shape, vectors, number)
                core.smem[:len(program.smem)] = program.smem
                core.load_program(assemble(program.text, CONFIG).bundles)
                core.start()
                assert (x, y) == chip.position
        run = pod.run(10_000)
        assert run.done, (seed, run)
        assert pod.quiet
        for chip in pod.chips.values():
            for number, core in enumerate(chip.cores):
                np.testing.assert_array_equal(core.vmem[:vectors], wanted[number], f"seed {seed}")
                assert not core.semaphores.any()


def overwritten(waits: bool, seed: int) -> int:
    """Send a vector of sevens, then clear it, after a wait or at once; return what arrives."""
    pod = GoldenPod((2, 2), CONFIG, seed)
    sender, receiver = pod[0, 0].cores[0], pod[1, 1].cores[1]
    sender.vmem[3] = 7
    words = descriptor(CONFIG, vmem(3), remote_vmem(9, 1, -1, 1), rows=2, semaphore=sem[1],
                       remote_semaphore=sem[2])
    start(pod, {(0, 0, 0): f"{{ misc.dma 0 }} {{ {'misc.wait sem1, 1' if waits else ''} }} "
                           "{ st.store v0, s0, 3 } { s1.halt }",
                (1, 1, 1): "{ misc.wait sem2, 1 } { s1.halt }"}, {0: words})
    assert pod.run(100).done
    assert len(np.unique(receiver.vmem[9])) == 1
    return int(receiver.vmem[9, 0, 0])


def test_a_buffer_may_be_overwritten_when_its_transfer_has_left() -> None:
    seeds = range(12)
    assert {overwritten(True, seed) for seed in seeds} == {7}
    # The order of events shows that a program does not wait.
    assert {overwritten(False, seed) for seed in seeds} == {0, 7}


def test_transfers_and_signals_of_a_way_keep_their_order() -> None:
    words = {16 * n: descriptor(CONFIG, vmem(4 * n, run=1, stride=2), remote_vmem(50, -1, 0),
                                rows=4, remote_semaphore=sem[3]) for n in range(3)}
    for seed in range(6):
        pod = GoldenPod((3, 1), CONFIG, seed)
        pod[0, 0].cores[1].vmem[:12] = np.arange(12)[:, None, None]
        start(pod, {(0, 0, 1): "{ misc.dma 0 } { misc.dma 16 | s0.add s1, s0, 0xFF } "
                               "{ misc.signal_remote sem4, s1, 5 } { misc.dma 32 | s1.halt }",
                    # The last transfer may be under way, but the first two have arrived.
                    (2, 0, 0): "{ misc.wait sem4, 5 } { ld.load v1, s0, 51 } "
                               "{ misc.read_semaphore s2, sem3 | s1.halt }"}, words)
        assert pod.run(100).done
        core = pod[2, 0].cores[0]
        assert core.vectors[1, 0, 0] in (6, 10)
        assert core.scalars[2] in (2, 3)
        assert core.vmem[50:52, 1, 3].tolist() == [8, 10]
        assert core.semaphores[3] == 3


def test_a_program_that_waits_for_ever_is_named() -> None:
    pod = GoldenPod((2, 2), CONFIG)
    start(pod, {(1, 0, 1): "{ } { misc.wait sem2, 1 }", (0, 1, 0): "{ s1.halt }"})
    run = pod.run(100)
    assert (run.waiting, run.running, run.faults) == (((1, 0, 1),), (), {})
    assert (run.executed[1, 0, 1], run.executed[0, 1, 0], run.done) == (1, 1, False)
    start(pod, {(0, 0, 0): "{ s1.jump 0 }"})
    run = pod.run(100)
    assert run.running == ((0, 0, 0),)
    assert run.executed[0, 0, 0] == 100


# Faults

GOOD = {"source_space": VMEM, "destination_space": REMOTE, "rows": 4, "source_address": 2,
        "destination_address": pack_remote(-1, 2, 1) << 32 | 7}
TORUS = 2, 3


@pytest.mark.parametrize(("change", "fault"), [
    ({}, Fault.NONE), ({"signal_remote": 1, "remote_semaphore": 15}, Fault.NONE),
    ({"signal": 1, "signal_other": 1, "semaphore": 3}, Fault.NONE),
    ({"destination_run": 1, "destination_stride": 248}, Fault.NONE),
    ({"source_space": REMOTE}, Fault.DMA_DESCRIPTOR),
    ({"source_space": DmaSpace.HBM, "source_address": 0}, Fault.DMA_DESCRIPTOR),
    ({"source_space": DmaSpace.VREG}, Fault.DMA_DESCRIPTOR),
    ({"destination_address": 1 << 49 | 1 << 32}, Fault.DMA_DESCRIPTOR),
    ({"destination_address": 1 << 63 | 1 << 32}, Fault.DMA_DESCRIPTOR),
    ({"destination_stride": 1}, Fault.DMA_DESCRIPTOR), ({"reserved": 1}, Fault.DMA_DESCRIPTOR),
    ({"destination_space": VMEM, "destination_address": 0, "signal_remote": 1},
     Fault.DMA_DESCRIPTOR),
    ({"destination_space": VMEM, "destination_address": 0, "remote_semaphore": 1},
     Fault.DMA_DESCRIPTOR),
    ({"rows": 3}, Fault.DMA_ALIGNMENT),
    ({"destination_address": 255 | 1 << 32}, Fault.DMA_RANGE),
    ({"destination_address": 0}, Fault.DMA_RANGE),
    ({"destination_address": pack_remote(2, 0, 0) << 32}, Fault.DMA_RANGE),
    ({"destination_address": pack_remote(1, -3, 0) << 32}, Fault.DMA_RANGE),
    ({"destination_address": pack_remote(-128, 127, 0) << 32}, Fault.DMA_RANGE),
    ({"destination_run": 1, "destination_stride": 249}, Fault.DMA_RANGE),
    ({"source_address": 255}, Fault.DMA_RANGE),
])
def test_checks_of_remote_descriptors(change: dict[str, Any], fault: Fault) -> None:
    made = Descriptor(**{**GOOD, **change})
    assert made.check(CONFIG, 2, TORUS) is fault
    for config, cores in ((Config.preset("tiny"), 2), (ONE_CORE, 1)):
        # No links; no core 1.
        if made.is_remote and made.destination_address >> 48 & 1:
            assert made.check(config, cores, TORUS) is Fault.DMA_DESCRIPTOR
    pod = GoldenPod(TORUS, CONFIG)
    start(pod, {(0, 2, 0): "{ misc.dma 3 } { s1.halt }"}, {3: made.pack()})
    run = pod.run(10)
    assert run.faults == ({(0, 2, 0): fault} if fault else {})
    assert pod.quiet
    # A chip alone has no neighbour.
    assert made.check(CONFIG, 2) is (fault or Fault.DMA_RANGE)


@pytest.mark.parametrize(("word", "fault"), [
    (pack_remote(1, 0, 1), Fault.NONE), (pack_remote(-1, -2, 0), Fault.NONE),
    (0, Fault.DMA_RANGE), (pack_remote(2, 0, 0), Fault.DMA_RANGE),
    (pack_remote(0, 3, 0), Fault.DMA_RANGE), (1 << 17 | 1, Fault.DMA_DESCRIPTOR),
    (1 << 31, Fault.DMA_DESCRIPTOR)])
def test_checks_of_remote_signals(word: int, fault: Fault) -> None:
    assert check_remote(word, CONFIG, TORUS) is fault
    pod = GoldenPod(TORUS, CONFIG)
    start(pod, {(1, 1, 0): f"{{ s0.add s7, s0, {word} }} "
                           "{ misc.signal_remote sem9, s7, 3 | s0.add s8, s0, 1 } { s1.halt }"})
    run = pod.run(10)
    assert run.faults == ({(1, 1, 0): fault} if fault else {})
    assert pod[1, 1].cores[0].scalars[8] == (fault is Fault.NONE)
    got = [chip.cores[number].semaphores[9] for chip in pod.chips.values() for number in range(2)]
    assert sorted(got) == [0] * 11 + [0 if fault else 3]


def test_a_remote_signal_needs_links_and_may_overflow() -> None:
    text = "{ s0.add s1, s0, 1 } { misc.signal_remote sem2, s1, -1 } { s1.halt }"
    alone = GoldenPod((2, 1), CONFIG)
    alone[1, 0].cores[0].semaphores[2] = 1
    start(alone, {(0, 0, 0): text})
    assert alone.run(10).faults == {(1, 0, 0): Fault.SEMAPHORE}
    assert alone[1, 0].cores[0].semaphores[2] == 1
    with pytest.raises(ValueError, match="link_bytes must not be 0"):
        GoldenPod((2, 1), Config.preset("tiny"))


def all_cores(x: int, y: int) -> dict[Place, Fault]:
    return {(x, y, number): Fault.LINK for number in range(2)}


SEND = "{ s0.add s1, s0, 0x101 } { misc.signal_remote sem2, s1, 6 } { s1.halt }"


@pytest.mark.parametrize("x", [0, 1, 2])
def test_a_dead_link_stops_the_chip_that_needs_it(x: int) -> None:
    """The packet goes from (0, 0) through (1, 0) to (1, 1)."""
    pod = GoldenPod((3, 2), CONFIG)
    if x == 0:
        pod.cut(0, 0, Direction.X_PLUS)
    elif x == 1:
        pod.cut(1, 1, Direction.Y_MINUS)  # its other end
    else:
        pod.cut(0, 0, Direction.X_MINUS)  # not on the way
    start(pod, {(0, 0, 0): SEND})
    assert pod.run(10).faults == (all_cores(x, 0) if x < 2 else {})
    assert pod[1, 1].cores[0].semaphores[2] == (6 if x == 2 else 0)


def test_a_packet_for_another_chip_is_found() -> None:
    pod = GoldenPod((2, 2), CONFIG)
    pod[0, 0].position = 1, 0
    start(pod, {(0, 0, 0): SEND})
    assert pod.run(10).faults == all_cores(1, 1)
    assert not pod[1, 1].cores[0].semaphores.any()


@pytest.mark.parametrize(("change", "is_wrong"), [
    ({}, False), ({"x": 0}, True), ({"core": 2}, True), ({"address": 256}, True)])
def test_a_packet_that_a_chip_cannot_store(change: dict[str, Any], is_wrong: bool) -> None:
    chip = GoldenPod((2, 1), CONFIG)[1, 0]
    good = Packet(1, 0, 0, 255, np.ones((2, 4), np.uint32), 4, 1)
    before = [core.vmem.copy() for core in chip.cores]
    chip.receive(replace(good, **change))
    assert [core.fault for core in chip.cores] == [Fault.LINK if is_wrong else Fault.NONE] * 2
    changed = [bool((core.vmem != old).any()) for core, old in zip(chip.cores, before, strict=True)]
    assert changed == [not is_wrong, False]
    assert chip.cores[0].semaphores[4] == (not is_wrong)


def test_a_reset_drops_what_has_not_left() -> None:
    pod = GoldenPod((2, 1), CONFIG)
    words = descriptor(CONFIG, vmem(0), remote_vmem(0, 1, 0), rows=4, semaphore=sem[1],
                       remote_semaphore=sem[1])
    core = pod[0, 0].cores[0]
    assert core.transfer(Descriptor.unpack(words)) is Fault.NONE
    assert not pod.quiet
    core.reset()
    assert pod.quiet
    assert pod.run(1).done
    assert not any(chip.cores[0].semaphores.any() for chip in pod.chips.values())


# The assembler's descriptors

def test_words_that_name_cores_of_other_chips() -> None:
    for dx, dy, core in ((1, 0, 0), (-1, 2, 1), (-128, 127, 0)):
        word = pack_remote(dx, dy, core)
        assert unpack_remote(word | 5 << 17) == (dx, dy, core, 5)
        constant = REMOTE_LAYOUT.const({"dx": dx, "dy": dy, "core": core})
        assert constant.as_value().value == word
    with pytest.raises(ValueError, match="dy must be from -128 to 127, not 128"):
        pack_remote(0, 128, 0)
    with pytest.raises(ValueError, match="core must be 0 or 1, not 2"):
        pack_remote(0, 1, 2)


@pytest.mark.parametrize(("options", "message"), [
    ({"destination": (0, 0, 0)}, "dx and dy must not both be 0"),
    ({"destination": (0, 32, 0)}, "dx must be from -31 to 31, not 32"),
    ({"destination": (0, 1, 0, 1), "config": ONE_CORE},
     "core of the destination must be less than 1, not 1"),
    ({"config": Config.preset("tiny")},
     "destination must not be in REMOTE_VMEM on a chip without links"),
    ({"source": vreg(v[0])}, "source must be in VMEM for a remote transfer, not in VREG"),
    ({"destination": (255, 1, 0)}, "destination must lie within 0 to 255 of REMOTE_VMEM"),
])
def test_remote_transfers_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        descriptor(options.get("config", CONFIG), options.get("source", vmem(0)),
                   remote_vmem(*options.get("destination", (0, 1, 0))), rows=4)


def test_a_remote_signal_needs_a_remote_transfer() -> None:
    with pytest.raises(ValueError, match="remote_semaphore must be None unless destination is in"):
        descriptor(CONFIG, vmem(0), vmem(9), rows=4, remote_semaphore=sem[1])


@pytest.mark.parametrize("shape", [(33, 1), (2, 0)])
def test_sides_of_a_torus_that_cannot_be(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="side of the torus must be from 1 to 32, not"):
        GoldenChip(CONFIG).torus = shape


def test_place_outside_the_torus_is_refused() -> None:
    chip = GoldenChip(CONFIG)
    chip.torus, chip.position = (4, 3), (3, 2)
    for place in ((4, 0), (0, 3), (-1, 0)):
        with pytest.raises(ValueError, match="coordinate on the torus must be from 0 to"):
            chip.position = place
    for shape in ((3, 3), (4, 2)):
        with pytest.raises(ValueError, match=r"side of the torus must be from [34] to 32"):
            chip.torus = shape
    for name, value in (("torus", (4, 3, 9)), ("position", (3, 2, 0))):
        with pytest.raises(ValueError, match="argument 2 is shorter"):
            setattr(chip, name, value)
    assert (chip.torus, chip.position) == ((4, 3), (3, 2))
