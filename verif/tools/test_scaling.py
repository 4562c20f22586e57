"""The measurement of how training scales with the number of cores."""

import json
import pathlib

import pytest

pytest.importorskip("jax")

from hdl.config import Config
from tools import scaling
from tools.scaling import Point, efficiency, measured


def test_efficiency_compares_with_one_core_and_adds_sums_without_overlap() -> None:
    one, four = Point(1, 8, 900, 0, 2.0, 1.0), Point(4, 8, 1000, 300, 2.0, 1.0)
    assert efficiency(one, four) == (0.9, 0.75)
    assert efficiency(one, one) == (1, 1)


def test_loss_is_that_of_the_whole_batch_on_any_number_of_cores() -> None:
    """The test uses the golden backend, and so measures no cycles."""
    config = Config.preset("tiny")
    points = [measured(cores, batch, config, "golden") for cores, batch in ((1, 8), (2, 4), (4, 2))]
    assert [(point.cores, point.batch) for point in points] == [(1, 8), (2, 4), (4, 2)]
    assert {(point.cycles, point.sum_cycles) for point in points} == {(0, 0)}
    assert [point.loss for point in points] == pytest.approx([points[0].loss] * 3, rel=1e-3)


def test_command_writes_the_points(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    made = {1: Point(1, 8, 900, 0, 2.0, 1.0), 4: Point(4, 8, 1000, 300, 2.5, 1.0)}
    monkeypatch.setattr(scaling, "measured", lambda cores, batch, config: made[cores])
    monkeypatch.setattr(scaling, "build_folder", lambda: tmp_path)
    monkeypatch.setattr("sys.argv", ["scaling", "--batch", "8", "--cores", "1", "4"])
    assert scaling.main() == 0
    found = json.loads((tmp_path / "scaling-8.json").read_text(encoding="utf-8"))
    assert [Point(**item) for item in found] == [*made.values()]
    assert "4 cores (2x1 chips), 8 examples each: 1,000 cycles, efficiency 90.0%" in (
        capsys.readouterr().out)
