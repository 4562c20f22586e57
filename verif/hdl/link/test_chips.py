"""Remote transfers between whole chips on small tori, in RTL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from golden.dma import Descriptor
from hdl.chip.chip import REST_CYCLES
from hdl.config import Config
from hdl.core.interface import Space
from hdl.dma.format import DmaSpace, pack_descriptor, pack_remote
from hdl.isa import SEMAPHORES, Fault
from hdl.link.format import Direction
from sim.asm.text import assemble
from sim.models.chip.registers import RegisterError
from sim.models.chip.simulation import Until
from sim.models.chip.torus import ChipTorus, WireFaults
from sim.models.chip.transfers import DescriptorError
from sim.models.hbm import HbmOptions
from verif.models.ring import ring_program

CONFIG = Config.preset("tiny", link_bytes=16)
_LIMIT = 20_000


def remote(source: int, destination: int, vectors: int, dx: int, dy: int, core: int,
           **fields: int) -> tuple[int, ...]:
    """The descriptor of a remote transfer of ``vectors`` vectors."""
    return pack_descriptor({
        "source_space": DmaSpace.VMEM, "destination_space": DmaSpace.REMOTE_VMEM,
        "rows": vectors * CONFIG.sublanes, "source_address": source,
        "destination_address": destination | pack_remote(dx, dy, core) << 32, **fields})


class Torus:
    """Chips on a torus, and what their vector memories and semaphores must contain."""

    def __init__(self, shape: tuple[int, int], seed: int, **options: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape = shape
        count = shape[0] * shape[1]
        latencies = options.pop("latencies", self.rng.integers(1, 30, (count, 4)))
        self.torus = ChipTorus(CONFIG, shape, latencies, seed=seed, **options)
        self.chips = self.torus.chips
        self.memory = self.rng.integers(
            1 << 32, dtype=np.uint32,
            size=(count, CONFIG.cores, CONFIG.vmem_vectors, CONFIG.sublanes, CONFIG.lanes))
        self.semaphores = np.zeros((count, CONFIG.cores, SEMAPHORES), np.uint32)
        for chip, cores in zip(self.chips, self.memory, strict=True):
            for core, vectors in enumerate(cores):
                chip.write_vmem(core, 0, vectors)

    def neighbour(self, chip: int, dx: int, dy: int) -> int:
        columns, rows = self.shape
        return (chip // columns + dy) % rows * columns + (chip % columns + dx) % columns

    def send(self, chip: int, core: int, source: int, destination: int, vectors: int,
             to: tuple[int, int, int], **fields: int) -> None:
        """Start a transfer, and note the vectors and signals that must arrive."""
        dx, dy, far = to
        self.chips[chip].start_transfer(core, remote(source, destination, vectors, *to, **fields))
        there = self.neighbour(chip, dx, dy)
        run, stride, semaphore, signal, signal_other, signal_remote, remote_semaphore = (
            fields.get(name, 0) for name in (
                "destination_run", "destination_stride", "semaphore", "signal", "signal_other",
                "signal_remote", "remote_semaphore"))
        for number in range(vectors):
            at = destination + (number // run * stride + number % run if run else number)
            self.memory[there, far, at] = self.memory[chip, core, source + number]
        self.semaphores[there, far, remote_semaphore] += signal_remote
        self.semaphores[chip, core, semaphore] += signal
        self.semaphores[chip, 1 - core, semaphore] += signal_other

    def check(self) -> None:
        for number, chip in enumerate(self.chips):
            for core in range(CONFIG.cores):
                assert chip.fault(core) is Fault.NONE
                np.testing.assert_array_equal(
                    chip.read_words(core, Space.SEMAPHORE, 0, SEMAPHORES),
                    self.semaphores[number, core])
                np.testing.assert_array_equal(
                    chip.read_vmem(core, 0, CONFIG.vmem_vectors), self.memory[number, core])


@contextmanager
def opened(shape: tuple[int, int], seed: int = 1, **options: Any) -> Iterator[Torus]:
    torus = Torus(shape, seed, **options)
    try:
        yield torus
    finally:
        torus.torus.close()


@pytest.mark.parametrize(("shape", "seed"), [((2, 1), 1), ((2, 2), 2)])
def test_vectors_and_signals_arrive(shape: tuple[int, int], seed: int) -> None:
    """From every core to every core of the torus, either way round, over wires with errors."""
    memory = HbmOptions(latency=20, stalls=9000, seed=seed)
    with opened(shape, seed, memory=memory) as pod:
        pod.torus.set_faults({(chip, port): WireFaults(0.01, 0.01)
                              for chip in range(len(pod.chips)) for port in Direction})
        rng = pod.rng
        senders = [(chip, core) for chip in range(len(pod.chips)) for core in range(2)]
        # Each sender has a part of every vector memory, so the order of senders does not matter.
        # While transfers are under way, all go the same way round: two ways have no common order.
        part = 192 // len(senders)
        way = 1
        for _ in range(40):
            number = int(rng.integers(len(senders)))
            dx, dy = (way * int(rng.integers(side)) for side in shape)
            vectors = int(rng.integers(1, part // 2))
            pod.send(*senders[number], 192 + int(rng.integers(64 - vectors)),
                     part * number + int(rng.integers(part - 2 * vectors)), vectors,
                     (dx or way * (dy == 0), dy, int(rng.integers(2))),
                     destination_run=int(rng.integers(1, 3)), destination_stride=2,
                     semaphore=int(rng.integers(16)),
                     signal=int(rng.integers(2)), signal_other=int(rng.integers(2)),
                     signal_remote=int(rng.integers(2)), remote_semaphore=int(rng.integers(16)))
            if rng.random() < 0.3:
                pod.torus.run(_LIMIT)
                way = -way
        pod.torus.run(_LIMIT)
        pod.check()
        used = 4 if shape[1] > 1 else 2
        assert (pod.torus.sent()[:, :used] > 20).all()


def test_faults_of_links_stop_all_cores() -> None:
    """Wrong descriptors are refused at once; a packet for another chip, or a dead wire, later."""
    with opened((2, 1)) as pod:
        first, second = pod.chips
        for hops in ((2, 0), (-2, 0), (0, 1), (0, 0)):
            with pytest.raises(DescriptorError, match="DMA_RANGE"):
                first.start_transfer(0, remote(0, 0, 1, *hops, 0))
        for fields in ({"reserved": 1}, {"source_space": DmaSpace.HBM},
                       {"destination_address": 1 << 49 | 1 << 32}):
            with pytest.raises(DescriptorError, match="DMA_DESCRIPTOR"):
                first.start_transfer(0, remote(0, 0, 1, 1, 0, 0, **fields))
        local = {"destination_space": DmaSpace.VMEM, "destination_address": 0}
        for fields in ({"remote_semaphore": 1}, {"signal_remote": 1}):
            with pytest.raises(DescriptorError, match="DMA_DESCRIPTOR"):
                first.start_transfer(0, remote(0, 0, 1, 1, 0, 0, **local, **fields))
        with pytest.raises(DescriptorError, match="DMA_RANGE"):
            first.start_transfer(0, remote(0, CONFIG.vmem_vectors - 1, 2, 1, 0, 0))
        pod.send(0, 1, 5, 9, 20, (1, 0, 1))
        pod.torus.run(_LIMIT)
        pod.check()

        second.write("POSITION", X=0)
        first.start_transfer(0, remote(0, 0, 3, 1, 0, 0, signal_remote=1))
        pod.torus.run(_LIMIT)
        assert [second.fault(core) for core in range(2)] == [Fault.LINK] * 2
        assert [first.fault(core) for core in range(2)] == [Fault.NONE] * 2
        second.write("POSITION", X=1)
        for core in range(2):
            second.reset_core(core)
        pod.check()

        # The wire dies inside a packet, and both ends of the link go down. Nothing is written.
        pod.torus.run(_LIMIT)
        before = pod.torus.sent()[0, Direction.X_PLUS]
        first.start_transfer(0, remote(0, 0, 1, 1, 0, 0))
        while pod.torus.sent()[0, Direction.X_PLUS] == before:
            pod.torus.run(1, until=Until.NEVER)
        pod.torus.set_faults({(0, Direction.X_PLUS): WireFaults(dead=(0, 1 << 40))})
        for core in range(2):
            for _ in range(3):  # more than the window of the link and the buffer of the core hold
                first.start_transfer(core, remote(0, 0, 90, 1, 0, 0))
        pod.torus.run(20_000)
        assert not any(first.status(core)["DMA_BUSY"] for core in range(2))
        for chip in pod.chips:
            assert chip.fault(0) is chip.fault(1) is Fault.LINK
        np.testing.assert_array_equal(second.read_vmem(0, 0, CONFIG.vmem_vectors), pod.memory[1, 0])
        first.start(0)
        pod.torus.run(200)
        assert first.fault(0) is Fault.LINK


def test_both_ends_of_a_cable_that_dies_inside_a_packet_have_a_fault() -> None:
    """Both chips stay busy until the second end, that with a partial packet, is down."""
    with opened((2, 1), latencies=np.full((2, 4), 30)) as pod:
        first, second = pod.chips
        first.start_transfer(0, remote(0, 0, 1, 1, 0, 0))
        while not pod.torus.sent()[0, Direction.X_PLUS]:
            pod.torus.run(1, until=Until.NEVER)
        for wire in ((0, Direction.X_PLUS), (1, Direction.X_MINUS)):
            pod.torus.set_faults({wire: WireFaults(dead=(0, 1 << 40))})
        pod.torus.run(_LIMIT)
        for chip in (first, second):
            assert chip.fault(0) is chip.fault(1) is Fault.LINK
        np.testing.assert_array_equal(second.read_vmem(0, 0, CONFIG.vmem_vectors), pod.memory[1, 0])


def test_reset_of_a_core_drops_its_transfers_only() -> None:
    with opened((2, 1), 5) as pod:
        first = pod.chips[0]
        pod.send(0, 1, 0, 100, 60, (1, 0, 1), signal_remote=1, remote_semaphore=3)
        for _ in range(5):
            first.start_transfer(0, remote(100, 0, 90, 1, 0, 0, signal_remote=1))
        first.reset_core(0)
        assert not first.status(0)["DMA_BUSY"]
        pod.torus.run(_LIMIT)
        got = pod.chips[1].read_vmem(0, 0, 90)
        arrived = (got == pod.memory[0, 0, 100:190]).all(axis=(1, 2))
        assert not arrived.all()
        # What has arrived are whole vectors, the first of the first transfer.
        count = int(arrived.sum())
        assert arrived[:count].all()
        pod.memory[1, 0, :count] = pod.memory[0, 0, 100:100 + count]
        pod.check()
        pod.send(0, 0, 100, 0, 90, (-1, 0, 0), signal_remote=1)
        pod.torus.run(_LIMIT)
        pod.check()


def test_packets_for_a_core_that_is_reset_hold_nothing_up() -> None:
    """Only whole vectors are lost; the other core gets everything that is sent to it."""
    with opened((2, 1), 6) as pod:
        second = pod.chips[1]
        before = pod.memory[1, 0].copy()
        for core in range(2):
            pod.send(0, core, 0, 0, 250, (1, 0, core), signal_remote=1, remote_semaphore=2)
        sent = pod.memory[1, 0].copy()
        for _ in range(12):
            second.reset_core(0)
            pod.torus.run(17, until=Until.NEVER)
        pod.torus.run(_LIMIT)
        found = second.read_vmem(0, 0, CONFIG.vmem_vectors)
        old, new = ((found == vectors).all(axis=(1, 2)) for vectors in (before, sent))
        assert (old | new).all()
        assert new[:250].any()
        assert old[:250].any()
        pod.memory[1, 0] = found
        second.reset_core(0)
        pod.semaphores[1, 0] = 0
        pod.send(0, 0, 5, 100, 90, (-1, 0, 0), signal_remote=1, remote_semaphore=7)
        pod.torus.run(_LIMIT)
        pod.check()


def test_wrong_packet_that_arrives_during_a_reset_is_a_fault(pair: Torus) -> None:
    first, second = pair.chips
    second.write("POSITION", X=0)
    found = set()
    for gap in range(0, 60, 2):
        for core in range(CONFIG.cores):
            second.reset_core(core)
        first.start_transfer(0, remote(0, 0, 1, 1, 0, 0))
        pair.torus.run(gap, until=Until.NEVER)
        second.write("CONTROL", core=0, RESET=1)
        later = second.fault(1) is Fault.NONE  # the packet arrives after the reset has begun
        pair.torus.run(_LIMIT)
        assert second.fault(1) is Fault.LINK
        assert not later or second.fault(0) is Fault.LINK, gap
        found.add(later)
    assert found == {False, True}
    second.write("POSITION", X=1)
    for core in range(CONFIG.cores):
        second.reset_core(core)


def test_place_that_cannot_be_is_refused(pair: Torus) -> None:
    chip = pair.chips[0]
    for register, fields in (
            ("TORUS", {"WIDTH": 33, "HEIGHT": 1}), ("TORUS", {"WIDTH": 64, "HEIGHT": 1}),
            ("TORUS", {"WIDTH": 2, "HEIGHT": 0}), ("TORUS", {"WIDTH": 2, "HEIGHT": 255}),
            ("POSITION", {"X": 2}), ("POSITION", {"Y": 1}), ("POSITION", {"X": 64})):
        with pytest.raises(RegisterError, match=register):
            chip.write(register, **fields)
    assert chip.read("TORUS") == 0x0102
    assert chip.read("POSITION") == 0
    chip.write("TORUS", WIDTH=32, HEIGHT=32)
    chip.write("POSITION", X=31, Y=31)
    for fields in ({"WIDTH": 31, "HEIGHT": 32}, {"WIDTH": 32, "HEIGHT": 31}):
        with pytest.raises(RegisterError, match="TORUS"):  # the position would be outside
            chip.write("TORUS", **fields)
    assert (chip.read("TORUS"), chip.read("POSITION")) == (0x2020, 0x1F1F)
    chip.write("POSITION", X=0, Y=0)
    chip.write("TORUS", WIDTH=2, HEIGHT=1)


def test_programs_reduce_over_rings() -> None:
    """All chips run one program for each core: remote transfers, and signals that free buffers."""
    vectors = 3
    with opened((2, 2), 4, memory=HbmOptions(latency=9, stalls=20_000)) as pod:
        wanted = pod.memory[:, :, :vectors].sum(axis=0, dtype=np.uint32)
        for core in range(CONFIG.cores):
            program = ring_program(CONFIG, pod.shape, vectors, core)
            for chip in pod.chips:
                chip.write_smem(core, 0, program.smem)
                chip.load_program(core, assemble(program.text, CONFIG).bundles)
        for chip in pod.chips:
            for core in range(CONFIG.cores):
                chip.start(core)
        pod.torus.run(_LIMIT)
        for chip in pod.chips:
            for core in range(CONFIG.cores):
                assert not chip.running(core)
                assert chip.fault(core) is Fault.NONE
                np.testing.assert_array_equal(chip.read_vmem(core, 0, vectors), wanted[core])
                assert not chip.read_words(core, Space.SEMAPHORE, 0, SEMAPHORES).any()


def test_links_whose_clock_has_stopped_wake_in_time(pair: Torus) -> None:
    """A transfer wakes both chips' links, and takes equally long after any time of rest."""
    for sender, to in ((0, (1, 0, 0)), (1, (-1, 0, 1))):
        found = set()
        for rest in (*range(0, REST_CYCLES, 9), REST_CYCLES, 10 * REST_CYCLES):
            pair.torus.run(rest, until=Until.NEVER)
            began = pair.torus.cycle
            assert rest < REST_CYCLES or [chip.model.peek("link_clk")
                                          for chip in pair.chips] == [0, 0]
            pair.send(sender, sender, 10, 20 + sender, 3, to, signal_remote=1)
            pair.torus.run(1, until=Until.NEVER)
            assert pair.chips[sender].model.peek("link_clk") == 1
            pair.torus.run(_LIMIT)
            found.add(pair.torus.rested - began)
        assert len(found) == 1
    pair.check()


