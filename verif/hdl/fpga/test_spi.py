"""The bridge on an SPI line: requests and responses against the golden bridge, bit by bit."""

import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from golden.fpga.bridge import GoldenBridge
from hdl.fpga.bridge import SerialBridge
from hdl.fpga.protocol import FLAG, Operation, Request, frame
from hdl.fpga.spi import MIN_CYCLES
from hdl.lint import LINT_WAIVERS
from hdl.tiles import VerilogLibrary
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model

pytestmark = pytest.mark.slow

WORD = 0x7E7D0180
"""The word at every address; some of its bytes need an escape in a frame."""


class Target:
    """A target of the golden bridge that records writes, but reads `WORD` at every address."""

    def __init__(self) -> None:
        self.writes: list[tuple[int, int]] = []
        self.resets = 0

    def read(self, address: int) -> int:
        return WORD

    def write(self, address: int, word: int) -> bool:
        self.writes.append((address, word))
        return True

    def reset(self) -> None:
        self.resets += 1


class Host:
    """A host whose clock has a period of ``cycles`` cycles, which need not be an integer."""

    def __init__(self, model: Model, cycles: float, seed: int) -> None:
        self._model, self._cycles = model, cycles
        self.rng = random.Random(seed)
        self.target = Target()
        self.golden = GoldenBridge(self.target)
        self.writes: list[tuple[int, int]] = []
        self.resets = 0
        model.poke("spi_select", 1)
        model.poke("access__done", 1)
        model.poke("access__value", WORD)
        model.reset(4)

    def _run(self, clock: np.ndarray, data: np.ndarray, select: int) -> np.ndarray:
        names = ["line_out", "access__valid", "access__write", "access__address", "access__data",
                 "reset"]
        found = self._model.run({"spi_clock": clock.astype(np.uint32),
                                 "line_in": data.astype(np.uint32),
                                 "spi_select": np.full(len(clock), select, np.uint32)}, names)
        out, valid, write, address, word, reset = (found[name].reshape(-1) for name in names)
        for at in np.flatnonzero(valid & write):
            self.writes.append((int(address[at]), int(word[at])))
        self.resets += int(np.count_nonzero(np.diff(reset.astype(np.int64)) > 0))
        return out

    def transfer(self, line: bytes, bits: int | None = None) -> bytes:
        """Exchange bytes while the target is selected; stop after ``bits`` bits."""
        sent = np.unpackbits(np.frombuffer(line, np.uint8))[:bits]
        idle = np.zeros(self.rng.randint(6, 12), np.uint32)
        self._run(idle, idle, 0)
        at = (np.arange(int(len(sent) * self._cycles)) + self.rng.random()) / self._cycles
        bit = np.minimum(at.astype(np.int64), len(sent) - 1)
        clock = at - bit >= 0.5
        out = self._run(clock, sent[bit], 0)
        # The level just before the clock rises.
        rises = np.flatnonzero(np.diff(clock.astype(np.int64), prepend=0) > 0)
        self._run(idle, idle, 0)
        self._run(idle, idle, 1)
        return bytes(np.packbits(out[rises - 1].astype(np.uint8)).tolist())

    def exchange(self, line: bytes, more: int) -> None:
        """Send bytes, read ``more`` bytes, and compare all of them with the golden bridge's."""
        expected = b"".join(map(self.golden.receive, line))
        found = self.transfer(line + bytes([FLAG] * more))
        assert found.strip(bytes([FLAG])) == expected.strip(bytes([FLAG]))
        assert found.endswith(bytes([FLAG]))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    sources = cached_json("spi-bridge", {}, lambda: VerilogLibrary().write(
        "serial_bridge", lambda: SerialBridge(None)), code=SerialBridge)
    library = build_model("serial_bridge", sources, waivers=LINT_WAIVERS, optimise=None)
    with Model(library) as found:
        yield found


def requests(rng: random.Random) -> Iterable[Request]:
    yield Request(0, Operation.IDENTIFY)
    for number in range(1, 12):
        words = tuple(rng.choice((0, FLAG, 0x7D7E7D7E, rng.getrandbits(32)))
                      for _ in range(rng.randint(1, 5)))
        yield Request(number, *rng.choice((
            (Operation.WRITE, 4 * number, words), (Operation.WRITE_FIXED, 8, words),
            (Operation.READ, 64, (), rng.randint(1, 5)), (Operation.RESET,))))


@pytest.mark.parametrize("cycles", [MIN_CYCLES, 8.7, 13, 50])
def test_responses_are_those_of_the_golden_bridge(model: Model, cycles: float) -> None:
    host = Host(model, cycles, int(cycles))
    for request in requests(host.rng):
        line = frame(request.payload())
        host.exchange(line, 60)
        if request.sequence % 3 == 0:
            host.exchange(line, 60)  # The response again.
    assert host.writes == host.target.writes
    assert host.resets == host.target.resets
    assert host.golden.dropped == 0


def test_byte_that_ends_early_damages_its_frame_only(model: Model) -> None:
    host = Host(model, MIN_CYCLES, 3)
    write = frame(Request(1, Operation.WRITE, 8, (1, 2)).payload())
    host.transfer(write, 8 * 6 + 3)
    for byte in (*write[:6], None):
        host.golden.receive(byte)
    # The flag of this frame ends the damaged one, which the response counts.
    host.exchange(frame(Request(2, Operation.IDENTIFY).payload()), 40)
    assert host.golden.dropped == 1
    # A response of which the host reads a part is lost; the host repeats its request.
    read = frame(Request(3, Operation.READ, 0, count=2).payload())
    for byte in read:
        host.golden.receive(byte)
    host.transfer(read + bytes([FLAG] * 8))
    host.transfer(bytes([FLAG] * 40))
    host.exchange(read, 60)
    assert not host.writes


def test_bytes_may_come_in_parts(model: Model) -> None:
    host = Host(model, 11, 5)
    line = frame(Request(1, Operation.READ, 4, count=3).payload())
    expected = b"".join(map(host.golden.receive, line))
    found = b"".join(host.transfer(line[at:at + 3]) for at in range(0, len(line), 3))
    while len(found) < 80:
        found += host.transfer(bytes([FLAG] * host.rng.randint(1, 5)))
    assert found.strip(bytes([FLAG])) == expected.strip(bytes([FLAG]))
