"""The DMA engine between models of its memories, which respond at random times."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from golden.dma import Descriptor, Side, copy
from hdl.config import Config
from hdl.core.interface import Space, descriptor_words, write_words
from hdl.dma.engine import DmaEngine
from hdl.dma.format import (
    DESCRIPTOR_WORDS,
    DMA_DESTINATIONS,
    DMA_SOURCES,
    DMA_SPACES,
    DmaSpace,
)
from hdl.isa import BUNDLE_PITCH, BUNDLE_WORDS, VECTOR_REGISTERS, Fault
from hdl.lint import LINT_WAIVERS
from hdl.tiles import VerilogLibrary
from hdl.vpu.interface import HostSpace
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

CONFIG = Config(array=4, sublanes=2, vmem_bytes=21 * 32, smem_words=61, imem_bundles=13,
                hbm_bytes=4096, hbm_channels=1)
"""A small configuration; where possible, sizes are not powers of two."""
DESTINATIONS = sorted(space for space in DMA_DESTINATIONS if not DMA_SPACES[space].links)
"""Spaces to which a transfer within a chip can write."""
LIMIT = 20_000
"""Limit of every wait, in cycles."""


def open_engine(config: Config = CONFIG) -> Model:
    sources = cached_json("dma_engine", asdict(config),
                          lambda: VerilogLibrary().write("dma_engine", lambda: DmaEngine(config)))
    return Model(build_model("dma_engine", sources, waivers=LINT_WAIVERS, optimise=None))


@dataclass(frozen=True)
class AgentTiming:
    """Timing of the memories.

    Attributes
    ----------
    pace : float
        Share of cycles in which a memory makes progress.
    latency : int
        Largest latency, in cycles.
    bursts : int
        HBM accepts a read while fewer than 64 * ``bursts`` rows are queued.
    """

    pace: float = 1.0
    latency: int = 0
    bursts: int = 16


Memories = dict[DmaSpace, np.ndarray]


def random_memories(config: Config, rng: np.random.Generator) -> Memories:
    shapes: dict[DmaSpace, tuple[int, ...]] = {
        DmaSpace.HBM: (config.hbm_rows, config.lanes),
        DmaSpace.SMEM: (config.smem_words,),
        DmaSpace.IMEM: (config.imem_bundles * BUNDLE_PITCH,),
        **{space: (words, config.sublanes, config.lanes) for space, words in (
            (DmaSpace.VMEM, config.vmem_vectors), (DmaSpace.OTHER_VMEM, config.vmem_vectors),
            (DmaSpace.VREG, VECTOR_REGISTERS), (DmaSpace.MASK, 1))},
    }
    return {space: rng.integers(1 << 32, size=shape, dtype=np.uint32)
            for space, shape in shapes.items()}


def places(side: Side, rows: int, config: Config) -> set[int]:
    """Addresses of all blocks of a transfer's side or, in smem and imem, of all its words."""
    count, unit = side.blocks(rows, config), side.unit(config)
    length = side.run or count
    found = {side.address + block % length * unit + block // length * side.stride
             for block in range(count)}
    if side.info.runs:
        return found
    return {address + word for address in found for word in range(config.lanes)}


def packed(row: np.ndarray) -> int:
    return int.from_bytes(np.ascontiguousarray(row, np.uint32).tobytes(), "little")


def unpacked(value: int, lanes: int) -> np.ndarray:
    return np.frombuffer(value.to_bytes(4 * lanes, "little"), np.uint32)


class Pins:
    """The model's ports; an input is set only when its value changes."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._poked: dict[str, int] = {}
        model.reset()
        for name, port in model.ports.items():
            if port.is_input and name not in ("clk", "rst"):
                self.poke(name, 0)

    def poke(self, name: str, value: int) -> None:
        if self._poked.get(name) != value:
            self.model.poke(name, value)
            self._poked[name] = value

    def peek(self, name: str) -> int:
        return self.model.peek(name)


class Sink:
    """Receives payloads from a stream of the engine, and checks the stream's rules."""

    def __init__(self, pins: Pins, name: str) -> None:
        self._pins = pins
        self.name = name
        self.ready = False
        self._offered: int | None = None

    def drive(self, ready: bool) -> None:
        self.ready = ready
        self._pins.poke(f"{self.name}__ready", int(ready))

    def sample(self) -> int | None:
        """Returns the payload that is transferred in this cycle; None if there is none."""
        valid = self._pins.peek(f"{self.name}__valid")
        if self._offered is not None:
            assert valid, f"{self.name} was taken back"
        if not valid:
            return None
        payload = self._pins.peek(f"{self.name}__payload")
        if self._offered is not None:
            assert payload == self._offered, f"{self.name} was changed"
        self._offered = None if self.ready else payload
        return payload if self.ready else None


