"""The programs in `examples/` run unchanged on the chip and on the CPU."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"
QUICK = {"perceptron.py": ("--epochs", "2", "--digits", "512", "--held-out", "64"),
         "equinox_optax.py": ("--calls", "2")}
"""Arguments for a short run, by program."""


def run(name: str, platform: str) -> list[float]:
    """The numbers that a program prints: losses, then the accuracy."""
    environment = {**os.environ, "JAX_PLATFORMS": platform, "SYSTOLITH_CONFIG": "v2",
                   "SYSTOLITH_BACKEND": "golden"}
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *QUICK[name]], check=False,
                          capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(number) for number in re.findall(r"(?:loss|accuracy) ([\d.]+)", done.stdout)]


def test_all_examples_are_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_chip_learns_as_the_cpu_does(name: str) -> None:
    chip, cpu = run(name, "systolith"), run(name, "cpu")
    assert len(chip) == len(cpu) == 3
    np.testing.assert_allclose(chip[:-1], cpu[:-1], rtol=0.02)
    assert abs(chip[-1] - cpu[-1]) <= 5
    assert chip[1] < chip[0]
