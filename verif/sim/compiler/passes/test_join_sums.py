"""Which of a training step's sums over a pod are computed early, behind products."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("jax")

import jax

from hdl.config import Config
from sim.apps.pod import SIZES, training_step
from sim.compiler.graph.ir import Operation
from sim.compiler.graph.torus import Torus
from sim.compiler.passes import run_passes
from sim.jit.function import _imported

V2 = Config.preset("v2", link_bytes=16)


def pod_sums(torus: Torus, config: Config) -> list[Operation]:
    """Return the sums of a step of training of a perceptron, after all passes."""
    sizes, cores = SIZES[1], torus.devices
    weights = [jax.ShapeDtypeStruct(shape, np.float32) for shape in pairwise(sizes)]
    data = [jax.ShapeDtypeStruct((256 * cores, size), np.float32)
            for size in (sizes[0], sizes[-1])]
    step = training_step(len(weights), cores, 1)
    graph = _imported(step._jitted.trace(weights, *data), torus)
    run_passes(graph, config)
    return [operation for operation in graph.operations if operation.kind == "pod_sum"]


@pytest.mark.parametrize(("shape", "words"), [
    ((2, 1), 4096), ((4, 2), 4096), ((8, 4), 4096), ((8, 8), 1 << 14)])
def test_gradients_of_later_layers_are_summed_early(shape: tuple[int, int], words: int) -> None:
    """The loss goes with them: alone, it would travel as far as all gradients do."""
    early, late = pod_sums(Torus(*shape), replace(V2, smem_words=words))
    assert early.attributes["early"]
    assert sorted(value.shape for value in early.operands) == [(), (10, 512), (512, 512)]
    assert [value.shape for value in late.operands] == [(784, 512)]
    assert "early" not in late.attributes


@pytest.mark.parametrize(("shape", "words"), [((8, 8), 4096), ((16, 16), 1 << 16)])
def test_sums_stay_together_if_dividing_them_saves_nothing(shape: tuple[int, int], words: int
                                                           ) -> None:
    """No kernels run during a sum whose table scalar memory cannot hold. On very many chips, the
    late sum alone would take as long as all sums together.
    """
    [joined] = pod_sums(Torus(*shape), replace(V2, smem_words=words))
    assert len(joined.operands) == 4
    assert "early" not in joined.attributes
