"""What `make digits` runs, on the smallest array."""

import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sim.apps import digits, output
from sim.compiler.dense.layers import Dense
from sim.driver.device import Device


@pytest.fixture(scope="module")
def run() -> Any:
    """Runs the application; returns its report, and the results of the chip's dense layers."""
    seen = []
    dense = Device.dense

    def observed(self: Any, x: Any, layers: Sequence[Dense], **options: Any) -> Any:
        seen.append(dense(self, x, layers, **options))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Device, "dense", observed)
        result = digits.report("tiny")
    (outputs,) = seen
    return result, outputs


@pytest.mark.slow
def test_report_is_exact_and_as_accurate_as_float32(run: Any) -> None:
    (figures, data, predicted), outputs = run
    assert figures["bit_exact"] is True
    assert [output.shape for output in outputs] == [(449, digits.HIDDEN), (449, digits.CLASSES)]
    assert figures["test_images"] == len(data.test_labels) == len(predicted) == 449
    assert figures["accuracy"] == (predicted == data.test_labels).mean()
    assert figures["accuracy_float32"] > 0.95
    assert abs(figures["accuracy"] - figures["accuracy_float32"]) <= digits.TOLERANCE
    assert 0 < figures["mxu_utilisation"] <= figures["mxu_active"] <= 1
    assert all(core["mxu_active_cycles"] > 0 for core in figures["cores"])
    assert len(figures["cores"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("layer", [0, 1])
def test_a_wrong_bit_is_reported(run: Any, monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    _, outputs = run
    wrong = [output.copy() for output in outputs]
    wrong[layer].view(np.uint32)[123, 4] ^= 1
    monkeypatch.setattr(Device, "dense", lambda *arguments, **options: wrong)
    cores = run[0][0]["cores"]
    monkeypatch.setattr(Device, "last_run", property(lambda self: dict(enumerate(cores))))
    figures, _, _ = digits.report("tiny")
    assert figures["bit_exact"] is False


@pytest.mark.slow
def test_command_writes_the_report_and_the_picture(run: Any, monkeypatch: pytest.MonkeyPatch,
                                                   tmp_path: pathlib.Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["digits", "--config", "tiny"])
    monkeypatch.setattr(output, "build_folder", lambda: tmp_path)
    monkeypatch.setattr(digits, "report", lambda *arguments, **options: run[0])
    assert digits.main() == 0
    figures = json.loads((tmp_path / "digits.json").read_text())
    assert {"accuracy_float32", "accuracy", "bit_exact", "cycles", "mxu_utilisation",
            "cycles_per_second"} <= figures.keys()
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    assert "every bit as golden           yes" in capsys.readouterr().out


def test_trace_of_the_run_lies_beside_the_report(monkeypatch: pytest.MonkeyPatch,
                                                 tmp_path: pathlib.Path) -> None:
    class Opened(Exception):  # noqa: N818
        pass

    def opened(*arguments: str, trace: pathlib.Path, **options: Any) -> None:
        raise Opened(trace)

    monkeypatch.setattr(sys, "argv", ["digits", "--config", "tiny", "--trace"])
    monkeypatch.setattr(output, "build_folder", lambda: tmp_path)
    monkeypatch.setattr(Device, "open", opened)
    with pytest.raises(Opened) as caught:
        digits.main()
    assert caught.value.args == (tmp_path / "trace",)
