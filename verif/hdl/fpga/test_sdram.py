"""The controller of an SDRAM, against a golden SDRAM that checks every command; seeded defects.

`bench_sdram` has bursts on the AXI4 slave in front of it.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from amaranth import Cat, Const, Module, Signal
from amaranth.hdl import Elaboratable
from amaranth.sim import SimulatorContext

from golden.fpga.sdram import Edge, GoldenSdram, Rule
from hdl.config import Config
from hdl.fpga import sdram
from hdl.fpga.board import Board
from hdl.fpga.host import SerialHost
from hdl.fpga.memory import SdramMemory
from hdl.fpga.sdram import SdramController, SdramTiming
from hdl.fpga.system import SerialSystem
from verif.hdl.simulation.simulator import fast_simulator

START_US = 1
FAST = SdramTiming(100_000_000, start_us=START_US)
SLOW = SdramTiming(25_000_000, start_us=START_US)
FPGA = Config.preset("fpga", hbm_bytes=32 << 20)


class Probed(Elaboratable):
    """A controller whose outputs are also joined to one signal, which is quick to sample."""

    def __init__(self, timing: SdramTiming) -> None:
        self.controller = SdramController(timing, 14, 64)
        self.pins = Signal(39)
        self.answer = Signal(65)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.controller = self.controller
        pins, access = self.controller.pins, self.controller.access
        m.d.comb += [self.pins.eq(Cat(pins.command, pins.bank, pins.address, pins.mask,
                                      pins.enable, pins.drive, pins.data)),
                     self.answer.eq(Cat(access.done, access.value))]
        return m


def _edge(pins: int) -> Edge:
    """Return the levels of the pins at a clock edge, from the bits that `Probed` joins."""
    return Edge(pins & 15, pins >> 4 & 3, pins >> 6 & 0x1FFF, pins >> 19 & 3,
                pins >> 23 if pins >> 22 & 1 else None, pins >> 21 & 1)


def _written(old: bytes, new: bytes, strobe: int) -> bytes:
    """Return ``old`` with those bytes of ``new`` whose bit of ``strobe`` is set."""
    return bytes(after if strobe >> place & 1 else before
                 for place, (before, after) in enumerate(zip(old, new, strict=True)))


def check(timing: SdramTiming, *, beats: int = 40, seed: int = 1,
          pause: int = 0) -> tuple[GoldenSdram, str]:
    """Write and read random beats of some rows, with an SDRAM behind the pads.

    After the last beat, ``pause`` cycles pass; 40 if it is 0. Return the SDRAM, and the name of the
    first rule that was violated, "DATA_READ" if a beat differs, or "".
    """
    dut = Probed(timing)
    access, pins = dut.controller.access, dut.controller.pins
    golden = GoldenSdram(10**12 // timing.clock_hz, START_US)
    rng = random.Random(seed)
    expected: list[bytes] = []
    failed = ""
    done = 0

    async def memory(ctx: SimulatorContext) -> None:
        nonlocal done, failed
        word: int | None = None
        while not failed:
            _, _, now, answer = await ctx.tick().sample(dut.pins, dut.answer)
            if answer & 1:
                found = (answer >> 1).to_bytes(8, "little")
                if found != expected[done]:
                    failed = "DATA_READ"
                done += 1
            ctx.set(pins.data_in, rng.getrandbits(16) if word is None else word)
            word, rule = golden.edge(_edge(now))
            failed = failed or (rule.name if rule else "")

    async def master(ctx: SimulatorContext) -> None:
        model = {place: bytes(8) for place in range(1 << 11)}
        for number in range(beats):
            if failed:
                return
            row = rng.choice((0, 1, 126, 127, 128, 1023, 1024)) if number % 8 else 5
            ctx.set(access.row, row)
            write = rng.randrange(2) or number < 8
            data, strobe = rng.randbytes(8), rng.choice((255, 255, rng.getrandbits(8)))
            ctx.set(access.write, write)
            ctx.set(access.data, int.from_bytes(data, "little"))
            ctx.set(access.strobe, strobe)
            ctx.set(access.valid, 1)
            if write:
                model[row] = _written(model[row], data, strobe)
            else:
                expected.append(model[row])
            await ctx.tick().until(access.ready)
            ctx.set(access.valid, 0)
            if rng.randrange(4) == 0:
                await ctx.tick().repeat(rng.randint(1, 40))
        await ctx.tick().repeat(pause or 40)

    simulator = fast_simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(memory, background=True)
    simulator.add_testbench(master)
    simulator.run()
    assert failed or done == len(expected)
    return golden, failed


@pytest.mark.parametrize("timing", [SLOW, SdramTiming(50_000_000, start_us=START_US), FAST])
def test_no_rule_is_violated(timing: SdramTiming) -> None:
    golden, failed = check(timing, pause=4 * timing.refresh_cycles)
    assert not failed
    assert golden.counts["read"] > 40
    assert golden.counts["write"] > 40
    assert golden.counts["refresh"] >= 4


@pytest.mark.parametrize(("defect", "rule"), [
    ({"t_rcd": 1}, Rule.RCD), ({"t_rp": 1}, Rule.RP), ({"t_rfc": 1}, Rule.RFC),
    ({"t_wr": 1, "wr_cycles": 1}, Rule.WR), ({"mrd_cycles": 1}, Rule.MRD),
    ({"start_us": 0}, Rule.START)])
def test_delay_that_is_too_short_is_found(defect: dict[str, int], rule: Rule) -> None:
    # Not that from activate to precharge, for which the words of a beat are always long enough.
    assert check(replace(FAST, **defect))[1] == rule.name


@pytest.mark.parametrize(("refresh_ms", "intervals"), [(96, 9), (256, 4)])
def test_rare_refresh_is_found(refresh_ms: int, intervals: int) -> None:
    slow = replace(SLOW, refresh_ms=refresh_ms)
    assert check(slow, beats=0, pause=intervals * slow.refresh_cycles)[1] == "REFRESH"


@pytest.mark.parametrize(("name", "value", "rule"), [
    ("CAS_LATENCY", 3, "MODE"), ("_START_REFRESHES", 2, "MODE"), ("_ALL_BANKS", 0, "START"),
    ("_PADS", 1, "DATA_READ"), ("_PADS", 3, "DATA_READ"), ("_COLUMN_BITS", 10, "DATA_READ")])
def test_wrong_constant_is_found(name: str, value: int, rule: str,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdram, name, value)
    assert check(SLOW)[1] == rule


def test_write_that_does_not_wait_for_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SdramController, "_meets_read", lambda _: Const(0))
    assert check(SLOW)[1] == "DATA"


@pytest.mark.parametrize(("make", "message"), [
    (lambda: SdramTiming(125_000_000), "clock_hz must be from 1000000 to 100000000, not 125"),
    (lambda: SdramTiming(25_000_000, t_rp=-1), "t_rp must be at least 0, not -1"),
    (lambda: SdramController(SLOW, 26, 128), "address_bits must be from 5 to 25, not 26"),
    (lambda: SdramController(SLOW, 25, 16), "data_bits must be a power of two from 32 to 1024"),
    (lambda: SdramController(SdramTiming(1_000_000), 25, 128),
     "refresh_cycles of timing must be at least 17 for beats of 128 bits, not 7"),
    (lambda: SdramMemory(12, 16), "data_bits must be at least 32, not 16"),
    (lambda: SdramMemory(4, 128), "address_bits must be from 5 to 64, not 4"),
    (lambda: SerialHost(4, 26, 128, SLOW), "address_bits must be from 2 to 25, not 26"),
    (lambda: SerialSystem(replace(FPGA, hbm_bytes=64 << 20), 4, SLOW),
     "hbm_bytes must be at most 33554432 with an SDRAM, not 67108864"),
    (lambda: Board(FPGA, 50_000_000, 1_000_000, sdram=True),
     "clock_hz must be at most 40000000 with an SDRAM, not 50000000")])
def test_wrong_sizes_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
