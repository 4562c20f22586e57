"""The tutorials and the guide are true: their changes apply and their commands run."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = (ROOT / "docs" / "tutorial_program.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
OPERATION = (ROOT / "docs" / "tutorial_operation.md").read_text(encoding="utf-8")
SOURCES = ("docs", "golden", "hdl", "sim", "systolith", "tools", "verif",
           "CHANGELOG.md", "CONTRIBUTING.md", "README.md",
           "Makefile", "pyproject.toml", "constraints.txt", ".ci")
COMMAND_SECONDS = 600


def steps(text: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks of a page: for each, the words after the opening fence, and the text."""
    yield from re.findall(r"^```(\w+[ \w]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def apply(change: str, root: pathlib.Path) -> None:
    """Apply a diff whose unchanged and removed lines must occur exactly once in its file."""
    head, *lines = change.splitlines()
    assert head.startswith("--- "), head
    path = root / head[4:]
    old = "".join(line[1:] + "\n" for line in lines if line[:1] in (" ", "-"))
    new = "".join(line[1:] + "\n" for line in lines if line[:1] in (" ", "+"))
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} must have these lines once:\n{old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def create(source: str, root: pathlib.Path) -> None:
    """Create the file that the first line names."""
    name, _, text = source.partition("\n")
    path = root / name.removeprefix("# ")
    assert not path.exists(), path
    path.write_text(text, encoding="utf-8")


def test_program_prints_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    shown = 0
    blocks = list(steps(PROGRAM))
    for (kind, source), (after, output) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "python":
            exec(source, names)
            assert capsys.readouterr().out == (output if after == "text" else "")
            shown += after == "text"
    assert shown == PROGRAM.count("```text") > 5


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the repository; its `.venv` is a link to the environment of this run."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name)
        else:
            shutil.copy2(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def test_changes_of_the_operation_apply(copy: pathlib.Path) -> None:
    changes = 0
    for kind, text in steps(OPERATION):
        if kind == "diff":
            apply(text, copy)
            changes += 1
    assert changes == OPERATION.count("```diff") > 5
    with pytest.raises(AssertionError, match="must have these lines once"):
        apply("--- hdl/isa.py\n no such line\n+new\n", copy)


def execute(command: str, root: pathlib.Path) -> tuple[int, str]:
    """Runs a command line in ``root``; returns status and output."""
    done = subprocess.run(command, shell=True, cwd=root, env={**os.environ, "MAKEFLAGS": ""},
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          timeout=COMMAND_SECONDS)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_commands_of_the_operation_run(copy: pathlib.Path) -> None:
    commands = 0
    for kind, text in steps(OPERATION):
        if kind == "diff":
            apply(text, copy)
        elif kind == "python":
            create(text, copy)
        else:
            assert kind in ("console", "console fails"), kind
            # The environment is complete, and is not the copy's to change.
            status, output = execute(text.replace("make ", "make --old-file=setup "), copy)
            assert (status != 0) == (kind == "console fails"), f"{text}\n{output}"
            if "pytest" in text:
                outcome = "failed" if kind == "console fails" else "passed"
                assert re.search(rf"\d+ {outcome}", output), output
            commands += 1
    assert commands == 6


@pytest.mark.slow
def test_the_guide_leads_from_a_constant_to_the_golden_model(
        copy: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = GUIDE[GUIDE.index("## From a changed constant"):GUIDE.index("## Add something")]
    change, test = re.findall(r"^ {4}((?:sed|\.venv).*)$", section, re.MULTILINE)
    assert execute(change, copy) == (0, "")
    status, output = execute(test, copy)
    assert status == 1
    for line in re.findall(r"^ {4}( *\d+ of .*| *cycle .*)$", section, re.MULTILINE):
        assert line.strip() in output, output
    [(_, source)] = steps(section)
    exec(source, {})
    assert f"`{capsys.readouterr().out.strip()}`" in section