class PayloadSource:
    """Offers the payloads of a queue to the engine."""

    def __init__(self, pins: Pins, name: str) -> None:
        self._pins = pins
        self._name = name
        self.valid = False

    def drive(self, payload: int | None) -> None:
        """Offers ``payload``; once offered, it must stay until it is taken."""
        self.valid = payload is not None
        self._pins.poke(f"{self._name}__valid", int(self.valid))
        if payload is not None:
            self._pins.poke(f"{self._name}__payload", payload)

    def sample(self) -> bool:
        return self.valid and bool(self._pins.peek(f"{self._name}__ready"))


@dataclass
class VectorUnitAgent:
    """The row ports of a core's vector unit."""

    pins: Pins
    name: str
    config: Config
    timing: AgentTiming
    rng: np.random.Generator
    spaces: dict[int, np.ndarray]
    reads: deque[tuple[int, int]] = field(default_factory=deque)
    rows: deque[int] = field(default_factory=deque)
    entered: list[tuple[int, int]] = field(default_factory=list)
    delay: int = 0
    offered: bool = False

    def __post_init__(self) -> None:
        self.read = Sink(self.pins, f"{self.name}_read")
        self.out = PayloadSource(self.pins, f"{self.name}_rows")
        self.write = Sink(self.pins, f"{self.name}_write")

    def drive(self) -> None:
        go = (self.rng.random(3) < self.timing.pace).tolist()
        self.read.drive(go[0] and len(self.reads) < 2)
        if not self.rows and self.reads:
            space, address = self.reads.popleft()
            self.rows.extend(packed(row) for row in self.spaces[space][address])
        self.offered = bool(self.rows) and (self.offered or go[1])
        self.out.drive(self.rows[0] if self.offered else None)
        full = len(self.entered) == self.config.sublanes
        self._writes = full and self.delay == 0
        self.write.drive(self._writes or (not full and go[2]))
        self.pins.poke(f"{self.name}_busy", int(full and not self._writes))

    def sample(self) -> None:
        if (request := self.read.sample()) is not None:
            space, address = request & 3, request >> 2
            if space == HostSpace.MASK:
                address = 0
            assert address < len(self.spaces[space])
            self.reads.append((space, address))
        if self.out.sample():
            self.rows.popleft()
            self.offered = False
        if self._writes:
            addresses = {address for address, _ in self.entered}
            assert len(addresses) == 1
            self.spaces[HostSpace.VMEM][addresses.pop()] = [
                unpacked(row, self.config.lanes) for _, row in self.entered]
            self.entered.clear()
        self.delay = max(0, self.delay - 1)
        if (row := self.write.sample()) is not None:
            address, data = row & 0xFFFF, row >> 16
            assert address < self.config.vmem_vectors
            self.entered.append((address, data))
            if len(self.entered) == self.config.sublanes:
                self.delay = (int(self.rng.integers(self.timing.latency + 1))
                              if self.timing.pace < 1 else 0)

    @property
    def idle(self) -> bool:
        return not self.reads and not self.rows and not self.entered


