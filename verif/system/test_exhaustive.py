"""A small part of the exhaustive run; the recorded result belongs to the present cell."""

import json
import pathlib
import sys

import pytest

from hdl.config import Config
from verif.system import exhaustive

RECORD = pathlib.Path(__file__).resolve().parents[2] / "docs" / "verification.md"


def test_recorded_run_is_about_this_cell() -> None:
    assert f"`{exhaustive.cell_digest(Config())}`" in RECORD.read_text(encoding="utf-8"), (
        "the cell has changed: run `make exhaustive` and record it")


@pytest.mark.slow
@pytest.mark.parametrize("mac_latency", [2, 5])
def test_a_short_run_matches_golden(mac_latency: int, monkeypatch: pytest.MonkeyPatch,
                                    tmp_path: pathlib.Path,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(exhaustive, "build_folder", lambda: tmp_path)
    monkeypatch.setattr(sys, "argv", [
        "exhaustive", "--weights", "8", "--sums", "1000", "--mac-latency", str(mac_latency)])
    assert exhaustive.main() == 0
    result = json.loads((tmp_path / "exhaustive.json").read_text())
    assert result["products"] == 8 << 16
    assert result["sums"] >= 1000
    assert result["mismatches"] == 0
    assert "every bit as golden" in capsys.readouterr().out
