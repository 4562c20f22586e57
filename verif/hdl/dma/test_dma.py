"""The DMA engine: transfers, checks and signals, whatever the memories' timing."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import pytest

from golden.dma import Descriptor, Side
from hdl.config import Config
from hdl.core.interface import descriptor_words, write_words
from hdl.dma.descriptor import DescriptorFrontEnd, SideCheck
from hdl.dma.engine import DmaEngine
from hdl.dma.format import DMA_DESTINATIONS, DMA_MAX_ROWS, DMA_SOURCES, DMA_SPACES, DmaSpace
from hdl.dma.interface import QUEUE_DEPTH, SHORT_BITS, CheckTimes
from hdl.isa import Fault
from hdl.lint import LINT_WAIVERS
from hdl.tiles import VerilogLibrary
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model
from verif.hdl.dma.engine import CONFIG, AgentTiming, Job, Transfers, VerilatedDma, open_engine

TIMINGS = {
    "exact": AgentTiming(),
    "slow": AgentTiming(pace=0.3, latency=40),
    "moody": AgentTiming(pace=0.7, latency=12),
    "far": AgentTiming(latency=60),
}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with open_engine() as model:
        yield model


def start_apart(bench: VerilatedDma, descriptor: Descriptor, host: bool,
                refused: bool = False) -> Fault:
    """Starts a transfer when it no longer overlaps any transfer under way."""
    job = Job.of(descriptor, bench.config)
    if any(job.meets(other) for other in bench.jobs):
        bench.finish()
        bench.check()
    return bench.start(descriptor, host=host, refused=refused)


# --- transfers

def test_every_pair_of_spaces(model: Model) -> None:
    rng = np.random.default_rng(1)
    transfers = Transfers(rng)
    bench = VerilatedDma(model, timing=TIMINGS["moody"])
    pairs = list(transfers.pairs())
    assert len(pairs) == 30
    for source, destination in pairs:
        for _ in range(3):
            descriptor = replace(transfers.good(source, destination), signal=1)
            bench.start(descriptor)
            bench.finish()
            bench.check()
    assert bench.signalled >= 3 * len(pairs)
    assert bench.errors == 0


@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("seed", range(4))
def test_random_transfers_several_at_a_time(model: Model, timing: str, seed: int) -> None:
    rng = np.random.default_rng([2, seed])
    transfers = Transfers(rng)
    bench = VerilatedDma(model, timing=TIMINGS[timing], seed=seed)
    most = 0
    for _ in range(60):
        assert start_apart(bench, transfers.good(), bool(rng.random() < 0.2)) == Fault.NONE
        most = max(most, len(bench.jobs))
        for _ in range(int(rng.integers(40)) if rng.random() < 0.3 else 0):
            bench.cycle()
    bench.finish()
    bench.check()
    assert bench.signalled > 30
    assert most >= QUEUE_DEPTH - 1
    assert bench.errors == 0


def test_bursts_are_as_long_as_a_run_and_the_limit_allow(model: Model) -> None:
    bench = VerilatedDma(model)
    bench.start(Descriptor(DmaSpace.HBM, DmaSpace.HBM, 40, source_run=16, source_stride=17 * 16,
                           destination_address=100 * 16, destination_run=25,
                           destination_stride=30 * 16))
    bench.finish()
    bench.check()
    assert [burst[1:] for burst in bench.hbm.bursts if burst[0] == "read"] == [
        (0, 16), (17, 16), (34, 8)]
    assert [burst[1:] for burst in bench.hbm.bursts if burst[0] == "write"] == [
        (100, 25), (130, 15)]


def test_as_many_transfers_as_the_queue_has_can_be_under_way(model: Model) -> None:
    bench = VerilatedDma(model, timing=AgentTiming(latency=500))
    for number in range(QUEUE_DEPTH):
        bench.start(Descriptor(DmaSpace.HBM, DmaSpace.VMEM, 2, destination_address=number,
                               semaphore=number, signal=1))
    before = model.cycle
    bench.start(Descriptor(DmaSpace.HBM, DmaSpace.VMEM, 2, destination_address=9, signal=1))
    assert before > 4 * CheckTimes.of(CONFIG).total()
    assert bench.signalled >= 1  # it had to wait for the first
    assert model.cycle - before > 300
    bench.finish()
    bench.check()


def test_a_transfer_that_the_program_gives_up_is_forgotten(model: Model) -> None:
    rng = np.random.default_rng(3)
    transfers = Transfers(rng)
    bench = VerilatedDma(model, seed=3)
    for patience in range(1, 30):
        bench.pins.poke("dma__address", 5)
        bench._address, bench._words = 5, transfers.good().pack()
        bench.pins.poke("dma__valid", 1)
        for _ in range(patience):
            bench.cycle()
        bench.pins.poke("dma__valid", 0)
        bench.cycle()
        bench.finish()
        bench.check()
        assert start_apart(bench, transfers.good(), host=bool(patience % 2)) == Fault.NONE
    bench.finish()
    bench.check()


def test_the_host_and_the_program_take_turns(model: Model) -> None:
    """While the host's descriptor is checked, the program's waits, and vice versa."""
    bench = VerilatedDma(model)
    own = Descriptor(DmaSpace.HBM, DmaSpace.VMEM, 2, semaphore=1, signal=1)
    hosts = Descriptor(DmaSpace.SMEM, DmaSpace.HBM, 2, semaphore=2, signal=1)
    for offset in range(-20, 21):
        taken: list[str] = []
        bench._address, bench._words = 7, own.pack()
        bench.pins.poke("dma__address", 7)
        bench.pins.poke("host_descriptor", sum(
            word << 32 * number for number, word in enumerate(hosts.pack())))

        def look(taken: list[str] = taken) -> None:
            if bench.pins.peek("dma__ready") and "program" not in taken:
                assert bench.pins.peek("dma__fault") == Fault.NONE
                taken.append("program")
                bench.pins.poke("dma__taken", 1)
                bench._expect(own)
            elif bench.pins.peek("host_ready") and "host" not in taken:
                assert bench.pins.peek("host_fault") == Fault.NONE
                taken.append("host")
                bench._expect(hosts)

        for cycle in range(80):
            bench.pins.poke("dma__valid", int(cycle >= max(0, offset) and "program" not in taken))
            bench.pins.poke("host_valid", int(cycle >= max(0, -offset) and "host" not in taken))
            bench.cycle(look)
            bench.pins.poke("dma__taken", 0)
        assert sorted(taken) == ["host", "program"]
        bench.finish()
        bench.check()


# --- throughput

def rows_a_cycle(times: list[int]) -> float:
    return (len(times) - 1) / (times[-1] - times[0])


@pytest.fixture(scope="module")
def wide() -> Iterator[tuple[Config, Model]]:
    config = Config.preset("small")
    with open_engine(config) as model:
        yield config, model


@pytest.mark.parametrize("latency", [0, 100])
def test_rows_go_both_ways_at_one_a_cycle(wide: tuple[Config, Model], latency: int) -> None:
    config, model = wide
    for source, destination, name in ((DmaSpace.HBM, DmaSpace.VMEM, "read_times"),
                                      (DmaSpace.VMEM, DmaSpace.HBM, "write_times"),
                                      (DmaSpace.OTHER_VMEM, DmaSpace.HBM, "write_times"),
                                      (DmaSpace.HBM, DmaSpace.OTHER_VMEM, "read_times")):
        bench = VerilatedDma(model, config, AgentTiming(latency=latency))
        # Transfers in a row, some with short runs.
        for number in range(3):
            bench.start(Descriptor(
                source, destination, 512, signal=1,
                **({} if destination == DmaSpace.HBM else {"destination_address": 128 * number}),
                **({"source_run": 64, "source_stride": 80 * config.row_bytes}
                   if number == 1 and source == DmaSpace.HBM else {}),
                **({"destination_run": 64, "destination_stride": 80 * config.row_bytes,
                    "destination_address": 4096 * config.row_bytes}
                   if number == 1 and destination == DmaSpace.HBM else {"destination_address":
                   512 * number * config.row_bytes} if destination == DmaSpace.HBM else {})))
        bench.finish()
        assert bench.signalled == 3
        times = getattr(bench.hbm, name)
        assert len(times) == 3 * 512
        assert rows_a_cycle(times) >= 0.99, (source, destination)


def test_single_rows_and_short_transfers_lose_no_cycle(wide: tuple[Config, Model]) -> None:
    config, model = wide
    bench = VerilatedDma(model, config, AgentTiming(latency=30))
    for number in range(3):
        bench.start(Descriptor(
            DmaSpace.HBM, DmaSpace.HBM, 300, source_run=1, source_stride=3 * config.row_bytes,
            destination_address=(2000 + 1000 * number) * config.row_bytes, destination_run=1,
            destination_stride=2 * config.row_bytes, signal=1))
    bench.finish()
    bench.check()
    assert rows_a_cycle(bench.hbm.write_times) >= 0.99


def test_words_are_read_one_by_one_and_written_together(wide: tuple[Config, Model]) -> None:
    config, model = wide
    rows, together = 64, write_words(config)
    words = config.lanes * rows
    assert together == 8
    for source, destination, cycles in (
            (DmaSpace.SMEM, DmaSpace.VMEM, words),
            (DmaSpace.VMEM, DmaSpace.SMEM, words // together),
            (DmaSpace.HBM, DmaSpace.SMEM, words // together),
            (DmaSpace.HBM, DmaSpace.IMEM, words // together)):
        bench = VerilatedDma(model, config)
        begin = model.cycle
        bench.start(Descriptor(source, destination, rows, signal=1))
        bench.finish()
        bench.check()
        read, written = source == DmaSpace.SMEM, destination != DmaSpace.VMEM
        assert (bench.words.read, bench.words.written) == (read * words, written * words)
        assert cycles <= model.cycle - begin < cycles + 50, (source, destination)


def test_a_row_of_several_bundles_is_written_a_bundle_a_cycle() -> None:
    """Rows of `v2` hold eight bundles; here they hold two."""
    config = Config(array=32, sublanes=2, vmem_bytes=4 << 10, smem_words=999, imem_bundles=256,
                    hbm_bytes=1 << 16, hbm_channels=1)
    assert write_words(config) == 16
    with open_engine(config) as model:
        bench = VerilatedDma(model, config, AgentTiming(pace=0.7, latency=5))
        for address in (0, 1, 15, 17, 999 - 6 * 32):  # scalar memory, at any address
            bench.start(Descriptor(DmaSpace.HBM, DmaSpace.SMEM, 6, destination_address=address,
                                   signal=1))
            bench.finish()
            bench.check()
        bench = VerilatedDma(model, config)
        begin = model.cycle
        bench.start(Descriptor(DmaSpace.HBM, DmaSpace.IMEM, 100, destination_address=16 * 5,
                               signal=1))
        bench.finish()
        bench.check()
        assert bench.words.written == 200 * 16
        assert 200 <= model.cycle - begin < 200 + 50


# --- checks

def open_front_end(config: Config) -> Model:
    sources = cached_json("dma_front_end", asdict(config), lambda: VerilogLibrary().write(
        "dma_front_end", lambda: DescriptorFrontEnd(config)))
    return Model(build_model("dma_front_end", sources, waivers=LINT_WAIVERS, optimise=None))


def random_word(rng: np.random.Generator) -> int:
    if rng.random() < 0.3:
        return int(rng.choice([0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]))
    return int(rng.integers(1 << 32)) >> int(rng.integers(32))


def near_the_edge(rng: np.random.Generator, config: Config) -> Descriptor:
    """A random descriptor with a side that ends near the end of its space."""
    while True:
        spaces = {name: DmaSpace(int(rng.choice(sorted(
            space for space in known if DMA_SPACES[space].exists(config)))))
            for name, known in (("source", DMA_SOURCES), ("destination", DMA_DESTINATIONS))}
        rows = min(DMA_MAX_ROWS, max(1, random_word(rng) >> 8))
        rows += -rows % config.sublanes
        values: dict[str, int] = {}
        for name, space in spaces.items():
            side = Side(space, 0, 0, 0)
            unit, size = side.unit(config), side.size(config)
            count = max(1, side.blocks(rows, config))
            run = stride = 0
            if side.info.runs and rng.random() < 0.8:
                run = int(rng.integers(1, min(count, 1 << int(rng.integers(1, 25))) + 2))
                runs = -(-count // run)
                # About the largest distance between runs.
                most = max(2, 2 * (size // unit) // runs)
                stride = int(rng.integers(-most, most + 1)) * unit
                if rng.random() < 0.1:
                    stride = random_word(rng) // unit * unit
                stride = max(-(1 << 31), min((1 << 31) - unit, stride))
            runs = -(-count // (run or count))
            length = run or count
            ends = [0, (runs - 1) * stride]
            tops = [*(start + min(length, count) * unit for start in (0, (runs - 2) * stride)
                      if start >= 0 or stride < 0),
                    (runs - 1) * stride + (count - (runs - 1) * length) * unit]
            if runs == 1:
                ends, tops = [0], [count * unit]
            grain = unit if space == DmaSpace.HBM else 16 if space == DmaSpace.IMEM else 1
            target = int(rng.choice([-min(ends), size - max(tops)]))
            address = target // grain * grain + int(rng.integers(-1, 2)) * grain
            values |= {f"{name}_address": min(max(0, address), (1 << 64) - 1),
                       f"{name}_run": run, f"{name}_stride": stride}
        try:
            return Descriptor(spaces["source"], spaces["destination"], rows, **values)
        except ValueError:
            continue


def random_fields(rng: np.random.Generator) -> Descriptor:
    """A random descriptor with some fields that are often legal."""
    def maybe(share: float, value: int) -> int:
        return value if rng.random() < share else 0

    return Descriptor.unpack([
        int(rng.integers(8)) | int(rng.integers(8)) << 4 | int(rng.integers(1 << 14)) & 0x3F00
        | maybe(0.1, 1 << int(rng.integers(32))),
        random_word(rng) >> maybe(0.8, int(rng.integers(8, 32))),
        random_word(rng) & (-1 if rng.random() < 0.3 else 0xFFFF_FE00),
        maybe(0.1, random_word(rng)), maybe(0.4, random_word(rng)), maybe(0.4, random_word(rng)),
        random_word(rng) & (-1 if rng.random() < 0.3 else 0xFFFF_FE00),
        maybe(0.1, random_word(rng)), maybe(0.4, random_word(rng)), maybe(0.4, random_word(rng))])


def spoiled(rng: np.random.Generator, descriptor: Descriptor) -> Descriptor:
    """Returns the descriptor after a small change to one of its fields."""
    name = str(rng.choice(["rows", "source_address", "source_stride", "destination_address",
                           "destination_stride"]))
    low = -(1 << 31) if "stride" in name else 0
    changed = getattr(descriptor, name) + int(rng.choice([-1, 1])) * (1 << int(rng.integers(6)))
    return replace(descriptor, **{name: max(low, min(low + (1 << 32) - 1, changed))})


class Checks:
    """The engine's front end alone, which checks descriptors of the host."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.model = open_front_end(config)
        self.model.reset()
        self.model.poke("room", 1)

    def check(self, descriptor: Descriptor) -> tuple[Fault, int]:
        """Returns a descriptor's fault, and the number of cycles that its check takes."""
        model = self.model
        model.poke("host_descriptor", sum(
            word << 32 * number for number, word in enumerate(descriptor.pack())))
        model.poke("host_valid", 1)
        cycles = 0
        while not model.peek("host_ready"):
            model.tick()
            cycles += 1
            assert cycles < 60, f"no answer: {descriptor}"
        fault = Fault(model.peek("host_fault"))
        assert model.peek("push") == (fault == Fault.NONE)
        model.tick()
        model.poke("host_valid", 0)
        model.tick()
        return fault, cycles