def test_results_do_not_depend_on_quantum_and_threads() -> None:
    """Results and cycles stay the same, while wires damage frames and memories stall."""
    found = []
    for quantum, threads in ((1, 1), (2, 1), (None, 3)):
        with opened((3, 1), 8, latencies=[[14, 13, 20, 17], [30, 15, 13, 13], [13, 16, 40, 21]],
                    quantum=quantum, threads=threads,
                    memory=HbmOptions(latency=9, stalls=20_000)) as pod:
            pod.torus.set_faults({(chip, port): WireFaults(0.02, 0.02)
                                  for chip in range(3) for port in Direction})
            for chip in range(3):
                for core in range(CONFIG.cores):
                    pod.send(chip, core, 150 + core, 20 * chip, 17, (2, 0, 1 - core), signal=1,
                             signal_remote=1, remote_semaphore=3)
            cycles = [pod.torus.run(100, until=Until.NEVER), pod.torus.run(_LIMIT)]
            pod.check()
            cycles.append(pod.chips[0].cycle)
            found.append((cycles, pod.torus.sent().tolist(),
                          [chip.counters(1) for chip in pod.chips]))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("quantum", "threads", "message"), [
    (0, None, "quantum must be from 1 to 7, not 0"),
    (8, None, "quantum must be from 1 to 7, not 8"), (1, 0, "threads must be from 1 to 1024")])
