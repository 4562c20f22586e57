"""Whole programs, compiled and run on the golden chip, against the interpreter and JAX."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import systolith  # noqa: E402
from sim.compiler.graph.interpret import interpret  # noqa: E402
from sim.compiler.importer.importer import import_stablehlo  # noqa: E402
from systolith import Device  # noqa: E402
from verif.sim.compiler.programs.catalogue import PROGRAMS  # noqa: E402

ROUNDED = 5e-5
"""Largest error relative to the interpreter, which rounds operands of products as the chip does."""
TRUE = 1e-4
"""Largest error relative to JAX, with products in six passes."""
LARGER = {"cnn_step": "small", "small_resnet_forward": "small", "small_resnet_step": "small"}
"""Chips for programs whose operations do not fit the vector memory of `tiny`."""


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, Device]]:
    with Device.open("tiny", "golden") as tiny, Device.open("small", "golden") as small:
        yield {"tiny": tiny, "small": small}


def check(found: Sequence[Any], expected: Sequence[Any], error: float) -> None:
    """Compare results: integers exactly, floats relative to the largest of their array."""
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind == "f":
            assert np.abs(a - b).max(initial=0) <= error * np.abs(b).max(initial=1e-30)
        else:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, devices: dict[str, Device]) -> None:
    config, program = LARGER.get(name, "tiny"), PROGRAMS[name]()
    module = program.lower()
    found = systolith.compile(module, config)(*program.arrays, device=devices[config])
    check(found, interpret(import_stablehlo(module), program.arrays, passes=True), ROUNDED)


@pytest.mark.parametrize("name", ["mlp_step", "cnn_step", "lstm_step", "transformer_step"])
def test_program_of_highest_precision(name: str, devices: dict[str, Device]) -> None:
    program = PROGRAMS[name]()
    with jax.default_matmul_precision("highest"):
        found = systolith.compile(program.lower(), "small")(*program.arrays,
                                                            device=devices["small"])
    check(found, program.expected(), TRUE)
