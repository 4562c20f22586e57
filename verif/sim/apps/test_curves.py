"""The comparison of model-parallel training with training on one core."""

import json
import pathlib
import sys

import pytest

pytest.importorskip("jax")

from tools import curves
from tools.curves import TOLERANCE, Curve, difference


def test_command_compares_the_losses_of_one_core_and_of_four(
        monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["curves", "--config", "tiny", "--steps", "2", "--batch", "4"])
    monkeypatch.setattr(curves, "build_folder", lambda: tmp_path)
    assert curves.main() == 0
    lines = capsys.readouterr().out.splitlines()
    one, four = json.loads((tmp_path / "curves.json").read_text())
    assert (one["cores"], four["cores"]) == (1, 4)
    assert 1 < four["losses"][0] == pytest.approx(one["losses"][0], rel=TOLERANCE)
    assert four["losses"][0] != four["losses"][1]
    assert 0 < four["cycles"] != one["cycles"] > 0
    assert lines[0] == "perceptron 16-24-16-10, batch 4"
    assert lines[3].split()[:3] == ["1", *(f"{curve['losses'][1]:.5f}" for curve in (one, four))]


def test_a_loss_that_differs_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    found = {1: Curve(1, [2.0, 1.0], 5, 0), 4: Curve(4, [2.0, 0.99], 5, 0)}
    assert difference(found[1], found[4]) == pytest.approx(0.01)
    monkeypatch.setattr(sys, "argv", ["curves", "--config", "tiny", "--steps", "2"])
    monkeypatch.setattr(curves, "build_folder", lambda: tmp_path)
    monkeypatch.setattr(curves, "trained", lambda cores, *_: found[cores])
    assert curves.main() == 1


@pytest.mark.parametrize("option", ["steps", "batch"])
def test_wrong_arguments_are_named(option: str, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["curves", f"--{option}", "0"])
    with pytest.raises(SystemExit):
        curves.main()
    assert f"--{option} must be at least 1, not 0" in capsys.readouterr().err
