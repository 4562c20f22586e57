"""Whole programs on a device: the golden model's bits in RTL, and JAX's results on the CPU."""

from functools import cache
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

from sim.compiler.executable import Executable
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.driver import compile_graph
from systolith import Config, Device
from verif.sim.compiler.programs.catalogue import PROGRAMS

BOUNDS = {"mlp_step": 0.02, "cnn_step": 0.03, "lstm_step": 0.02, "transformer_step": 0.03,
          "adam_step": 1e-5, "permutation": 0.0, "bits": 0.0, "normal_numbers": 1e-5,
          "uniform_numbers": 1e-6}
"""Programs, and the largest error of their results, as a part of a result's largest magnitude.

Products have operands in bf16, with 8 bits, and JAX has fp32 on the CPU.
"""


@cache
def compiled(name: str) -> Executable:
    """Return a program, compiled for `v2`."""
    return compile_graph(import_stablehlo(PROGRAMS[name]().lower()), Config.preset("v2"), name=name)


@cache
def run(name: str, backend: str) -> tuple[Any, ...]:
    """Run a program on `v2`, and return its results."""
    with Device.open("v2", backend) as device:
        return device.execute(compiled(name), *PROGRAMS[name]().arrays)


def check(results: tuple[Any, ...], expected: list[Any], bound: float) -> None:
    assert len(results) == len(expected) > 0
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == wanted.shape
        assert result.dtype == wanted.dtype
        if result.dtype.kind in "iub":
            assert np.array_equal(result, wanted)
        else:
            got, want = result.astype(np.float64), wanted.astype(np.float64)
            assert np.abs(got - want).max() <= bound * max(np.abs(want).max(), 1e-3)


@pytest.mark.parametrize("name", BOUNDS)
def test_golden_is_near_what_jax_computes(name: str) -> None:
    assert compiled_of(compiled(name)).kernels
    check(run(name, "golden"), PROGRAMS[name]().expected(), BOUNDS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", BOUNDS)
def test_rtl_has_the_bits_of_golden(name: str) -> None:
    for one, other in zip(run(name, "golden"), run(name, "rtl"), strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
