"""The command `systolith`."""

import pathlib
import re
import subprocess
import sys

import pytest

from systolith.__main__ import main

SCRIPT = """
import os, sys
import jax, jax.numpy as jnp
from beside import FACTOR

def scaled(x):
    return FACTOR * x

for _ in range(3):
    y = jax.jit(scaled)(jnp.ones(4))
assert os.getcwd() not in sys.path, sys.path
print(jax.default_backend(), sys.argv[1:], float(y.sum()))
sys.exit(3)
"""


def test_run_takes_a_program_and_its_arguments(tmp_path: pathlib.Path) -> None:
    (tmp_path / "beside.py").write_text("FACTOR = 3\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "systolith", "run", "--config", "tiny", "--backend", "golden",
         "--profile", str(script), "--profile", "x"], capture_output=True, text=True, check=False,
        cwd=elsewhere)
    assert done.returncode == 3, done.stderr
    first, *table = done.stdout.splitlines()
    assert first == "systolith ['--profile', 'x'] 12.0"
    assert re.match(r"program +runs +cycles", table[0])
    assert any(re.match(r"jit_scaled +3 ", line) for line in table)
    assert table[-1].startswith("total")


def test_errors_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in ((["run", "missing.py"], "there is no program missing.py"),
                               (["run", "--config", "v9", "x.py"], "invalid choice: 'v9'"),
                               ([], "required: command")):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err


def test_info_names_the_chips(capsys: pytest.CaptureFixture[str]) -> None:
    main(["info"])
    text = capsys.readouterr().out
    assert re.search(r"^systolith \d", text)
    assert "1 cores" not in text
    assert "v2: 2 cores; an array of 128 x 128, vectors of 8 x 128" in text
