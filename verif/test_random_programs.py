"""Random programs on the core in RTL and on the golden machine, with the same state after each."""

import re

import numpy as np
import pytest

from golden.machine import Machine
from hdl import isa
from hdl.config import Config
from hdl.isa import ScalarOp, Slot, VectorOp
from sim.core import CoreModel
from verif import random_programs
from verif.programs import Generator, schedule
from verif.random_programs import compare_random, differences, main, prepare

HALT = isa.pack({Slot.S1: {"op": ScalarOp.HALT}})


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "mac_latency", "kernels", "bundles", "length"), [
    ("tiny", 2, True, 8000, None),
    ("tiny", 2, False, 3000, None),
    ("tiny", 5, False, 1000, None),
    ("small", 2, True, 3000, None),
    ("v2", 2, True, 300, 50),
])
def test_every_bit_of_state_is_as_golden(preset, mac_latency, kernels, bundles, length):
    config = Config.preset(preset, mac_latency=mac_latency)
    with CoreModel(config, kernels=kernels) as core:
        counts = compare_random(config, core, bundles, seed=bundles + mac_latency, length=length)
    assert counts["bundles"] >= bundles
    assert counts["executed"] > counts["bundles"]  # loops
    assert 0 < counts["NONE"] < counts["programs"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_schedules_of_a_sequence_give_one_state(seed):
    config = Config.preset("tiny")
    rng = np.random.default_rng(seed)
    with CoreModel(config) as core:
        golden = Machine(config)
        prepare(golden, core, np.random.default_rng(seed))
        sequence = Generator(golden, rng).sequence(150)
        expected = golden.read_state(array=False)
        schedules = [sequence, *(schedule(sequence, config, rng, slack)
                                 for slack in (0.0, 0.0, 0.2, 0.5))]
        assert len({len(bundles) for bundles in schedules}) > 2
        assert len(schedules[1]) < 100  # operations share bundles
        for bundles in schedules:
            machine = Machine(config)
            core.reset()
            prepare(machine, core, np.random.default_rng(seed))
            for target in (machine, core):
                target.load_program([*bundles, HALT])
                target.start(0)
                target.run(100_000)
            for state in (machine.read_state(array=False), core.read_state()):
                assert not state["fault"], f"seed {seed}: {state['fault']!r} at {state['pc']}"
                assert state["pc"] == len(bundles), f"seed {seed}"
                assert not differences(expected | {"pc": state["pc"]}, state), f"seed {seed}"


def test_a_difference_is_found_and_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(random_programs, "build_folder", lambda: tmp_path)
    load = CoreModel.load_program

    def wrong(core, bundles, at=0):
        """Subtracts where the program adds."""
        fixed = []
        for bundle in bundles:
            slots, imm, reserved = isa.unpack(bundle)
            if slots[Slot.V0]["op"] == VectorOp.ADD and not reserved:
                slots[Slot.V0]["op"] = VectorOp.SUB
                fixed.append(isa.pack(slots, imm))
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


def test_bad_number_of_bundles_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["tiny", "--bundles", "0"])
    assert "--bundles must be at least 1, not 0" in capsys.readouterr().err
