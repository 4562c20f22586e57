"""Random programs on the core in RTL and on the golden core, with the same state after each."""

import pathlib
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from golden.core import GoldenCore
from hdl import isa
from hdl.config import Config
from hdl.encoding import pack, unpack
from hdl.isa import Fault, MiscOp, PopOp, PushOp, ScalarOp, Slot, Unit, VectorOp
from sim.models.core import CoreModel
from verif.system import random_programs
from verif.system.programs.bundles import flush
from verif.system.programs.faults import BUNDLE_FAULTS
from verif.system.programs.generator import Generator
from verif.system.programs.schedule import schedule
from verif.system.random_programs import HALT, compare_random, differences, main, prepare, run_flush

# A push keeps its register for as many cycles as there are sublanes: only with many of them is one
# overwritten too soon that waits to be read.
EIGHT_SUBLANES = Config(array=8, sublanes=8, vmem_bytes=64 << 10, smem_words=256, imem_bundles=256,
                        mac_latency=5)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "kernels", "bundles", "length"), [
    pytest.param(Config.preset("tiny"), False, 2000, None, id="tiny-verilog"),
    pytest.param(EIGHT_SUBLANES, True, 4000, None, id="8-sublanes-5"),
    pytest.param(Config.preset("fpga"), False, 2000, None, id="fpga-verilog"),
    # Chains that share ports of the vector registers, and move more than one row.
    pytest.param(Config.preset("fpga", sublanes=2), True, 1500, None, id="fpga-2-sublanes"),
    pytest.param(Config.preset("small"), True, 1500, None, id="small"),
    pytest.param(Config.preset("v2"), True, 150, 50, id="v2"),
])
def test_every_bit_of_state_is_as_golden(config: Config, kernels: bool, bundles: int,
                                         length: int | None) -> None:
    with CoreModel(config, kernels=kernels) as core:
        outcome = compare_random(config, core, bundles, seed=bundles + 2, length=length)
    assert outcome.bundles >= bundles
    assert outcome.executed > outcome.bundles  # loops
    assert 0 < outcome.faults[Fault.NONE] < outcome.programs


@pytest.mark.slow
def test_random_programs_have_all_operations_faults_and_hosts() -> None:
    config = Config.preset("tiny")
    with CoreModel(config) as core:
        outcome = compare_random(config, core, 4500, seed=1, length=100)
    # A single core has neither DMA engine nor other core nor links.
    assert outcome.operations == {
        operation for operation in isa.OPERATIONS
        if operation.unit not in (Unit.DMA, Unit.OTHER_CORE, Unit.LINKS)}
    assert set(outcome.faults) == {Fault.NONE, *BUNDLE_FAULTS}
    assert sum(outcome.faults.values()) == outcome.programs
    assert min(outcome.stops, outcome.accesses, outcome.signals) >= 20


def goes_back(bundle: int, address: int) -> bool:
    """Whether a bundle at this address has a conditional branch to itself or an earlier bundle."""
    slots, imm, _ = unpack(bundle)
    op, number = slots[Slot.S1]["op"], slots[Slot.S1]["d"]
    return ScalarOp.BEQ <= op <= ScalarOp.BGEU and number < len(imm) and imm[number] <= address


def test_every_fault_is_made_in_its_turn() -> None:
    golden = GoldenCore(Config.preset("tiny"))
    golden.semaphores[:] = 5000
    generator = Generator(golden, np.random.default_rng(11))
    faults: Counter[Fault] = Counter()
    used: list[int] = []
    back = 0
    for _ in range(45):
        bundles = generator.program(30, fault=True).bundles
        faults[golden.fault] += 1
        if golden.pc < len(bundles):
            slots = unpack(bundles[golden.pc])[0].values()
            used.append(sum(fields["op"] > 0 for fields in slots))
        back += sum(goes_back(bundle, address) for address, bundle in enumerate(bundles))
    assert min(faults[fault] for fault in BUNDLE_FAULTS) >= 2, faults
    assert np.mean(used) > 5  # of 9 slots
    assert back >= 5


def test_waits_of_random_programs_are_for_the_host_to_end() -> None:
    golden = GoldenCore(Config.preset("tiny"))
    golden.semaphores[:] = 5000
    generator = Generator(golden, np.random.default_rng(12), signals=True)
    programs = [generator.program(80, fault=False, busy_halt=True) for _ in range(8)]
    assert sum(len(program.signals) for program in programs) >= 4
    # Without such a host no program waits.
    generator = Generator(golden, np.random.default_rng(13))
    programs = [generator.program(80, fault=False, busy_halt=True) for _ in range(8)]
    assert not any(program.signals for program in programs)
    assert any(operation.name == "wait" for program in programs
               for operation in program.operations)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_schedules_of_a_sequence_give_one_state(seed: int) -> None:
    config = Config.preset("tiny")
    rng = np.random.default_rng(seed)
    with CoreModel(config) as core:
        golden = GoldenCore(config)
        prepare(golden, core, np.random.default_rng(seed))
        sequence = Generator(golden, rng).sequence(150)
        expected = golden.read_state(array=False)
        schedules = [sequence, *(schedule(sequence, config, rng, slack)
                                 for slack in (0.0, 0.0, 0.2, 0.5))]
        assert len({len(bundles) for bundles in schedules}) > 2
        assert len(schedules[1]) < 100  # operations share bundles
        for bundles in schedules:
            again = GoldenCore(config)
            core.reset()
            prepare(again, core, np.random.default_rng(seed))
            for target in (again, core):
                target.load_program([*bundles, HALT])
                target.start(0)
                target.run(100_000)
            for state in (again.read_state(array=False), core.read_state()):
                assert not state["fault"], f"seed {seed}: {state['fault']!r} at {state['pc']}"
                assert state["pc"] == len(bundles), f"seed {seed}"
                assert not differences(expected | {"pc": state["pc"]}, state), f"seed {seed}"


