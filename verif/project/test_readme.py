"""The README's Python sessions run as they are printed."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_sessions_run(capsys: pytest.CaptureFixture[str]) -> None:
    matmul, _, training = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(matmul, {})
    assert "mxu_active_cycles" in capsys.readouterr().out
    exec(training, {})
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)


def test_fits_on_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_settings_are_those_that_the_code_reads() -> None:
    texts = [path.read_text(encoding="utf-8") for folder in ("hdl", "sim")
             for path in (ROOT / folder).rglob("*.py")]
    read = {name for text in texts
            for name in re.findall(r"environ[^\n]*\"(SYSTOLITH_\w+)\"", text)}
    described = {name for text in texts
                 for name in re.findall(r"^``(SYSTOLITH_\w+)``$", text, re.MULTILINE)}
    named = set(re.findall(r"`(SYSTOLITH_\w+)`", README))
    assert named == read == described