@dataclass
class Words:
    """The ports for words of scalar and instruction memory."""

    pins: Pins
    config: Config
    timing: AgentTiming
    rng: np.random.Generator
    memories: Memories
    answer: int | None = None
    read: int = 0
    written: int = 0

    def __post_init__(self) -> None:
        self.request = Sink(self.pins, "request")
        self.write = Sink(self.pins, "word_write")

    def drive(self) -> None:
        self.request.drive(self.rng.random() < self.timing.pace)
        self.write.drive(self.rng.random() < self.timing.pace)
        self.pins.poke("response__valid", int(self.answer is not None))
        self.pins.poke("response__data", int(self.rng.integers(1 << 32)) if self.answer is None
                       else self.answer)
        self.answer = None

    def sample(self) -> None:
        if (payload := self.request.sample()) is not None:
            self.read += 1
            write, space, address = payload & 1, payload >> 1 & 3, payload >> 3 & 0xF_FFFF
            assert not write
            assert space == Space.SMEM
            self.answer = int(self.memories[DmaSpace.SMEM][address])
        if (payload := self.write.sample()) is not None:
            space, address, data = payload & 3, payload >> 2 & 0xF_FFFF, payload >> 22
            count = write_words(self.config)
            self.written += count
            assert space in (Space.SMEM, Space.IMEM)
            memory = self.memories[DmaSpace.SMEM if space == Space.SMEM else DmaSpace.IMEM]
            assert address + count <= len(memory)
            assert space == Space.SMEM or address % count == 0
            memory[address:address + count] = unpacked(data, count)


@dataclass
class HbmAgent:
    """The HBM and its port, which executes bursts in order, as `HbmPort` does."""

    pins: Pins
    config: Config
    timing: AgentTiming
    rng: np.random.Generator
    memory: np.ndarray
    bad: set[int] = field(default_factory=set)
    now: int = 0
    reads: deque[tuple[int, int]] = field(default_factory=deque)  # time, row
    writes: deque[list[int]] = field(default_factory=deque)
    answers: deque[tuple[int, int]] = field(default_factory=deque)  # time, error
    offered: bool = False
    answering: bool = False
    bursts: list[tuple[str, int, int]] = field(default_factory=list)
    written: int = 0
    read_times: list[int] = field(default_factory=list)
    write_times: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = Sink(self.pins, "hbm_read")
        self.rows = PayloadSource(self.pins, "hbm_rows")
        self.write = Sink(self.pins, "hbm_write")
        self.write_rows = Sink(self.pins, "hbm_write_rows")
        self.done = PayloadSource(self.pins, "hbm_write_done")

    def _later(self) -> int:
        low = self.timing.latency if self.timing.pace == 1 else 0
        return self.now + int(self.rng.integers(low, self.timing.latency + 1))

    def drive(self) -> None:
        go = (self.rng.random(5) < self.timing.pace).tolist()
        self.read.drive(go[0] and len(self.reads) < 64 * self.timing.bursts)
        self.offered = self.offered or (
            bool(self.reads) and self.reads[0][0] <= self.now and go[1])
        bits = 32 * self.config.lanes
        payload = None
        if self.offered:
            row = self.reads[0][1]
            payload = packed(self.memory[row]) | (row in self.bad) << bits
        self.rows.drive(payload)
        self.write.drive(go[2] and len(self.writes) < 2)
        self.write_rows.drive(go[3] and bool(self.writes))
        self.answering = self.answering or (
            bool(self.answers) and self.answers[0][0] <= self.now and go[4])
        self.done.drive(self.answers[0][1] if self.answering else None)

    def sample(self) -> None:
        bits = (self.config.hbm_rows - 1).bit_length()
        if self.rows.sample():
            self.reads.popleft()
            self.offered = False
            self.read_times.append(self.now)
        if self.done.sample():
            self.answers.popleft()
            self.answering = False
        if (data := self.write_rows.sample()) is not None:
            burst = self.writes[0]
            row, left, error = burst
            if not self.pins.peek("discard"):
                self.memory[row] = unpacked(data, self.config.lanes)
                self.written += 1
            self.write_times.append(self.now)
            burst[:] = [row + 1, left - 1, error | (row in self.bad)]
            if left == 1:
                self.writes.popleft()
                self.answers.append((self._later(), burst[2]))
        for kind, sink in (("read", self.read), ("write", self.write)):
            if (payload := sink.sample()) is not None:
                row, count = payload % (1 << bits), (payload >> bits) + 1
                assert count <= 256
                assert row + count <= self.config.hbm_rows
                self.bursts.append((kind, row, count))
                if kind == "write":
                    self.writes.append([row, count, 0])
                else:
                    start = self._later()
                    self.reads.extend((start + number, row + number) for number in range(count))
        self.now += 1

    @property
    def idle(self) -> bool:
        return not (self.reads or self.writes or self.answers)


