"""The softmax layer: one program for every configuration, the same bits as the golden core."""

import numpy as np
import pytest

from golden.core import GoldenCore
from hdl.config import Config
from sim.apps.softmax import operands, reference
from sim.compiler.handwritten.softmax import SoftmaxLayer
from sim.models.core import CoreModel

LIMIT = 100_000


def golden(layer: SoftmaxLayer, seed: int) -> GoldenCore:
    core = GoldenCore(layer.config)
    core.vmem[:layer.vectors] = layer.image(*operands(layer, seed)).view(np.uint32)
    core.load_program(layer.program().bundles)
    core.start()
    core.run(LIMIT)
    return core


def result(layer: SoftmaxLayer, vmem: np.ndarray) -> np.ndarray:
    return layer.result(vmem[layer.p_address:layer.vectors].copy())


@pytest.mark.parametrize(("config", "kernels"), [
    ("tiny", True), ("tiny", False), ("small", True),
    pytest.param("small", False, marks=pytest.mark.slow)])
def test_core_and_golden_core_agree_in_every_bit(config: str, kernels: bool) -> None:
    with CoreModel(Config.preset(config), kernels=kernels) as core:
        for seed, (tiles, chunks) in enumerate(((2, 3), (1, 1), (1, 2), (3, 2))):
            layer = SoftmaxLayer(core.config, tiles, chunks)
            expected = golden(layer, seed).read_state(array=False)
            core.reset()
            core.write_vmem(0, layer.image(*operands(layer, seed)))
            counters = core.run_program(layer.program().bundles, max_cycles=LIMIT)
            state = core.read_state()
            for part, value in expected.items():
                assert np.array_equal(state[part], value), (tiles, chunks, part)
            assert counters["mxu_active_cycles"] == layer.rows * tiles


@pytest.mark.parametrize("config", ["tiny", "small", "v2"])
@pytest.mark.parametrize(("tiles", "chunks"), [(1, 1), (2, 3), (3, 2)])
def test_result_is_the_softmax(config: str, tiles: int, chunks: int) -> None:
    layer = SoftmaxLayer(Config.preset(config), tiles, chunks)
    core = golden(layer, 5)
    assert not core.running
    assert not core.fault
    assert (core.held, core.loaded) == (0, 0)
    p = result(layer, core.vmem)
    # Two roundings to a power, which is at most 1, its sum, its reciprocal, and their product.
    assert np.abs(p - reference(*operands(layer, 5))).max() < 1e-6
    assert np.abs(p.sum(axis=1, dtype=np.float64) - 1).max() < 1e-6
    assert p.shape == (layer.rows, layer.config.lanes)


def test_a_program_runs_again_on_other_data() -> None:
    layer = SoftmaxLayer(Config.preset("tiny"))
    with CoreModel(layer.config) as core:
        core.load_program(layer.program().bundles)
        for seed in range(3):
            core.write_vmem(0, layer.image(*operands(layer, seed)))
            core.run_program()
            got = core.read_vmem(layer.p_address, layer.chunks * layer.groups)
            want = golden(layer, seed).vmem[layer.p_address:layer.vectors]
            assert np.array_equal(got, want), seed


def test_sizes_that_do_not_fit_are_refused() -> None:
    tiny = Config.preset("tiny")
    for arguments, error, match in (
            (("tiny",), TypeError, "config must be a Config, not 'tiny'"),
            ((tiny, 0), ValueError, "tiles must be at least 1, not 0"),
            ((tiny, 1, 2.0), TypeError, "chunks must be an integer, not 2.0"),
            ((tiny, 2, 1000), ValueError, "256 vectors of vector memory")):
        with pytest.raises(error, match=match):
            SoftmaxLayer(*arguments)
    layer = SoftmaxLayer(tiny)
    x, w, b = operands(layer)
    with pytest.raises(ValueError, match="w must have shape"):
        layer.image(x, w[:-1], b)
