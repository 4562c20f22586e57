"""What the README shows can be typed in, and what it names exists."""

import pathlib
import re
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_sessions_run(capsys):
    matmul, program = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(matmul, {})
    assert "mxu_active_cycles" in capsys.readouterr().out
    names: dict[str, Any] = {}
    exec(program, names)
    norms = (names["x"].astype(np.float64) ** 2).sum(axis=-1).ravel()
    assert np.allclose(names["norms"], norms, rtol=1e-6)
    assert "mxu_active_cycles" in capsys.readouterr().out


def test_linked_files_and_make_targets_exist():
    for path in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)[` ]", README))
    assert len(named) > 5
    assert named <= targets


def test_pages_have_no_gaps_left_to_fill():
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"\b(?:TODO|TBD|FIXME|XXX)\b|\?\?\?|@[A-Z]+@", text), path.name