CONFIGS = {
    "small sizes": CONFIG,
    "one core": replace(CONFIG, cores=1),
    "v2": Config.preset("v2"),
    "tiny": Config.preset("tiny"),
    "large memory": Config(array=8, sublanes=1, hbm_bytes=1 << 38, hbm_channels=1,
                           vmem_bytes=65536 * 32),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_fault_of_a_descriptor_is_found_and_no_other(name: str) -> None:
    config = CONFIGS[name]
    checks = Checks(config)
    rng = np.random.default_rng([4, len(name)])
    transfers = Transfers(rng, config)
    found = dict.fromkeys((Fault.NONE, Fault.DMA_DESCRIPTOR, Fault.DMA_RANGE,
                           Fault.DMA_ALIGNMENT), 0)
    for case in range(1500):
        descriptor = (random_fields(rng) if case % 3 == 0 else near_the_edge(rng, config)
                      if case % 3 == 1 or config.vmem_vectors > 100 else transfers.descriptor())
        if rng.random() < 0.2:
            descriptor = spoiled(rng, descriptor)
        wanted = descriptor.check(config, config.cores)
        fault, cycles = checks.check(descriptor)
        assert fault == wanted, (case, descriptor)
        times = CheckTimes.of(config)
        assert cycles in {times.total(blocks) for blocks in (0, 1, 1 << 24)}
        found[fault] += 1
    assert min(found.values()) > 25, found


def test_each_reserved_bit_and_each_limit() -> None:
    checks = Checks(CONFIG)
    good = Descriptor(DmaSpace.HBM, DmaSpace.VMEM, 2)
    assert checks.check(good)[0] == Fault.NONE
    words = list(good.pack())
    for bit in range(14, 32):
        changed = [words[0] | 1 << bit, *words[1:]]
        assert checks.check(Descriptor.unpack(changed))[0] == Fault.DMA_DESCRIPTOR
    for rows, fault in ((0, Fault.DMA_DESCRIPTOR), (1 << 24, Fault.DMA_DESCRIPTOR),
                        (DMA_MAX_ROWS - 1, Fault.DMA_RANGE), (1, Fault.DMA_ALIGNMENT),
                        ((1 << 32) - 2, Fault.DMA_DESCRIPTOR), (42, Fault.NONE),
                        (44, Fault.DMA_RANGE)):
        assert checks.check(replace(good, rows=rows))[0] == fault, rows
    for changes, fault in (
            ({"source_space": 7}, Fault.DMA_DESCRIPTOR),
            ({"source_space": DmaSpace.IMEM}, Fault.DMA_DESCRIPTOR),
            ({"destination_space": DmaSpace.VREG}, Fault.DMA_DESCRIPTOR),
            ({"destination_space": 15}, Fault.DMA_DESCRIPTOR),
            ({"destination_address": 1 << 32}, Fault.DMA_DESCRIPTOR),
            ({"source_address": 1 << 63}, Fault.DMA_RANGE),
            ({"source_address": (1 << 64) - 16}, Fault.DMA_RANGE),
            ({"source_address": (1 << 64) - 15}, Fault.DMA_ALIGNMENT),
            ({"source_stride": 16}, Fault.DMA_DESCRIPTOR),
            ({"source_stride": 8, "source_run": 1}, Fault.DMA_ALIGNMENT),
            ({"source_stride": -16, "source_run": 1}, Fault.DMA_RANGE),
            ({"source_stride": -16, "source_run": 2}, Fault.NONE),
            ({"source_stride": -(1 << 31), "source_run": 2}, Fault.NONE),
            ({"source_stride": -(1 << 31), "source_run": 1}, Fault.DMA_RANGE),
            ({"source_run": (1 << 32) - 1}, Fault.NONE),
            ({"source_space": DmaSpace.SMEM, "source_run": 1}, Fault.DMA_DESCRIPTOR),
            ({"source_space": DmaSpace.MASK}, Fault.NONE),
            ({"source_space": DmaSpace.MASK, "source_address": 1}, Fault.DMA_RANGE),
            ({"source_space": DmaSpace.MASK, "rows": 4}, Fault.DMA_RANGE),
            ({"source_space": DmaSpace.MASK, "rows": 4, "source_run": 1}, Fault.NONE)):
        assert checks.check(replace(good, **changes))[0] == fault, changes


@pytest.mark.parametrize(("name", "together", "plain", "short", "long"), [
    ("small sizes", 1, 13, 22, 22), ("v2", 10, 4, 11, 17)])
def test_how_long_a_check_takes(name: str, together: int, plain: int, short: int,
                                long: int) -> None:
    config = CONFIGS[name]
    assert descriptor_words(config) == together
    checks = Checks(config)
    times = CheckTimes.of(config)
    limit = 1 << SHORT_BITS

    def cycles(rows: int, **changes: int) -> int:
        return checks.check(Descriptor(DmaSpace.HBM, DmaSpace.VMEM, rows, **changes))[1]

    rows = config.sublanes
    assert cycles(rows) == times.total() == plain
    for run in ({"source_run": 1}, {"destination_run": 1}):
        assert cycles(rows, **run) == times.total(limit) == short
    assert cycles(limit, source_run=5) == short
    assert cycles(limit + rows, source_run=5) == times.total(limit + 1) == long
    # A vector is several rows.
    assert cycles(limit * rows, destination_run=5) == short
    assert cycles((limit + 1) * rows, destination_run=5) == long


def test_a_fault_is_told_to_the_program_too(model: Model) -> None:
    bench = VerilatedDma(model, timing=TIMINGS["moody"])
    rng = np.random.default_rng(5)
    found = set()
    for _ in range(60):
        descriptor = random_fields(rng)
        wanted = descriptor.check(CONFIG, CONFIG.cores)
        if wanted == Fault.NONE:
            continue
        assert bench.start(descriptor) == wanted
        found.add(wanted)
        assert not bench.pins.peek("busy")
    assert len(found) == 3
    bench.check()


def test_the_engine_is_busy_while_it_checks_a_descriptor_of_the_host(model: Model) -> None:
    """From the cycle after the request to the answer, also if there will be no transfer."""
    bench = VerilatedDma(model)
    descriptor = Descriptor(DmaSpace.HBM, DmaSpace.VMEM, CONFIG.hbm_rows + 2)
    assert descriptor.check(CONFIG, CONFIG.cores) != Fault.NONE
    bench.pins.poke("host_descriptor", sum(
        word << 32 * number for number, word in enumerate(descriptor.pack())))
    bench.pins.poke("host_valid", 1)
    seen: list[tuple[int, int]] = []
    while not (seen and seen[-1][1]) and len(seen) < 100:
        bench.cycle(lambda: seen.append((bench.pins.peek("busy"), bench.pins.peek("host_ready"))))
    bench.pins.poke("host_valid", 0)
    assert len(seen) > 4
    assert seen == [(0, 0), *[(1, 0)] * (len(seen) - 2), (1, 1)]
    bench.cycle()
    assert not bench.pins.peek("busy")
    bench.check()


# --- memory that refuses

@pytest.mark.parametrize("seed", range(6))
def test_a_transfer_that_memory_refuses_does_not_signal_and_others_do(model: Model,
                                                                      seed: int) -> None:
    rng = np.random.default_rng([6, seed])
    transfers = Transfers(rng)
    bench = VerilatedDma(model, timing=TIMINGS[("exact", "moody", "slow")[seed % 3]], seed=seed)
    bench.hbm.bad = {int(row) for row in rng.integers(CONFIG.hbm_rows, size=6)}
    refused = kept = 0
    for _ in range(60):
        spaces = (DmaSpace.HBM, None) if rng.random() < 0.4 else (None, DmaSpace.HBM)
        descriptor = transfers.good(*spaces)
        job = Job.of(descriptor, CONFIG)
        touched = {address // CONFIG.row_bytes for space, addresses in (job.reads, job.writes)
                   if space == DmaSpace.HBM for address in addresses}
        bad = bool(touched & bench.hbm.bad)
        assert start_apart(bench, descriptor, host=False, refused=bad) == Fault.NONE
        refused += bad
        kept += not bad
    bench.finish()
    bench.check()
    assert refused > 3
    assert kept > 20
    assert bench.signalled > 20
    assert refused <= bench.errors


def test_a_row_with_an_error_is_not_written_to_the_memory(model: Model) -> None:
    bench = VerilatedDma(model)
    bench.hbm.bad = {3}
    bench.start(Descriptor(DmaSpace.HBM, DmaSpace.HBM, 8, destination_address=100 * 16))
    bench.finish()
    assert bench.hbm.written == 7
    assert bench.errors == 1


# --- aborts

@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("seed", range(3))
def test_after_an_abort_at_any_time_all_is_at_rest_and_works(model: Model, timing: str,
                                                             seed: int) -> None:
    rng = np.random.default_rng([7, seed])
    transfers = Transfers(rng)
    bench = VerilatedDma(model, timing=TIMINGS[timing], seed=seed)
    midst = 0
    for _ in range(25):
        for _ in range(int(rng.integers(1, 6))):
            start_apart(bench, transfers.good(), host=bool(rng.integers(2)))
        for _ in range(int(rng.integers(40))):
            bench.cycle()
        midst += bench.pins.peek("busy")
        written = bench.hbm.written
        bench.pins.poke("abort", 1)
        for _ in range(int(rng.integers(1, 4))):
            bench.cycle()
        bench.pins.poke("abort", int(rng.integers(2)))
        pending = {name: len(queue) for name, queue in bench.awaited.items()}
        bench.finish()
        bench.pins.poke("abort", 0)
        assert bench.hbm.written <= written + 1
        # No signal except one that was already under way.
        assert all(len(queue) >= pending[name] - 1 for name, queue in bench.awaited.items())
        bench.forget()
        for _ in range(3):
            start_apart(bench, transfers.good(), host=False)
        bench.finish()
        bench.check()
    assert midst > 3


def test_while_an_abort_lasts_no_transfer_starts(model: Model) -> None:
    bench = VerilatedDma(model)
    bench.pins.poke("abort", 1)
    with pytest.raises(AssertionError, match="not taken"):
        bench.start(Descriptor(DmaSpace.HBM, DmaSpace.VMEM, 2), patience=100)
    assert not bench.hbm.bursts
    bench.pins.poke("abort", 0)
    bench.cycle()
    assert bench.start(Descriptor(DmaSpace.HBM, DmaSpace.VMEM, 2)) == Fault.NONE
    bench.finish()
    bench.check()


def test_a_transfer_whose_start_meets_an_abort_starts_after_it(model: Model) -> None:
    """The abort would drop such a transfer, although the host is told that it has started."""
    descriptor = Descriptor(DmaSpace.HBM, DmaSpace.VMEM, 2, semaphore=1, signal=1)

    def started(abort: range) -> int:
        """The cycle in which the host's transfer starts; ``abort`` is set in the cycles given."""
        bench = VerilatedDma(model)
        bench.pins.poke("host_descriptor", sum(
            word << 32 * number for number, word in enumerate(descriptor.pack())))
        bench.pins.poke("host_valid", 1)
        ready: list[bool] = []
        for cycle in range(60):
            bench.pins.poke("abort", int(cycle in abort))
            bench.cycle(lambda: ready.append(bool(bench.pins.peek("host_ready"))))
            if ready[-1]:
                break
        assert ready[-1], "the transfer does not start"
        bench.pins.poke("abort", 0)
        bench.pins.poke("host_valid", 0)
        bench._expect(descriptor)
        bench.finish()
        bench.check()
        return len(ready) - 1

    first = started(range(0))
    assert [started(range(first, first + cycles)) for cycles in (1, 2, 5)] == [
        first + 1, first + 2, first + 5]


def test_a_reset_in_the_midst(model: Model) -> None:
    rng = np.random.default_rng(8)
    transfers = Transfers(rng)
    for seed in range(10):
        bench = VerilatedDma(model, timing=TIMINGS["moody"], seed=seed)
        for _ in range(3):
            start_apart(bench, transfers.good(), host=False)
        # The next bench begins with a reset, and all memories with it.
    bench = VerilatedDma(model)
    assert not bench.pins.peek("busy")
    bench.start(transfers.good())
    bench.finish()
    bench.check()


def test_arguments() -> None:
    for make in (DmaEngine, DescriptorFrontEnd, lambda config: SideCheck(config, DMA_SOURCES)):
        with pytest.raises(TypeError, match="config must be a Config, not 'v2'"):
            make("v2")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="array must be a power of two, not 6"):
            make(replace(CONFIG, array=6, sublanes=2, vmem_bytes=48 * 5))
