"""The simulated chip: its host interface, and its cores and transfers against the golden chip."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from golden.chip import ChipRun, GoldenChip
from golden.dma import Descriptor
from golden.numerics import bits, to_bf16
from hdl import isa
from hdl.axi.interface import Resp
from hdl.chip.registers import IDENTITY, address, parameters
from hdl.config import Config
from hdl.core.interface import Space
from hdl.dma.format import DESCRIPTOR_WORDS, DmaSpace
from hdl.encoding import bundle_words
from hdl.isa import Fault
from sim.asm.descriptor import descriptor, hbm, imem, other_vmem, smem, vmem
from sim.asm.operands import sem
from sim.asm.text import assemble
from sim.models.chip import (
    ChipModel,
    DescriptorError,
    RegisterError,
    Until,
    chip_library,
    staging_rows,
)
from sim.models.hbm import HbmOptions
from verif.hdl.dma.engine import Job, Transfers
from verif.hdl.test_isa import example
from verif.system.programs.streams import STREAM_ROWS, STREAMS, streaming

TINY = Config.preset("tiny")
CHIPS = [pytest.param(TINY, id="tiny"),
         pytest.param(Config.preset("small"), id="small", marks=pytest.mark.slow)]
"""Chips whose cores have one memory channel, and two."""
ROW = TINY.row_bytes
SLVERR, DECERR = 2, 3
LIMIT = 100_000
STALLS = [HbmOptions(latency=1), HbmOptions(latency=17, stalls=20_000, seed=5),
          HbmOptions(latency=3, beats=1, cycles=3, outstanding=1, stalls=45_000, seed=6)]
SPIN = "{ s0.add s1, s0, 100 } again: { s1.loop s1, again } { s1.halt }"


@pytest.fixture
def chip() -> Iterator[ChipModel]:
    with ChipModel(TINY) as model:
        yield model


@dataclass
class Core:
    """Initial state of a core: program, descriptors by address, scalar registers."""

    text: str = "{ s1.halt }"
    descriptors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    scalars: dict[int, int] = field(default_factory=dict)


class Pair:
    """A simulated chip and a golden chip whose memories have the same contents."""

    def __init__(self, model: ChipModel, cores: Sequence[Core], seed: int,
                 hbm_rows: NDArray[np.uint32] | None = None) -> None:
        config = model.config
        self.model, self.golden, self.seed = model, GoldenChip(config), seed
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, 1 << 32, model.hbm.shape, np.uint32)
        if hbm_rows is not None:
            rows[:len(hbm_rows)] = hbm_rows
        model.hbm[:] = self.golden.hbm[:] = rows
        for number, (core, golden) in enumerate(zip(cores, self.golden.cores, strict=True)):
            golden.vmem[:] = rng.integers(0, 1 << 32, golden.vmem.shape, np.uint32)
            for place, words in core.descriptors.items():
                golden.smem[place:place + len(words)] = words
            for register, value in core.scalars.items():
                golden.scalars[register] = value
            program = assemble(core.text, config).bundles
            golden.load_program(program)
            model.load_program(number, program)
            model.write_vmem(number, 0, golden.vmem)
            model.write_smem(number, 0, golden.smem)
            model.write_words(number, Space.SCALAR, 0, golden.scalars)
        np.testing.assert_array_equal(model.hbm, rows)

    def run(self, turn: int = 1) -> ChipRun:
        for number, golden in enumerate(self.golden.cores):
            golden.start()
            self.model.start(number)
        result = self.golden.run(LIMIT, turn)
        self.model.run(LIMIT)
        return result

    def compare(self) -> None:
        np.testing.assert_array_equal(self.model.hbm, self.golden.hbm,
                                      err_msg=f"HBM, seed {self.seed}")
        for number, golden in enumerate(self.golden.cores):
            got, expected = self.model.state(number), golden.read_state(array=False)
            assert got.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_array_equal(
                    got[name], value, err_msg=f"{name} of core {number}, seed {self.seed}")
        np.testing.assert_array_equal(self.model.hbm, self.golden.hbm,
                                      err_msg="HBM after reading the cores")


# Registers


def test_registers_are_read_and_written_by_name(chip: ChipModel) -> None:
    assert chip.read("ID") == IDENTITY
    for name, value in parameters(TINY).items():
        assert chip.read(name) == value
    chip.write("START_PC", 0x12345678, core=1)
    assert (chip.read("START_PC", core=0), chip.read("START_PC", core=1)) == (0, 0x12345678)
    chip.write("INTERRUPT_ENABLE", CORE1_FAULT=1)
    assert chip.read_fields("INTERRUPT_ENABLE")["CORE1_FAULT"] == 1
    assert chip.read("INTERRUPT_ENABLE") == 1 << 9
    status = chip.read_fields("STATUS", core=0)
    assert status == chip.status(0)
    assert status["IDLE"]
    assert not status["RUNNING"]


def test_a_refused_access_names_its_register(chip: ChipModel) -> None:
    with pytest.raises(RegisterError, match=r"write of 0x1 to ID of the chip was refused \(SLVERR"):
        chip.write("ID", 1)
    with pytest.raises(RegisterError, match="read of CONTROL of core 1 was refused") as raised:
        chip.read("CONTROL", core=1)
    assert (raised.value.address, raised.value.write) == (address("CONTROL", 1), False)
    assert raised.value.response is Resp.SLVERR
    with pytest.raises(RegisterError, match="read of address 0x3000 was refused"):
        chip.read_address(0x3000)
    with pytest.raises(RegisterError, match="write of 0x1 to address 0xffc was refused"):
        chip.write_address(0xFFC, 1)
    # The words after the refused one are not written.
    with pytest.raises(RegisterError, match="write of 0x7 to ACCESS_DATA of core 0"):
        chip.write_words(0, Space.SMEM, TINY.smem_words - 1, [6, 7, 8])
    assert chip.read_smem(0, TINY.smem_words - 1, 1).tolist() == [6]
    assert chip.read("ID") == IDENTITY


def test_wrong_arguments(chip: ChipModel) -> None:
    with pytest.raises(KeyError, match="register must be one of the chip, not 'STATUS'"):
        chip.read("STATUS")
    with pytest.raises(KeyError, match="register must be one of a core, not 'ID'"):
        chip.read("ID", core=0)
    with pytest.raises(ValueError, match="core must be from 0 to 1, not 2"):
        chip.read("STATUS", core=2)
    with pytest.raises(TypeError, match="CONTROL must be given either a value or fields"):
        chip.write("CONTROL", core=0)
    with pytest.raises(ValueError, match="value must be from 0 to 4294967295"):
        chip.write("START_PC", 1 << 32, core=0)
    with pytest.raises(ValueError, match="program must lie within 0 to 511, not from 511 to 512"):
        chip.load_program(0, [0, 0], 511)
    with pytest.raises(ValueError, match="max_cycles must be a number if until is NEVER"):
        chip.run(until=Until.NEVER)
    with pytest.raises(ValueError, match="words must lie within 0 to 255, not from 255 to 256"):
        chip.write_smem(0, 255, [1, 2])
    with pytest.raises(TypeError, match="words must be a list of integers"):
        chip.write_smem(0, 0, [0.5])
    with pytest.raises(TypeError, match=r"vectors must be uint32 of shape \(count, 2, 4\), not"):
        chip.write_vmem(0, 0, np.zeros((1, 2, 4), np.float32))
    with pytest.raises(ValueError, match="descriptor must have 10 words, not 9"):
        chip.start_transfer(0, [0] * 9)
    with pytest.raises(ValueError, match="vectors must lie within 0 to 255, not from 255 to 256"):
        chip.read_vmem(0, 255, 2)
    with pytest.raises(TypeError, match="config must be a Config, not 'tiny'"):
        ChipModel(cast(Any, "tiny"))
    with pytest.raises(TypeError, match="memory must be HbmOptions or None, not 7"):
        ChipModel(TINY, memory=cast(Any, 7))
    with pytest.raises(ValueError, match="hbm_channels must not be 8"):
        ChipModel(Config.preset("tiny", hbm_channels=8))


# Runs


def test_a_program_is_loaded_run_and_counted(chip: ChipModel) -> None:
    program = assemble("{ } { } { }" + SPIN)
    chip.load_program(1, program[3:], at=3)
    assert not chip.hbm.any()
    before = chip.read("INTERRUPT_STATUS")
    chip.clear_counters(1)
    chip.start(1, 3)
    cycles = chip.run(LIMIT)
    assert 100 < cycles < 130
    assert (chip.pc(1), chip.fault(1), chip.running(1)) == (5, Fault.NONE, False)
    counters = chip.counters(1)
    assert 101 < counters["cycles"] == sum(counters.values()) - counters["cycles"]
    assert chip.read("INTERRUPT_STATUS") & ~before == 1 << 8
    # Nothing moves: `run` returns as soon as it is sure of that.
    assert chip.run(LIMIT) < 10
    bundles = chip.read_words(1, Space.IMEM, 3 * isa.BUNDLE_PITCH, 3 * isa.BUNDLE_WORDS)
    np.testing.assert_array_equal(bundles.reshape(3, -1), program.words()[3:])


@pytest.mark.parametrize("rows", [4, 12, 100])
def test_data_pass_through_few_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Programs and memory contents pass in pieces; all other contents of HBM stay unchanged."""
    monkeypatch.setattr("sim.models.chip.transfers.STAGING_ROWS", rows)
    rng = np.random.default_rng(rows)
    with ChipModel(TINY) as chip:
        kept = rng.integers(0, 1 << 32, chip.hbm.shape, np.uint32)
        chip.hbm[:] = kept
        chip.memory.configure(HbmOptions(latency=3, stalls=9000, seed=rows))
        programs = [[int.from_bytes(rng.bytes(36), "little") for _ in range(40)] for _ in range(2)]
        vectors = rng.integers(0, 1 << 32, (21, 2, 4), np.uint32)
        chip.load_programs(dict(enumerate(programs)))
        chip.load_programs({0: programs[1][:9], 1: programs[0][:1]}, 7)
        chip.write_vmem(1, 5, vectors)
        chip.write_smem(1, 0, kept[:64].ravel())
        for core, program in enumerate(programs):
            other = programs[1 - core][:(9, 1)[core]]
            program[7:7 + len(other)] = other
            words = chip.read_words(core, Space.IMEM, 0, 40 * isa.BUNDLE_WORDS)
            np.testing.assert_array_equal(words.reshape(40, -1),
                                          [bundle_words(bundle) for bundle in program])
        np.testing.assert_array_equal(chip.read_vmem(1, 5, 21), vectors)
        np.testing.assert_array_equal(chip.read_smem(1, 0, 256), kept[:64].ravel())
        np.testing.assert_array_equal(chip.hbm, kept)
        used = len(kept) - staging_rows(TINY)
        assert len(kept) - used == rows
        # Only the staging rows are used: an error elsewhere does not matter, one there does.
        chip.memory.fail(0, used * ROW, SLVERR)
        chip.load_programs(dict(enumerate(programs)))
        chip.memory.fail(used * ROW, ROW, SLVERR)
        with pytest.raises(RuntimeError, match="memory answered a transfer of core 0"):
            chip.load_program(0, programs[0])
        np.testing.assert_array_equal(chip.hbm, kept)


