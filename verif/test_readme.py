"""What the README shows can be typed in, and what it names exists."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_first_session_runs(capsys):
    (session,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(session, {})
    assert "mxu_active_cycles" in capsys.readouterr().out


def test_linked_files_and_make_targets_exist():
    for path in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / path).is_file(), path
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)[` ]", README))
    assert len(named) > 5
    assert named <= targets
