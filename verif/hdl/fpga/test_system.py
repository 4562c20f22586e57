"""The whole system for an FPGA, in Verilog for ECP5: a host runs a program over the serial line."""

from collections.abc import Iterator

import numpy as np
import pytest

from golden.chip import GoldenChip
from hdl.chip.registers import CORE_REGISTERS, GLOBAL_REGISTERS, IDENTITY, address
from hdl.config import Config
from hdl.core.interface import Space
from hdl.encoding import bundle_words
from hdl.fpga.protocol import (
    MAX_WORDS,
    MEMORY_BASE,
    VERSION,
    Deframer,
    Operation,
    Request,
    Response,
    Status,
    frame,
)
from hdl.isa import BUNDLE_PITCH, Fault
from sim.asm.assembler import Program
from sim.asm.descriptor import descriptor, hbm, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.verilated.model import Model
from tools.fpga.board import DIVISOR, HBM_BYTES, bit_levels, system_library

pytestmark = pytest.mark.slow

CONFIG = Config.preset("fpga", hbm_bytes=HBM_BYTES)
ROWS = 512
"""Rows of HBM that the program may change."""
LIMIT = 200_000
"""Limit in cycles of a response."""


class Host:
    """The host's end of the serial line, which sends one request after the other."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._sequence = 0
        model.poke("line_in", 1)
        model.reset(4)

    def _send(self, line: bytes) -> list[int]:
        levels = bit_levels(line, DIVISOR)
        return self._model.run({"line_in": levels}, ["line_out"])["line_out"].reshape(-1).tolist()

    def ask(self, operation: Operation, place: int = 0, words: tuple[int, ...] = (),
            count: int = 0) -> Response:
        self._sequence = (self._sequence + 1) % 256
        request = Request(self._sequence, operation, place, words, count)
        levels = self._send(frame(request.payload()))
        deframer = Deframer(8, 4 * MAX_WORDS + 8)
        here = 0
        while len(levels) < LIMIT:
            levels += self._model.run({}, ["line_out"], cycles=4000)["line_out"].reshape(
                -1).tolist()
            while here + 12 * DIVISOR < len(levels):
                if levels[here]:
                    here += 1
                    continue
                middle = here + DIVISOR // 2
                byte = sum(levels[middle + DIVISOR * (bit + 1)] << bit for bit in range(8))
                assert levels[middle + 9 * DIVISOR]
                here = middle + 9 * DIVISOR
                payload = deframer.receive(byte)
                if payload is not None:
                    response = Response.parse(payload)
                    assert response.sequence == self._sequence
                    return response
        raise TimeoutError(f"no response to {request}")

    def read(self, place: int, count: int = 1, *, fixed: bool = False) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            at = place if fixed else place + 4 * len(found)
            operation = Operation.READ_FIXED if fixed else Operation.READ
            response = self.ask(operation, at, count=min(MAX_WORDS, count - len(found)))
            assert response.status == Status.OKAY
            found += response.words
        return found

    def write(self, place: int, *words: int, fixed: bool = False) -> None:
        for first in range(0, len(words), MAX_WORDS):
            at = place if fixed else place + 4 * first
            operation = Operation.WRITE_FIXED if fixed else Operation.WRITE
            part = words[first:first + MAX_WORDS]
            assert self.ask(operation, at, part) == Response(self._sequence, Status.OKAY,
                                                             len(part))

    def write_space(self, space: Space, at: int, *words: int) -> None:
        """Writes words to a memory of core 0 through its registers."""
        register = CORE_REGISTERS["ACCESS_ADDRESS"]
        self.write(address("ACCESS_ADDRESS", 0), register.pack(ADDRESS=at, SPACE=space.value))
        self.write(address("ACCESS_DATA", 0), *words, fixed=True)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(system_library(CONFIG)) as found:
        yield found


def program() -> Program:
    return assemble("""
        { misc.dma 0 | s0.add s1, s0, 4 | s1.add s2, s0, 7 }
        { misc.wait sem2, 1 }
        loop:
        { ld.load v1, s2 | s0.add s2, s2, 1 }
        { v0.fadd v2, v1, v1 }
        { v0.fmul v2, v2, v1 }
        { st.store v2, s2, 12 | s1.loop s1, loop }
        { misc.dma 20 }
        { misc.wait sem3, 1 | s1.halt }
    """, CONFIG)


def test_a_host_runs_a_program_over_the_serial_line(model: Model) -> None:
    host, golden = Host(model), GoldenChip(CONFIG)
    assert host.ask(Operation.IDENTIFY).words == (VERSION,)
    assert host.read(GLOBAL_REGISTERS["ID"].offset) == [IDENTITY]
    rng = np.random.default_rng(20261122)
    rows = golden.hbm[:ROWS]
    rows[:] = rng.normal(size=rows.shape).astype(np.float32).view(np.uint32)
    host.write(MEMORY_BASE, *rows.reshape(-1).tolist())
    core = golden.cores[0]
    for at, words in ((0, descriptor(CONFIG, hbm(0), vmem(7), rows=4, semaphore=sem[2])),
                      (20, descriptor(CONFIG, vmem(20), hbm(100 * CONFIG.row_bytes), rows=4,
                                      semaphore=sem[3]))):
        core.smem[at:at + len(words)] = words
        host.write_space(Space.SMEM, at, *words)
    bundles = program().bundles
    for number, bundle in enumerate(bundles):
        host.write_space(Space.IMEM, BUNDLE_PITCH * number, *bundle_words(bundle))
    core.load_program(bundles)
    core.start()
    core.run(1000)
    assert core.fault is Fault.NONE
    host.write(address("CONTROL", 0), CORE_REGISTERS["CONTROL"].pack(START=1))
    [status] = host.read(address("STATUS", 0))
    while status & 1:
        [status] = host.read(address("STATUS", 0))
    assert status >> 8 & 15 == Fault.NONE.value
    assert host.read(address("PC", 0)) == [core.pc]
    found = np.array(host.read(MEMORY_BASE, rows.size), np.uint32)
    assert np.array_equal(found, rows.reshape(-1))
    assert np.any(found[400:416] != found[0:16])


def test_a_reset_stops_the_core_and_keeps_memory(model: Model) -> None:
    host = Host(model)
    host.write(MEMORY_BASE + 8, 0x12345678)
    host.write_space(Space.IMEM, 0, *bundle_words(assemble("loop: { s1.jump loop }",
                                                           CONFIG).bundles[0]))
    host.write(address("CONTROL", 0), CORE_REGISTERS["CONTROL"].pack(START=1))
    assert host.read(address("STATUS", 0))[0] & 1
    assert host.ask(Operation.RESET).status == Status.OKAY
    assert not host.read(address("STATUS", 0))[0] & 1
    assert host.read(MEMORY_BASE + 8) == [0x12345678]


def test_a_core_that_stops_interrupts_if_that_is_enabled(model: Model) -> None:
    host = Host(model)
    host.write_space(Space.IMEM, 0, *bundle_words(assemble("{ s1.halt }", CONFIG).bundles[0]))
    host.write(address("CONTROL", 0), CORE_REGISTERS["CONTROL"].pack(START=1))
    assert not host.read(address("STATUS", 0))[0] & 1
    assert not model.peek("interrupt")
    stopped = GLOBAL_REGISTERS["INTERRUPT_STATUS"].pack(CORE0_STOPPED=1)
    host.write(GLOBAL_REGISTERS["INTERRUPT_ENABLE"].offset, stopped)
    assert model.peek("interrupt")
    host.write(GLOBAL_REGISTERS["INTERRUPT_STATUS"].offset, stopped)
    assert not model.peek("interrupt")


def test_addresses_of_nothing_are_refused(model: Model) -> None:
    host = Host(model)
    for place in (0x0FFC, 1 << 16, MEMORY_BASE - 4, MEMORY_BASE + CONFIG.hbm_bytes):
        assert host.ask(Operation.READ, place, count=1).status == Status.REFUSED