def test_quantum_and_threads_that_cannot_be(quantum: int, threads: int | None,
                                            message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChipTorus(CONFIG, (2, 1), [[9, 9, 9, 7]], quantum=quantum, threads=threads)


@pytest.mark.parametrize(("word", "fault"), [
    (pack_remote(1, 0, 1), Fault.NONE), (pack_remote(-1, 0, 0), Fault.NONE),
    (pack_remote(2, 0, 1), Fault.DMA_RANGE), (pack_remote(0, 0, 1), Fault.DMA_RANGE),
    (pack_remote(0, -1, 0), Fault.DMA_RANGE), (pack_remote(-128, 0, 0), Fault.DMA_RANGE),
    (pack_remote(1, 0, 1) | 1 << 17, Fault.DMA_DESCRIPTOR)])
def test_remote_signal_of_a_program(word: int, fault: Fault, pair: Torus) -> None:
    """The signal adds to a semaphore, or its bundle has a fault and no effect."""
    text = f"""{{ s0.add s1, s0, {word} }}
               {{ misc.signal_remote sem9, s1, 77 | s0.add s2, s0, 5 }} {{ s1.halt }}"""
    first, second = pair.chips
    for chip in pair.chips:
        for core in range(CONFIG.cores):
            chip.reset_core(core)
    first.load_program(0, assemble(text, CONFIG).bundles)
    first.write_words(0, Space.SCALAR, 2, [0])
    first.start(0)
    pair.torus.run(_LIMIT)
    found = [second.read_words(core, Space.SEMAPHORE, 9, 1)[0] for core in range(2)]
    good = fault is Fault.NONE
    assert found == [77 * (good and word >> 16 == core) for core in range(2)]
    assert first.fault(0) is fault
    assert first.pc(0) == (2 if good else 1)
    assert first.read_words(0, Space.SCALAR, 2, 1)[0] == 5 * good


def test_random_remote_descriptors_have_the_faults_of_the_golden_model(pair: Torus) -> None:
    rng = np.random.default_rng(6)
    chip, last = pair.chips[1], CONFIG.vmem_vectors - 1
    found = set()
    for _ in range(150):
        odd = rng.random(8) < 0.12
        runs = [int(rng.integers(3)) for _ in range(2)]
        strides = [int(rng.choice([1, -1, 20])) if run or odd[0] else 0 for run in runs]
        hops = [int(rng.choice([-128, -2, 2, 127])) if odd[1] else int(rng.choice([-1, 1])),
                int(rng.choice([-1, 1])) if odd[2] else 0]
        to = pack_remote(hops[0], hops[1], int(rng.integers(2)))
        to |= bool(odd[3]) << int(rng.integers(17, 32))
        words = pack_descriptor({
            "source_space": int(rng.choice(6)) if odd[4] else DmaSpace.VMEM,
            "destination_space": DmaSpace.REMOTE_VMEM, "reserved": int(odd[5] and odd[0]),
            "rows": 3 if odd[6] else 2 * int(rng.integers(1, 20)),
            "source_address": int(rng.choice([last, 1 << 32])) if odd[7] else 90,
            "source_run": runs[0], "source_stride": strides[0],
            "destination_address": int(rng.choice([40, 100, last - 5, last])) | to << 32,
            "destination_run": runs[1], "destination_stride": strides[1],
            "signal_remote": 1, "remote_semaphore": int(rng.integers(16))})
        fault = Descriptor.unpack(words).check(CONFIG, CONFIG.cores, pair.shape)
        found.add(fault)
        if fault is Fault.NONE:
            chip.start_transfer(0, words)
        else:
            with pytest.raises(DescriptorError, match=fault.name):
                chip.start_transfer(0, words)
    assert found == {Fault.NONE, Fault.DMA_DESCRIPTOR, Fault.DMA_RANGE, Fault.DMA_ALIGNMENT}
    pair.torus.run(_LIMIT)


@pytest.mark.parametrize(("latencies", "error", "message"), [
    (0, ValueError, "latencies must be from 1 to 504, not 0"),
    ([-1] * 4, ValueError, "latencies must be from 1 to 504, not"),
    (505, ValueError, "latencies must be from 1 to 504, not 505"),
    (1.5, TypeError, r"latencies must be integers, not 1\.5")])
def test_wires_that_cannot_be(latencies: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ChipTorus(CONFIG, (2, 1), latencies)


def test_faults_of_wires_that_do_not_exist(pair: Torus) -> None:
    for wire in ((2, Direction.X_PLUS), (-1, Direction.X_PLUS), (0, 4)):
        with pytest.raises(ValueError, match=r"chip must be from 0 to 1|4 is not a valid"):
            pair.torus.set_faults({wire: WireFaults(lose=1)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"damage must be from 0 to 1, not -0\.1"):
        WireFaults(damage=-0.1)
    with opened((1, 1)) as single:
        pass
    for call in (single.torus.sent, lambda: single.torus.set_faults({})):
        with pytest.raises(RuntimeError, match="torus is closed"):
            call()


@pytest.fixture(scope="module")
def pair() -> Iterator[Torus]:
    with opened((2, 1), 3) as torus:
        yield torus
