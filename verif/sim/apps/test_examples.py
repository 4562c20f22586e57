"""The programs in `examples/` run unchanged on the chip and on the CPU."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"
QUICK = {"perceptron.py": ("--epochs", "2", "--digits", "512", "--held-out", "64"),
         "equinox_optax.py": ("--calls", "2"),
         "flax_linen.py": ("--epochs", "2"),
         "flax_nnx.py": ("--epochs", "2"),
         "keras_cnn.py": ("--epochs", "2", "--batch", "16", "--features", "8", "--digits", "32",
                          "--held-out", "16", "--steps", "2")}
"""Arguments for a short run, by program."""
FRAMEWORKS = {"flax_linen.py": "flax", "flax_nnx.py": "flax", "keras_cnn.py": "keras"}
"""By program, the package that it needs and that only `make examples` installs."""


def run(name: str, platform: str) -> list[float]:
    """Runs a program; returns the numbers that it prints: losses, then the accuracy."""
    environment = {**os.environ, "JAX_PLATFORMS": platform, "SYSTOLITH_CONFIG": "v2",
                   "SYSTOLITH_BACKEND": "golden", "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *QUICK[name]], check=False,
                          capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [float(number) for number in re.findall(r"(?:loss|accuracy) ([\d.]+)", done.stdout)]


def test_all_examples_are_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_chip_learns_as_the_cpu_does(name: str) -> None:
    if name in FRAMEWORKS and importlib.util.find_spec(FRAMEWORKS[name]) is None:
        pytest.skip(f"needs {FRAMEWORKS[name]}: make examples")
    chip, cpu = run(name, "systolith"), run(name, "cpu")
    assert len(chip) == len(cpu) == 3
    np.testing.assert_allclose(chip[:-1], cpu[:-1], rtol=0.02)
    assert abs(chip[-1] - cpu[-1]) <= 5
    assert chip[1] < chip[0]