@pytest.mark.slow
def test_a_program_that_does_not_fill_rows_of_many_bundles() -> None:
    """Rows hold 8 bundles; those before and after the program in its rows stay unchanged."""
    rng = np.random.default_rng(64)
    memory = [0] * 64
    with ChipModel(Config.preset("v2")) as chip:
        for first, count in ((0, 64), (5, 7), (6, 8), (11, 13), (40, 24),
                             (63, 1), (9, 15), (0, 0)):
            program = [int.from_bytes(rng.bytes(36), "little") for _ in range(count)]
            memory[first:first + count] = program
            before = chip.cycle
            chip.load_programs({0: program, 1: program}, first)
            if count >= 8:
                assert chip.cycle - before < 600 + count
            for core in range(2):
                words = chip.read_words(core, Space.IMEM, 0, 64 * isa.BUNDLE_WORDS)
                np.testing.assert_array_equal(
                    words.reshape(64, -1), [bundle_words(bundle) for bundle in memory])


@pytest.mark.slow
@pytest.mark.parametrize("config", ["tiny", "small", "v2"])
def test_a_transfer_writes_a_bundle_or_a_narrower_row_a_cycle(config: str) -> None:
    """Two transfers of different lengths differ only in the cycles of their rows."""
    with ChipModel(Config.preset(config)) as chip:
        lanes = chip.config.lanes
        cycles_a_row = max(1, lanes // isa.BUNDLE_PITCH)
        chip.load_program(0, assemble(
            "{ misc.dma 0 } { misc.wait sem2, 1 } { s1.jump s6 } { s1.halt }").bundles)

        def waits(rows: NDArray[np.uint32], transfer: tuple[int, ...], following: int) -> int:
            """Load rows, continue at a bundle; return for how many cycles the program waits."""
            chip.hbm[:len(rows)] = rows
            chip.write_words(0, Space.SMEM, 0, transfer)
            chip.write_words(0, Space.SCALAR, 6, [following])
            before = chip.counters(0)["semaphore_wait_cycles"]
            chip.start(0)
            chip.run()
            return chip.counters(0)["semaphore_wait_cycles"] - before

        cycles = []
        for bundles in (24, 56):
            code = assemble("{ s0.add s1, s1, 3 }" * (bundles - 1) + "{ s1.halt }")
            chip.write_words(0, Space.SCALAR, 1, [0])
            rows = code.rows(chip.config)
            cycles.append(waits(rows, descriptor(chip.config, hbm(0), imem(64), rows=len(rows),
                                                 semaphore=sem[2]), 64))
            assert chip.read_words(0, Space.SCALAR, 1, 1) == [3 * (bundles - 1)]
        assert cycles[1] - cycles[0] == (32 * isa.BUNDLE_PITCH // lanes) * cycles_a_row
        cycles = []
        for count in (2, 13):
            words = np.arange(7, 7 + count * lanes, dtype=np.uint32)
            cycles.append(waits(words.reshape(-1, lanes), descriptor(
                chip.config, hbm(0), smem(17), rows=count, semaphore=sem[2]), 3))
            np.testing.assert_array_equal(chip.read_words(0, Space.SMEM, 17, len(words)), words)
        assert cycles[1] - cycles[0] == 11 * cycles_a_row


def test_what_ends_a_run(chip: ChipModel) -> None:
    chip.load_program(0, assemble("{ misc.wait sem1, 1 } { s1.halt }").bundles)
    chip.load_program(1, assemble(SPIN).bundles)
    chip.write("INTERRUPT_STATUS", chip.read("INTERRUPT_STATUS"))
    chip.write("INTERRUPT_ENABLE", CORE1_STOPPED=1)
    chip.start(0)
    chip.start(1)
    assert chip.run(5, until=Until.NEVER) == 5
    with pytest.raises(TimeoutError, match=r"no rest after 5 cycles: core 0 at bundle 0 "
                                           r"\(running, waiting, idle\); core 1 at bundle 1"):
        chip.run(5)
    seen: list[int] = []
    cycles = chip.run(until="interrupt", progress=seen.append)
    assert sum(seen) == cycles
    assert chip.interrupt
    assert not chip.running(1)
    assert chip.run(until="interrupt") == 0
    # Core 0 waits, which counts as rest unless it has a watchdog.
    assert chip.run() < 10
    assert chip.waiting(0)
    chip.set_watchdog(0, 5000)
    assert 4000 < chip.run() < 5000
    assert (chip.fault(0), chip.pc(0)) == (Fault.WATCHDOG, 0)
    chip.set_watchdog(0, 0)
    chip.start(0)
    chip.run()
    assert chip.waiting(0)
    chip.write("SEMAPHORE_ADD", core=0, INDEX=1, AMOUNT=1)
    chip.run()
    assert (chip.running(0), chip.fault(0)) == (False, Fault.NONE)


def test_an_interrupted_run_goes_on(chip: ChipModel) -> None:
    chip.load_program(0, assemble("{ s0.add s1, s0, 1000000 } a: { s1.loop s1, a } { s1.halt }")
                      .bundles)
    chip.start(0)

    def interrupt(cycles: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chip.run(progress=interrupt)
    assert chip.running(0)
    assert chip.cycle < 1_000_000
    with pytest.raises(RuntimeError, match="a program is running on core 0, at bundle 1: stop"):
        chip.state(0)
    chip.stop(0)
    chip.run()
    assert chip.state(0)["scalars"][1] > 0


@pytest.mark.parametrize("use", [
    lambda chip: chip.read_vmem(0, 0, TINY.vmem_vectors),
    lambda chip: chip.load_programs({0: [5] * 200, 1: [6] * 100})], ids=["vmem", "programs"])
def test_an_interrupted_transfer_leaves_memory_as_it_was(chip: ChipModel,
                                                         monkeypatch: pytest.MonkeyPatch,
                                                         use: Callable[..., Any]) -> None:
    chip.hbm[:] = 7
    run = chip.run

    def interrupt(*arguments: int, **options: Until) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(chip, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        use(chip)
    assert chip.run == run
    assert not chip.status(0)["DMA_BUSY"]
    run(500, until=Until.NEVER)
    assert (chip.hbm == 7).all()
    assert not chip.read_vmem(0, 0, TINY.vmem_vectors).any()


def test_models_do_not_disturb_each_other() -> None:
    with ChipModel(TINY) as one, ChipModel(TINY) as two:
        one.load_program(0, assemble(SPIN).bundles)
        one.start(0)
        assert two.run() < 10
        assert not two.running(0)
        one.hbm[5] = 7
        assert not two.hbm.any()
        one.run()
        assert one.cycle > two.cycle
        kept = two.hbm
    kept[0] = 1
    with pytest.raises(RuntimeError, match="is closed"):
        one.read("ID")
    one.close()


# Against the golden chip


@pytest.mark.parametrize("memory", STALLS, ids=lambda options: f"stalls{options.stalls}")
def test_the_example_of_the_manual(memory: HbmOptions) -> None:
    seed, blocks = 3, 7
    with ChipModel(TINY, memory=memory) as model:
        rng = np.random.default_rng(seed)
        rows = 4 * TINY.sublanes
        data = rng.normal(size=(2 * blocks * rows, TINY.lanes)).astype(np.float32)
        text = example("Example: two buffers")
        cores = []
        for number in range(2):
            first = number * blocks * rows
            places = [hbm((first + block * rows) * ROW) for block in range(2)]
            cores.append(Core(text, {
                0: descriptor(TINY, places[0], vmem(0), rows=rows, semaphore=sem[0]),
                16: descriptor(TINY, places[1], vmem(4), rows=rows, semaphore=sem[0]),
                32: descriptor(TINY, vmem(8), places[0], rows=rows, semaphore=sem[1]),
                48: descriptor(TINY, vmem(12), places[1], rows=rows, semaphore=sem[1]),
            }, {1: 2 * rows * ROW, 3: blocks}))
        pair = Pair(model, cores, seed, data.view(np.uint32))
        assert pair.run().done
        np.testing.assert_array_equal(model.hbm[:len(data)].view(np.float32), data + data)
        pair.compare()
        assert model.memory.counters["write_beats"] >= len(data)


PING_PONG = """
    { misc.signal sem6, %d | s0.add s1, s0, %d }
    again: { misc.wait sem6, 1 }
    { ld.load v1, s0, 9 }
    { v0.add v1, v1, 1 }
    { st.store v1, s0, 8 }
    { misc.dma 20 }
    { misc.wait sem7, 1 }
    { misc.signal_other sem3, 1 }
    { misc.dma 0 | s1.loop s1, again }
    { s1.halt }
"""
"""Program of both cores: a word goes back and forth; each core adds one, stores it and signals."""


@pytest.mark.parametrize("memory", STALLS[:2], ids=lambda options: f"stalls{options.stalls}")
def test_two_cores_exchange_words(memory: HbmOptions) -> None:
    rounds, rows = 9, TINY.sublanes
    # The first core has the word initially. Nothing waits for its last turn.
    cores = [Core(PING_PONG % (not core, rounds), {
        0: descriptor(TINY, vmem(8), other_vmem(9), rows=rows, other_semaphore=sem[6]),
        20: descriptor(TINY, vmem(8), hbm((64 + 6 * core) * ROW), rows=rows, semaphore=sem[7]),
    }) for core in range(2)]
    with ChipModel(TINY, memory=memory) as model:
        pair = Pair(model, cores, 4)
        start = pair.golden.cores[0].vmem[9].copy()
        result = pair.run()
        assert result.done, result
        pair.compare()
        last = start + np.uint32(2 * rounds)
        np.testing.assert_array_equal(model.read_vmem(1, 8, 1)[0], last)
        np.testing.assert_array_equal(model.hbm[70:70 + rows], last)
        assert model.state(1)["semaphores"][3] == rounds


MATMUL = """
    { misc.dma 0 }
    { misc.wait sem1, 1 }
    { ld.load v1, s0, 0 }
    { ld.load v2, s0, 1 }
    { push.weights v1 }
    { push.weights v2 }
    { misc.dma 16 }
    { misc.wait sem1, 1 }
    { ld.load v3, s0, 2 }
    { ld.load v4, s0, 3 }
    { push.rows_swap v3 }
    { push.rows v4 }
    { pop.pop v5 }
    { pop.pop v6 }
    { st.store v5, s0, 4 }
    { st.store v6, s0, 5 }
    { misc.dma 32 }
    { misc.wait sem1, 1 | s1.halt }
"""


@pytest.mark.parametrize("memory", STALLS, ids=lambda options: f"stalls{options.stalls}")
def test_a_product_with_weights_from_memory(memory: HbmOptions) -> None:
    seed = 8
    rng = np.random.default_rng(seed)
    size, rows = TINY.array, 4
    weights = rng.integers(-3, 4, (2, size, size)).astype(np.float32)
    activations = rng.integers(-3, 4, (2, rows, size)).astype(np.float32)
    data = np.concatenate([*weights, *activations]).view(np.uint32)
    cores = [Core(MATMUL, {
        0: descriptor(TINY, hbm(size * core * ROW), vmem(0), rows=size, semaphore=sem[1]),
        16: descriptor(TINY, hbm((2 * size + rows * core) * ROW), vmem(2), rows=rows,
                       semaphore=sem[1]),
        32: descriptor(TINY, vmem(4), hbm((100 + rows * core) * ROW), rows=rows,
                       semaphore=sem[1]),
    }) for core in range(2)]
    with ChipModel(TINY, memory=memory) as model:
        pair = Pair(model, cores, seed, data)
        assert pair.run().done
        pair.compare()
        assert (bits(to_bf16(weights)) != 0).any()
        result = model.hbm[100:100 + 2 * rows].view(np.float32).reshape(2, rows, size)
        # Sums of small integers are exact in any order.
        np.testing.assert_array_equal(result, activations @ weights)


def test_all_spaces_of_a_transfer() -> None:
    seed = 9
    text = """
        { misc.dma 0 } { misc.dma 16 } { misc.dma 32 } { misc.dma 48 }
        { misc.wait sem2, 4 }
        { misc.signal_other sem4, 2 }
        { misc.wait sem4, 2 | s1.jump 8 }
        { s1.halt }
        { s0.add s9, s0, 1 | s1.halt }
    """
    patch = assemble("{ } { s0.add s9, s0, 5 | s1.halt }")

    def core(number: int) -> Core:
        at = 200 + 100 * number
        return Core(text, {
            0: descriptor(TINY, smem(0), hbm(at * ROW), rows=16, semaphore=sem[2]),
            16: descriptor(TINY, hbm(8 * number * ROW, run=2, stride=4 * ROW), smem(128), rows=4,
                           semaphore=sem[2]),
            32: descriptor(TINY, hbm((at + 60) * ROW, run=3, stride=-7 * ROW),
                           other_vmem(40, run=2, stride=5), rows=12, semaphore=sem[2]),
            48: descriptor(TINY, hbm(64 * ROW), imem(7), rows=len(patch.rows(TINY)),
                           semaphore=sem[2])})

    with ChipModel(TINY, memory=STALLS[1]) as model:
        rows = np.zeros((64 + len(patch.rows(TINY)), TINY.lanes), np.uint32)
        rows[:64] = np.random.default_rng(seed).integers(0, 1 << 32, (64, TINY.lanes), np.uint32)
        rows[64:] = patch.rows(TINY)
        pair = Pair(model, [core(0), core(1)], seed, rows)
        assert pair.run().done
        assert pair.golden.cores[0].scalars[9] == 5
        pair.compare()


PHASES, TRANSFERS_AT_ONCE = 4, 3
BARRIER = 15
FIRST_FREE_BUNDLE = 150
Place = tuple[DmaSpace, int | None, int]
"""A space, its core, and an address."""
DESCRIPTORS = range(0, PHASES * TRANSFERS_AT_ONCE * DESCRIPTOR_WORDS, DESCRIPTOR_WORDS)


class Phases:
    """Random transfers of both cores, several at once; no two of a phase overlap.

    At the end of a phase both cores wait until all transfers of both are complete.
    """

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self.config, self.rng = config, rng
        self.transfers = Transfers(rng, config)
        self.cores = [Core(""), Core("")]
        self.pairs: set[tuple[int, int]] = set()
        for phase in range(PHASES):
            self.phase(phase)
        for core in self.cores:
            core.text += "{ s1.halt }"

    @staticmethod
    def touched(core: int, job: Job) -> list[set[tuple[DmaSpace, int | None, int]]]:
        """Addresses that a core's transfer reads, and addresses that it writes."""
        found = []
        for space, numbers in (job.reads, job.writes):
            place = {DmaSpace.HBM: (space, None),
                     DmaSpace.OTHER_VMEM: (DmaSpace.VMEM, 1 - core)}.get(space, (space, core))
            found.append({(*place, number) for number in numbers})
        return found

    def draw(self, core: int, reads: set[tuple[DmaSpace, int | None, int]],
             writes: set[tuple[DmaSpace, int | None, int]], last: bool) -> Descriptor:
        """A random transfer that writes none of these places, and reads none of ``writes``."""
        while True:
            made = self.transfers.good()
            made = replace(made, semaphore=made.semaphore % BARRIER,
                           signal=made.signal or (last and not made.signal_other))
            own = self.touched(core, Job.of(made, self.config))
            kept = any((space is DmaSpace.SMEM and number < DESCRIPTORS.stop)
                       or (space is DmaSpace.IMEM
                           and number < FIRST_FREE_BUNDLE * isa.BUNDLE_PITCH)
                       for space, _, number in own[1])
            if not (kept or own[1] & (own[0] | reads | writes) or own[0] & writes):
                reads |= own[0]
                writes |= own[1]
                self.pairs.add((made.source_space, made.destination_space))
                return made

    def phase(self, phase: int) -> None:
        reads: set[Place] = set()
        writes: set[Place] = set()
        awaited = np.zeros((2, BARRIER), int)
        starts = ["", ""]
        for number in range(TRANSFERS_AT_ONCE):
            for core in range(2):
                made = self.draw(core, reads, writes, number == TRANSFERS_AT_ONCE - 1)
                at = DESCRIPTORS[phase * TRANSFERS_AT_ONCE + number]
                self.cores[core].descriptors[at] = made.pack()
                awaited[core, made.semaphore] += made.signal
                awaited[1 - core, made.semaphore] += made.signal_other
                starts[core] += "{ }" * int(self.rng.choice([0, 0, 1, 8]))
                starts[core] += f"{{ misc.dma {at} }}"
        for program, start, counts in zip(self.cores, starts, awaited, strict=True):
            program.text += start
            program.text += "".join(f"{{ misc.wait sem{index}, {count} }}"
                                    for index, count in enumerate(counts) if count)
            program.text += f"{{ misc.signal_other sem{BARRIER}, 1 }}"
            program.text += f"{{ misc.wait sem{BARRIER}, 1 }}"


def check_random_transfers(config: Config, seed: int) -> None:
    rng = np.random.default_rng([31, seed])
    phases = Phases(config, rng)
    assert all(len(assemble(core.text)) <= FIRST_FREE_BUNDLE for core in phases.cores)
    with ChipModel(config, memory=HbmOptions(
            latency=int(rng.integers(1, 40)), stalls=int(rng.choice([0, 20_000, 50_000])),
            beats=int(rng.integers(2)), cycles=2, seed=seed)) as model:
        pair = Pair(model, phases.cores, seed)
        assert pair.run().done
        pair.compare()
        assert len(phases.pairs) > 5
        behind = config.imem_bundles - FIRST_FREE_BUNDLE
        for number, golden in enumerate(pair.golden.cores):
            words = model.read_words(number, Space.IMEM, FIRST_FREE_BUNDLE * isa.BUNDLE_PITCH,
                                     behind * isa.BUNDLE_WORDS).reshape(behind, -1)
            np.testing.assert_array_equal(words, [
                bundle_words(bundle) for bundle in golden.program[FIRST_FREE_BUNDLE:]])


@pytest.mark.parametrize("seed", range(12))
def test_random_transfers_of_both_cores(seed: int) -> None:
    check_random_transfers(TINY, seed)


@pytest.mark.slow
def test_random_transfers_over_several_channels() -> None:
    for seed in range(100, 106):
        check_random_transfers(Config.preset("small"), seed)


def streaming_core(config: Config, core: int, victim: int, *, reads: bool) -> Core:
    size = STREAM_ROWS * config.row_bytes
    text, made = streaming(config, core, victim,
                           [hbm((core * STREAMS + number) * size) for number in range(STREAMS)],
                           2 * STREAM_ROWS // config.sublanes, reads=reads)
    return Core(text, {number * DESCRIPTOR_WORDS: words for number, words in enumerate(made)})


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "writes"])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("config", CHIPS)
def test_neither_core_starves_at_one_vector_memory(config: Config, victim: int,
                                                   reads: bool) -> None:
    """Both engines saturate the victim's vector memory, which its program uses, too."""
    cores = [streaming_core(config, core, victim, reads=reads) for core in range(2)]
    with ChipModel(config, memory=STALLS[0]) as model:
        pair = Pair(model, cores, 12)
        for number, golden in enumerate(pair.golden.cores):
            golden.start()
            model.start(number)
        pair.golden.run(LIMIT, 1)
        begun = model.cycle
        ends: dict[int, int] = {}
        while len(ends) < 2:
            model.run(10, until=Until.NEVER)
            for core in {0, 1} - ends.keys():
                if not model.running(core):
                    ends[core] = model.cycle - begun
        # A vector memory takes or gives a row a cycle.
        assert max(ends.values()) >= 2 * STREAMS * STREAM_ROWS
        assert min(ends.values()) > 0.8 * max(ends.values()), ends
        pair.compare()


# Faults


def bad(words: Sequence[int], **changes: int) -> tuple[int, ...]:
    """The descriptor with some words changed."""
    changed = list(words)
    for name, value in changes.items():
        changed[int(name.removeprefix("word"))] = value
    return tuple(changed)


GOOD = descriptor(TINY, hbm(0), vmem(0), rows=4, semaphore=sem[1])


@pytest.mark.parametrize(("words", "fault"), [
    (bad(GOOD, word2=8), Fault.DMA_ALIGNMENT),
    (bad(GOOD, word1=3), Fault.DMA_ALIGNMENT),
    (bad(GOOD, word1=0), Fault.DMA_DESCRIPTOR),
    (bad(GOOD, word0=DmaSpace.IMEM), Fault.DMA_DESCRIPTOR),
    (bad(GOOD, word3=1), Fault.DMA_RANGE),
    (bad(GOOD, word6=TINY.vmem_vectors - 1), Fault.DMA_RANGE),
])
def test_wrong_descriptors_are_faults_of_program_and_host(chip: ChipModel, words: tuple[int, ...],
                                                          fault: Fault) -> None:
    pair = Pair(chip, [Core("{ s0.add s3, s0, 7 } { misc.dma 0 | s0.add s3, s0, 8 } { s1.halt }",
                            {0: words}), Core(SPIN)], 10)
    assert pair.run().faults == {0: fault}
    assert (chip.fault(0), chip.pc(0)) == (fault, 1)
    pair.compare()
    with pytest.raises(DescriptorError, match=f"core 1 refused the transfer: {fault.name}") as seen:
        chip.transfer(1, words)
    assert seen.value.fault is fault
    assert chip.fault(1) is Fault.NONE


@pytest.mark.parametrize("response", [SLVERR, DECERR])
@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize("config", CHIPS)
def test_memory_that_refuses(config: Config, way: str, response: int) -> None:
    rows, target, size = 24, 40, config.row_bytes
    ways = (hbm(target * size), vmem(0)) if way == "read" else (vmem(0), hbm(target * size))
    text = "{ misc.dma 0 } { misc.wait sem1, 1 } { s1.halt }"
    cores = [Core(text, {0: descriptor(config, *ways, rows=rows, semaphore=sem[1])}), Core(SPIN)]
    with ChipModel(config, memory=STALLS[1]) as model:
        pair = Pair(model, cores, 11)
        # The last channel of a row.
        model.memory.fail((target + 6) * size - config.channel_bytes, config.channel_bytes,
                          response)
        pair.run()
        assert (model.fault(0), model.fault(1)) == (Fault.BUS_ERROR, Fault.NONE)
        assert model.pc(0) == 1
        assert not model.status(0)["DMA_BUSY"]
        assert model.read_words(0, Space.SEMAPHORE, 1, 1).tolist() == [0]
        assert model.memory.counters["error_beats"]
        # The other core has finished its work, and this one works again.
        assert model.read_words(1, Space.SCALAR, 1, 1).tolist() == [0]
        model.memory.heal()
        model.hbm[:] = pair.golden.hbm
        model.write_vmem(0, 0, pair.golden.cores[0].vmem)
        model.start(0)
        model.run(LIMIT)
        pair.compare()


def test_a_transfer_of_the_host_that_memory_refuses(chip: ChipModel) -> None:
    chip.memory.fail(3 * ROW, ROW, SLVERR)
    with pytest.raises(RuntimeError, match="memory answered a transfer of core 1"):
        chip.transfer(1, descriptor(TINY, hbm(0), vmem(0), rows=8))
    # The core already has a fault; the next failure is reported as well.
    words = np.zeros((2, TINY.sublanes, TINY.lanes), np.uint32)
    program = assemble("{ s1.halt }").bundles * 5
    chip.memory.fail(0, chip.hbm.nbytes, SLVERR)
    for attempt in range(2):
        for core, access in ((1, lambda: chip.write_vmem(1, 0, words)),
                             (1, lambda: chip.read_vmem(1, 0, 1)),
                             (1, lambda: chip.read_smem(1, 0, 8)),
                             (1, lambda: chip.load_program(1, program)),
                             (0, lambda: chip.load_programs({0: program}))):
            with pytest.raises(RuntimeError, match=f"memory answered a transfer of core {core}"):
                access()
        assert chip.fault(1) is Fault.BUS_ERROR, attempt
    chip.memory.heal()
    chip.write_vmem(1, 0, words)
    assert not chip.read("INTERRUPT_STATUS") & 0x0C0C
    chip.reset_core(0)
    chip.reset_core(1)
    chip.hbm[:8] = 5
    chip.transfer(1, descriptor(TINY, hbm(0), vmem(0), rows=8))
    assert (chip.read_vmem(1, 0, 4) == 5).all()
    assert chip.fault(1) is Fault.NONE


def test_a_wait_that_never_ends(chip: ChipModel) -> None:
    chip.load_program(0, assemble("{ s0.add s1, s0, 3 } { misc.wait sem1, 1 } { s1.halt }").bundles)
    chip.set_watchdog(0, 50)
    chip.start(0)
    chip.run(LIMIT)
    assert (chip.fault(0), chip.pc(0)) == (Fault.WATCHDOG, 1)


def long_core(config: Config, core: int) -> Core:
    text = """
        { s0.add s1, s0, 4 }
        again: { misc.dma 0 } { misc.dma 16 } { misc.dma 32 }
        { misc.wait sem1, 3 | s1.loop s1, again }
        { s1.halt }
    """
    vectors, size = config.vmem_vectors, config.row_bytes
    rows = config.sublanes * vectors // 4
    at = 1000 + 4 * rows * core
    return Core(text, {
        0: descriptor(config, hbm(at * size), vmem(0), rows=rows, semaphore=sem[1]),
        16: descriptor(config, vmem(vectors // 2), hbm((at + rows) * size), rows=rows,
                       semaphore=sem[1]),
        32: descriptor(config, hbm((at + 2 * rows) * size), other_vmem(vectors * 3 // 4),
                       rows=rows, semaphore=sem[1])})


@pytest.mark.parametrize("cycles", [3, 40, 111, 260, 500])
@pytest.mark.parametrize("whole", [False, True], ids=["core", "chip"])
@pytest.mark.parametrize("config", CHIPS)
def test_a_reset_in_the_middle_then_a_good_run(config: Config, whole: bool, cycles: int) -> None:
    cores = [long_core(config, 0), long_core(config, 1)]
    with ChipModel(config, memory=STALLS[1]) as model:
        pair = Pair(model, cores, cycles)
        for core in range(2):
            model.start(core)
        model.run(cycles, until=Until.NEVER)
        assert model.running(0)
        if whole:
            model.reset()
        else:
            model.reset_core(0)
            assert model.running(1)
            assert model.memory.counters["read_beats"]
            model.run(LIMIT)
            model.reset_core(1)
        for core in range(2):
            assert model.state(core)["semaphores"].tolist() == [0] * isa.SEMAPHORES
            assert not model.status(core)["DMA_BUSY"]
        assert model.memory.idle
        pair = Pair(model, cores, cycles + 1)
        assert pair.run().done
        pair.compare()


def test_a_master_that_breaks_the_rules_is_named(chip: ChipModel) -> None:
    chip.memory.configure(HbmOptions(stalls=65_500))
    chip.start_transfer(1, descriptor(TINY, hbm(0), vmem(0), rows=8))
    chip.run(20, until=Until.NEVER)
    # A reset that memory does not see withdraws an offered address.
    chip.model.poke("rst", 1)
    with pytest.raises(RuntimeError,
                       match=r"memory channel 0 of core 1, cycle .*: ARVALID must stay"):
        chip.run(20, until=Until.NEVER)
    with pytest.raises(RuntimeError, match=r"the simulation has failed before: .* ARVALID"):
        chip.read("ID")


@pytest.mark.slow
def test_a_chip_of_one_core() -> None:
    # One of the chips of the driver's tests.
    config = Config.preset("tiny", cores=1, mac_latency=6)
    core = Core(MATMUL, {
        at: descriptor(config, *places, rows=4, semaphore=sem[1]) for at, places in (
            (0, (hbm(0), vmem(0))), (16, (hbm(4 * ROW), vmem(2))), (32, (vmem(4), hbm(9 * ROW))))})
    with ChipModel(config, memory=STALLS[1], library=chip_library(config, quick=True)) as model:
        assert model.read("CORES") == 1
        data = np.arange(8 * config.lanes, dtype=np.float32).reshape(8, -1)
        pair = Pair(model, [core], 12, data.view(np.uint32))
        assert pair.run().done
        pair.compare()
        np.testing.assert_array_equal(model.hbm[9:13].view(np.float32), data[4:] @ data[:4])
        with pytest.raises(ValueError, match="core must be from 0 to 0, not 1"):
            model.start(1)
        with pytest.raises(RegisterError, match="read of STATUS of core 1 was refused"):
            model.read_address(address("STATUS", 1))
        with pytest.raises(DescriptorError, match="DMA_DESCRIPTOR"):
            model.transfer(0, descriptor(TINY, hbm(0), other_vmem(0), rows=4))


@pytest.mark.slow
def test_kernels_change_nothing() -> None:
    """Pure Verilog and kernels, on one or two threads, reach the same state in equal cycles."""
    seen = []
    for kernels, threads in ((False, 1), (True, 1), (True, 2)):
        with ChipModel(TINY, kernels=kernels, memory=STALLS[1]) as model:
            model.model.use_threads(threads, least=0)
            pair = Pair(model, [long_core(TINY, 0), long_core(TINY, 1)], 21)
            assert pair.run().done
            pair.compare()
            seen.append((model.cycle, model.counters(0), model.memory.counters))
            assert bool(model.model.shared_work[0]) == (threads > 1)
    assert seen[0] == seen[1] == seen[2]