def test_a_difference_is_found_and_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(random_programs, "build_folder", lambda: tmp_path)
    load = CoreModel.load_program

    def wrong(core: CoreModel, bundles: Sequence[int], at: int = 0) -> None:
        """Loads the program with subtractions in place of additions."""
        fixed = []
        for bundle in bundles:
            slots, imm, reserved = unpack(bundle)
            if slots[Slot.V0]["op"] == VectorOp.ADD and not reserved:
                slots[Slot.V0]["op"] = VectorOp.SUB
                fixed.append(pack(slots, imm))
            else:
                fixed.append(bundle)
        load(core, fixed, at)

    monkeypatch.setattr(CoreModel, "load_program", wrong)
    assert main(["tiny", "--bundles", "2000", "--seed", "3"]) == 1
    message = capsys.readouterr().err
    assert "seed 3, program" in message
    assert re.search(r"(vectors|vmem|masks)\[\d.*\]: 0x[0-9a-f]+, not 0x[0-9a-f]+", message)
    [listing] = (tmp_path / "random").iterdir()
    assert listing.name in message
    assert "v0.add" in listing.read_text()


def test_a_hang_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(random_programs, "build_folder", lambda: tmp_path)
    limits = iter([10_000] * 3)
    monkeypatch.setattr(random_programs, "_limit", lambda config, executed: next(limits, 20))
    assert main(["tiny", "--bundles", "5000", "--seed", "4"]) == 1
    message = capsys.readouterr().err
    assert re.search(r"seed 4, program \d+ \(.*\): the core is not at rest after 20 cycles: "
                     r"it is at bundle \d+", message)
    [listing] = (tmp_path / "random").iterdir()
    assert listing.name in message
    assert "v0.add" in listing.read_text()


def test_a_wait_without_its_signal_is_reported(monkeypatch: pytest.MonkeyPatch,
                                               tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(random_programs, "build_folder", lambda: tmp_path)
    signal = CoreModel.signal
    monkeypatch.setattr(CoreModel, "signal", lambda core, index, amount: signal(core, index, 0))
    config = Config.preset("tiny")
    with CoreModel(config) as core, pytest.raises(
            AssertionError, match=r"seed 5, program \d+ .*waits for a semaphore at bundle \d+"):
        compare_random(config, core, 2000, seed=5)


PUSH_WEIGHTS = pack({Slot.PUSH: {"op": PushOp.WEIGHTS, "a": 4}})
SWAP = pack({Slot.PUSH: {"op": PushOp.ROWS_SWAP, "a": 5}})
POP = pack({Slot.POP: {"op": PopOp.POP, "d": 31}})
TRANSPOSE = pack({Slot.MISC: {"op": MiscOp.TRANSPOSE_IN, "a": 6,
                              "b": isa.INLINE_BASE + 1}})


@pytest.mark.parametrize(("same", "different"), [
    ([], [TRANSPOSE]),
    ([], [PUSH_WEIGHTS]),
    ([PUSH_WEIGHTS] * 2, [SWAP, POP]),
    ([PUSH_WEIGHTS] * 2 + [SWAP], [POP]),
], ids=["transposer", "next-weights", "weights", "results"])
def test_a_flush_shows_what_cannot_be_read(same: Sequence[int], different: Sequence[int]) -> None:
    config = Config.preset("tiny")
    with CoreModel(config) as core:
        for more in [different[:0], different]:
            golden = GoldenCore(config)
            core.reset()
            prepare(golden, core, np.random.default_rng(20))
            for processor, bundles in ((golden, same), (core, [*same, *more])):
                processor.load_program([*bundles, HALT])
                processor.start()
                processor.run(10_000)
            vectors, expected = core.read_vectors(), golden.vectors
            assert np.array_equal(vectors[:31], expected[:31])  # the host sees almost no effect
            wrong = run_flush(golden, core)
            assert bool(wrong) == bool(more), wrong


def test_a_flush_leaves_an_empty_array() -> None:
    golden = GoldenCore(Config.preset("tiny"))
    golden.semaphores[:] = 5000
    generator = Generator(golden, np.random.default_rng(21))
    held = set()
    for number in range(16):
        generator.program(40, fault=number % 2 > 0)
        held.add(golden.held)
        bundles = flush(golden)
        golden.load_program([*bundles, HALT])
        golden.start()
        golden.run(1000)
        assert (golden.fault, golden.pc) == (Fault.NONE, len(bundles))
        assert (golden.held, golden.loaded, golden.active) == (0, 0, True)
    assert len(held) > 2


def test_bad_number_of_bundles_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tiny", "--bundles", "0"])
    assert "--bundles must be at least 1, not 0" in capsys.readouterr().err
