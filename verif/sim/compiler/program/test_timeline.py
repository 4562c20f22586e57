"""The waits that are predicted for changed loads are those of a prediction from the start."""

from dataclasses import replace

import numpy as np
import pytest

from hdl.config import Config
from sim.compiler.program.code.segments import Load
from sim.compiler.program.compiled import KernelRecord
from sim.compiler.program.launch.records import Records
from sim.compiler.program.launch.timeline import Timeline
from sim.compiler.program.places.clock import Event

CONFIG = Config.preset("tiny")


def random_program(rng: np.random.Generator, segments: int, size: int
                   ) -> tuple[list[tuple[int, KernelRecord]], list[Event], list[Load]]:
    """Kernels, events and loads of a program of ``segments`` segments of ``size`` bundles."""
    end, kernels, events, started = segments * size, [], [], 0
    for first in range(0, end, 25):
        kernels.append((first, KernelRecord("add", None, 20, int(rng.integers(200)), 0, 0, 0)))
    for bundle in np.sort(rng.integers(0, end + 1, 4 * segments)).tolist():
        if started and rng.random() < 0.4:
            events.append(Event(bundle, number=int(rng.integers(1, started + 1))))
        else:
            transfers = int(rng.integers(1, 4))
            events.append(Event(bundle, int(rng.integers(1, 900)), transfers))
            started += transfers
    loads = []
    for number in range(segments - 1):
        ahead = bool(rng.random() < 0.8)
        stop = (number + 1) * size
        bundle = int(rng.integers(number * size, stop + 1)) if ahead else stop
        loads.append(Load(bundle, int(rng.integers(1, 60)), ahead, stop))
    return kernels, events, loads


@pytest.mark.parametrize("seed", range(3))
def test_changes_of_loads_are_predicted_from_where_they_differ(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernels, events, loads = random_program(rng, 12, 60)

    def total(changed: list[Load]) -> int:
        return sum(wait for _, _, wait in Timeline(CONFIG, kernels, events, changed).waits())

    records = Records(CONFIG, events)
    for first, record in kernels:
        records.add(record, first)
    found = set()
    for _ in range(60):
        number = int(rng.integers(len(loads)))
        place = int(rng.integers(loads[number].end - 60, loads[number].end + 1))
        before = total(loads)
        assert records.added(loads, number, None) == total(
            loads[:number] + loads[number + 1:]) - before
        if not loads[number].ahead:
            continue
        moved = [*loads]
        moved[number] = replace(loads[number], bundle=place)
        added = records.added(loads, number, place)
        assert added == total(moved) - before
        found.add(np.sign(added))
        if rng.random() < 0.5:
            loads = moved
    assert found == {-1, 0, 1}
    # Loads of other segments, as the code of another core may have.
    _, _, loads = random_program(rng, 12, 60)
    assert records.added(loads, 0, None) == total(loads[1:]) - total(loads)
    assert records.added(loads[:6], 0, None) == total(loads[1:6]) - total(loads[:6])
