"""Whole programs: imported and interpreted, against JAX on the CPU."""

import numpy as np
import pytest

pytest.importorskip("jax")

from sim.compiler.graph.interpret import interpret
from sim.compiler.importer.importer import import_stablehlo
from verif.sim.compiler.programs.catalogue import PROGRAMS
from verif.sim.compiler.programs.program import Program
from verif.sim.compiler.programs.resnet import resnet_forward, resnet_step


def check(program: Program, rtol: float = 2e-5, platform: str = "cpu") -> None:
    """Compare all results: integers exactly, floats relative to the largest of their array."""
    found = interpret(import_stablehlo(program.lower(platform)), program.arrays)
    expected = program.expected()
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max(initial=1e-30))


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, platform: str) -> None:
    check(PROGRAMS[name](), platform=platform)


@pytest.mark.slow
def test_resnet50_forward() -> None:
    check(resnet_forward(side=32), rtol=1e-4)


@pytest.mark.slow
def test_resnet50_step_is_imported() -> None:
    program = resnet_step(side=64)
    graph = import_stablehlo(program.lower())
    # The loss, and a new array for each parameter.
    assert len(graph.outputs) == len(graph.inputs) - 1
    assert [value.type for value in graph.outputs[1:]] == [
        value.type for value in graph.inputs[:-2]]