@dataclass
class Job:
    """A started transfer."""

    descriptor: Descriptor
    reads: tuple[DmaSpace, set[int]]
    writes: tuple[DmaSpace, set[int]]
    refused: bool = False

    @classmethod
    def of(cls, descriptor: Descriptor, config: Config, refused: bool = False) -> "Job":
        source, destination = descriptor.source, descriptor.destination
        return cls(descriptor, (source.space, places(source, descriptor.rows, config)),
                   (destination.space, places(destination, descriptor.rows, config)), refused)

    def meets(self, other: "Job") -> bool:
        """Whether either of two transfers writes something that the other one accesses."""
        return any(a[0] == b[0] and a[1] & b[1] for a, b in (
            (self.reads, other.writes), (self.writes, other.writes), (self.writes, other.reads)))

    @property
    def meets_itself(self) -> bool:
        return self.reads[0] == self.writes[0] and bool(self.reads[1] & self.writes[1])


class VerilatedDma:
    """The engine with its surroundings, and golden memories, in which transfers take no time."""

    def __init__(self, model: Model, config: Config = CONFIG, timing: AgentTiming | None = None,
                 seed: int = 0) -> None:
        self.model = model
        self.config = config
        self.timing = timing or AgentTiming()
        self.rng = np.random.default_rng(seed)
        self.pins = Pins(model)
        self.real = random_memories(config, self.rng)
        self.golden = {space: memory.copy() for space, memory in self.real.items()}
        real = self.real
        common = (config, self.timing, self.rng)
        self.hbm = HbmAgent(self.pins, *common, real[DmaSpace.HBM])
        self.words = Words(self.pins, *common, real)
        self.vmem = VectorUnitAgent(self.pins, "vmem", *common, {
            HostSpace.VMEM: real[DmaSpace.VMEM], HostSpace.VREG: real[DmaSpace.VREG],
            HostSpace.MASK: real[DmaSpace.MASK]})
        self.other = VectorUnitAgent(self.pins, "other", *common, {
            HostSpace.VMEM: real[DmaSpace.OTHER_VMEM]})
        self._agents = (self.hbm, self.words, self.vmem, self.other)
        self._signals = {name: Sink(self.pins, name) for name in ("signal", "other_signal")}
        self.jobs: deque[Job] = deque()
        self.awaited: dict[str, deque[int]] = {name: deque() for name in self._signals}
        self.signalled = 0
        self.errors = 0
        self._read_at: int | None = None
        self._address = 0
        self._words: tuple[int, ...] = ()

    def cycle(self, act: Callable[[], None] | None = None) -> None:
        """Runs a clock cycle; ``act`` may read outputs and set inputs in its middle."""
        for agent in self._agents:
            agent.drive()
        for sink in self._signals.values():
            sink.drive(self.rng.random() < self.timing.pace)
        self.pins.poke("dma__data", self._descriptor_data())
        if act:
            act()
        self._read_at = None
        if self.pins.peek("dma__read"):
            self._read_at = self.pins.peek("dma__read_address") - self._address
            assert 0 <= self._read_at <= DESCRIPTOR_WORDS - descriptor_words(self.config)
        for agent in self._agents:
            agent.sample()
        for name, sink in self._signals.items():
            if (index := sink.sample()) is not None:
                self._signal(name, index)
        self.errors += self.pins.peek("bus_error")
        self.model.tick()

    def _descriptor_data(self) -> int:
        """Words that the engine read in the previous cycle; random ones if it did not read."""
        together = descriptor_words(self.config)
        words = self.rng.integers(1 << 32, size=together).tolist() if self._read_at is None else (
            self._words[self._read_at:self._read_at + together])
        return sum(word << 32 * number for number, word in enumerate(words))

    def _signal(self, name: str, index: int) -> None:
        """Checks a signal: its transfer and all earlier ones must have written the right data."""
        assert self.awaited[name], f"nothing was to be signalled at {name}"
        expected = self.awaited[name].popleft()
        assert index == expected, f"semaphore {index} is signalled at {name}, not {expected}"
        self.signalled += 1
        wanted = (len(self.awaited["signal"]), len(self.awaited["other_signal"]))
        while self.jobs:
            left = [sum(getattr(job.descriptor, flag) for job in self.jobs)
                    for flag in ("signal", "signal_other")]
            if name == "signal" and left[0] <= wanted[0]:
                break
            if name == "other_signal" and left[1] <= wanted[1]:
                break
            self.check_written(self.jobs.popleft())

    def check_written(self, job: Job) -> None:
        space, addresses = job.writes
        if job.refused:  # its destination is undefined
            self.golden[space][:] = np.where(self._among(job), self.real[space],
                                             self.golden[space])
            return
        unit = job.descriptor.destination.unit(self.config) if space == DmaSpace.HBM else 1
        index = np.array(sorted(addresses)) // unit
        if space == DmaSpace.IMEM:
            index = index[index % BUNDLE_PITCH < BUNDLE_WORDS]
        self._compare(space, index, str(job.descriptor))

    def _compare(self, space: DmaSpace, index: np.ndarray, what: str) -> None:
        """Compares the memory at ``index`` (rows of HBM, or words) with the golden memory."""
        real, golden = self.real[space][index], self.golden[space][index]
        wrong = np.argwhere(real != golden)
        if len(wrong):
            first = tuple(wrong[0])
            place = [int(index[first[0]]), *map(int, first[1:])]
            raise AssertionError(
                f"{what}: {space.name} at {place} is {real[first]:08x}, not {golden[first]:08x}; "
                f"{len(wrong)} of {real.size} words differ")

    def _among(self, job: Job) -> np.ndarray:
        """Mask of the places that the job writes; its shape broadcasts to the memory's."""
        space, addresses = job.writes
        memory = self.real[space]
        unit = job.descriptor.destination.unit(self.config) if space == DmaSpace.HBM else 1
        found = np.zeros(len(memory), bool)
        found[np.array(sorted(addresses)) // unit] = True
        return found.reshape(-1, *(1,) * (memory.ndim - 1))

    def start(self, descriptor: Descriptor, *, host: bool = False, patience: int = LIMIT,
              refused: bool = False) -> Fault:
        """Starts a transfer; waits until the engine has taken it, and returns its fault.

        ``refused`` says that memory refuses the transfer: no signal and no data are expected.
        """
        self._words = descriptor.pack()
        result: list[Fault] = []
        flag = "host_valid" if host else "dma__valid"
        if host:
            self.pins.poke("host_descriptor", sum(
                word << 32 * number for number, word in enumerate(self._words)))
        else:
            self._address = int(self.rng.integers(1 << 16 - 1))
            self.pins.poke("dma__address", self._address)
        self.pins.poke(flag, 1)

        def look() -> None:
            ready = self.pins.peek("host_ready" if host else "dma__ready")
            assert not (self.pins.peek("dma__ready") and host)
            if ready and (host or self.rng.random() < self.timing.pace):
                result.append(Fault(self.pins.peek("host_fault" if host else "dma__fault")))
                if not host:
                    self.pins.poke("dma__taken", int(result[0] == Fault.NONE))

        for _ in range(patience):
            self.cycle(look)
            if result:
                break
        else:
            self.pins.poke(flag, 0)
            raise AssertionError(f"not taken: {descriptor}")
        self.pins.poke("dma__taken", 0)
        self.pins.poke(flag, 0)
        if result[0] != Fault.NONE:
            self.cycle()  # the core stops
        if result[0] == Fault.NONE:
            self._expect(descriptor, refused)
        return result[0]

    def _expect(self, descriptor: Descriptor, refused: bool = False) -> None:
        if refused:
            descriptor = replace(descriptor, signal=0, signal_other=0)
        else:
            copy(descriptor, self.config, self.golden)
        self.jobs.append(Job.of(descriptor, self.config, refused))
        for name, flag in (("signal", descriptor.signal),
                           ("other_signal", descriptor.signal_other)):
            if flag:
                self.awaited[name].append(descriptor.semaphore)

    def finish(self, limit: int = LIMIT) -> None:
        """Runs until the engine is idle."""
        for _ in range(limit):
            if not self.pins.peek("busy"):
                break
            self.cycle()
        else:
            raise AssertionError(f"the engine is still busy after {limit} cycles, with "
                                 f"{len(self.jobs)} transfers to check")
        for _ in range(4):
            self.cycle()
        assert not self.pins.peek("busy"), "the engine became busy again without a transfer"
        for name in ("hbm", "vmem", "other"):
            assert getattr(self, name).idle, f"the engine is idle, but requests to {name} are not"

    def check(self) -> None:
        """Checks that all transfers are done and that all memories are right."""
        for name, queue in self.awaited.items():
            assert not queue, f"semaphores {list(queue)} were not signalled at {name}"
        while self.jobs:
            self.check_written(self.jobs.popleft())
        for space in self.real:
            index = np.arange(len(self.golden[space]))
            if space == DmaSpace.IMEM:
                index = index[index % BUNDLE_PITCH < BUNDLE_WORDS]
            self._compare(space, index, "after all transfers")

    def forget(self) -> None:
        """Takes the memories' contents as the expected ones; to be called after an abort."""
        self.jobs.clear()
        for queue in self.awaited.values():
            queue.clear()
        for space, memory in self.real.items():
            self.golden[space][:] = memory


class Transfers:
    """Makes random descriptors."""

    def __init__(self, rng: np.random.Generator, config: Config = CONFIG) -> None:
        self.rng = rng
        self.config = config

    def side(self, space: DmaSpace, rows: int) -> tuple[int, int, int]:
        """Random address, run and stride of a side that lies within its space, or almost so."""
        rng = self.rng
        side = Side(space, 0, 0, 0)
        unit, size = side.unit(self.config), side.size(self.config)
        count = side.blocks(rows, self.config)
        run = stride = 0
        if side.info.runs and rng.random() < 0.6:
            run = int(rng.integers(1, count + 2))
            most = max(1, size // unit * 2 // max(1, -(-count // run)))
            stride = int(rng.integers(-most, most + 1)) * unit
            if rng.random() < 0.3:
                stride = run * unit * int(rng.choice([-1, 1]))
        reached = places(Side(space, 0, run, stride), rows, self.config)
        low, high = -min(reached), size - max(reached) - (unit if side.info.runs else 1)
        grain = unit if space == DmaSpace.HBM else BUNDLE_PITCH if space == DmaSpace.IMEM else 1
        low, high = -(-low // grain), high // grain
        if rng.random() < 0.2:  # to an end
            return max(0, int(rng.choice([low, high]))) * grain, run, stride
        return max(0, int(rng.integers(low, max(low, high) + 1))) * grain, run, stride

    def descriptor(self, source: DmaSpace | None = None,
                   destination: DmaSpace | None = None) -> Descriptor:
        """A descriptor, mostly without a fault."""
        rng, config = self.rng, self.config
        source = DmaSpace(int(rng.choice(sorted(DMA_SOURCES)))) if source is None else source
        destination = (DmaSpace(int(rng.choice(DESTINATIONS))) if destination is None
                       else destination)
        most = 6 if DmaSpace.SMEM in (source, destination) else (
            2 if source == DmaSpace.MASK else 20)
        rows = int(rng.integers(1, most + 1))
        if any(Side(space, 0, 0, 0).info.vector for space in (source, destination)):
            rows += -rows % config.sublanes
        sides = {name: self.side(space, rows) for name, space in (
            ("source", source), ("destination", destination))}
        return Descriptor(
            source, destination, rows,
            **{f"{side}_{field}": value for side, values in sides.items()
               for field, value in zip(("address", "run", "stride"), values, strict=True)},
            semaphore=int(rng.integers(16)), signal=int(rng.integers(2)),
            signal_other=int(rng.integers(2)))

    def good(self, source: DmaSpace | None = None,
             destination: DmaSpace | None = None) -> Descriptor:
        """A descriptor without a fault, whose sides do not overlap."""
        while True:
            found = self.descriptor(source, destination)
            if (found.check(self.config, self.config.cores) == Fault.NONE
                    and not Job.of(found, self.config).meets_itself):
                return found

    def pairs(self) -> Iterator[tuple[DmaSpace, DmaSpace]]:
        for source in sorted(DMA_SOURCES):
            for destination in DESTINATIONS:
                yield DmaSpace(source), DmaSpace(destination)
