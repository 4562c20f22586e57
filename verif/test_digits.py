"""What `make sim` runs, on the smallest array."""

import json
import sys

import numpy as np
import pytest

from sim import digits
from sim.device import Device


def test_report_is_exact_and_as_accurate_as_float32():
    figures, data, predicted = digits.report("tiny")
    assert figures["bit_exact"] is True
    assert figures["test_images"] == len(data.test_labels) == len(predicted) == 449
    assert figures["accuracy"] == (predicted == data.test_labels).mean()
    assert figures["accuracy_float32"] > 0.95
    assert abs(figures["accuracy"] - figures["accuracy_float32"]) <= digits.TOLERANCE
    assert 0 < figures["mxu_utilisation"] <= figures["mxu_active"] <= 1


def test_a_wrong_bit_in_a_hidden_product_is_reported(monkeypatch):
    original = Device.matmul

    def wrong(self, a, b, **options):
        result = original(self, a, b, **options)
        if self.backend == "rtl" and b.shape[1] == digits.HIDDEN:
            # One that ReLU hides: still negative, so that the second product is as expected.
            row, column = np.argwhere(result < -3)[0]
            result[row, column] *= np.float32(1.5)
        return result

    monkeypatch.setattr(Device, "matmul", wrong)
    figures, _, _ = digits.report("tiny")
    assert figures["bit_exact"] is False


def test_command_writes_the_report_and_the_picture(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["digits", "--config", "tiny"])
    monkeypatch.setattr(digits, "build_folder", lambda: tmp_path)
    assert digits.main() == 0
    figures = json.loads((tmp_path / "report.json").read_text())
    assert {"accuracy_float32", "accuracy", "bit_exact", "cycles", "mxu_utilisation",
            "cycles_per_second"} <= figures.keys()
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    assert "every bit as golden           yes" in capsys.readouterr().out


def test_trace_of_the_run_lies_beside_the_report(monkeypatch, tmp_path):
    class Opened(Exception):  # noqa: N818
        pass

    def opened(*arguments, trace, **options):
        raise Opened(trace)

    monkeypatch.setattr(sys, "argv", ["digits", "--config", "tiny", "--trace"])
    monkeypatch.setattr(digits, "build_folder", lambda: tmp_path)
    monkeypatch.setattr(Device, "open", opened)
    with pytest.raises(Opened) as caught:
        digits.main()
    assert caught.value.args == (tmp_path / "trace",)
