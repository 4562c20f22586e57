"""The model of the matrix unit alone: products, and a product that Ctrl-C interrupts."""

import numpy as np
import pytest

from golden.mxu import matmul
from hdl.config import Config
from sim.models.mxu import MxuModel
from verif.sim.driver.common import SEED, TINY, assert_same_bits


def test_interrupt_leaves_the_model_usable() -> None:
    rng = np.random.default_rng(SEED)
    weights = rng.standard_normal((1, 4, 4)).astype(np.float32)
    x = rng.standard_normal((1, 9000, 4)).astype(np.float32)
    with MxuModel(Config.preset("tiny")) as model:
        calls = []

        def interrupt(rows: int) -> None:
            calls.append(rows)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            model.multiply(weights, x, [(0, 0)], progress=interrupt)
        assert len(calls) == 1
        assert 0 < calls[0] < 9000
        assert model.counters()["mxu_active_cycles"] == 0
        assert_same_bits(model.multiply(weights, x, [(0, 0)])[0], matmul(x[0], weights[0], 4))


@pytest.mark.parametrize("transpose", [False, True])
def test_a_matrix_unit_alone_gives_the_same_products(transpose: bool) -> None:
    rng = np.random.default_rng(SEED)
    weights = rng.standard_normal((6, 4, 4)).astype(np.float32)
    x = rng.standard_normal((3, 50, 4)).astype(np.float32)
    steps = [(int(rng.integers(3)), int(rng.integers(6))) for _ in range(20)]
    with MxuModel(TINY) as model:
        parts = model.multiply(weights, x, steps, transpose=transpose)
    for (strip, tile), part in zip(steps, parts, strict=True):
        weight = weights[tile].T if transpose else weights[tile]
        assert_same_bits(part, matmul(x[strip], weight, 4))
