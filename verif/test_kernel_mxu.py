"""The matrix unit's own grids as kernels, beside their Verilog."""

import numpy as np
import pytest

from hdl.config import Config
from hdl.mxu.grid import mac_grid
from hdl.mxu.lane import mxu_lanes
from sim.kernel import compile_grid
from sim.model import Model
from verif.kernel_lockstep import Lockstep, packed, random_words, replace_grid, sparse, tile_verilog

SEED = 72
CYCLES = 3000


def config(array, latency):
    return Config(array=array, sublanes=2, cores=1, vmem_bytes=8 * array * 64, mac_latency=latency)


@pytest.fixture(scope="module", params=[(4, 2), (5, 1), (3, 6)], ids=str)
def lockstep(request):
    parameters = config(*request.param)
    name = f"kernel_mxu_{'_'.join(map(str, request.param))}"
    return Lockstep(name, {
        "mac": lambda module: replace_grid(mac_grid(parameters), module),
        "lanes": lambda module: replace_grid(mxu_lanes(parameters), module)}), parameters


def test_mac_grid_and_lanes_match_verilator(lockstep):
    bench, parameters = lockstep
    rng = np.random.default_rng(SEED)
    n = parameters.array
    with Model(bench.path) as model:
        for density in (0.9, 0.1, 0.5):
            inputs = {name: random_words(rng, width, CYCLES)
                      for name, width in bench.inputs.items()}
            for name, width in bench.inputs.items():
                if name.endswith(("valid", "swap", "token")):
                    inputs[name] = sparse(rng, width, CYCLES, density)
            exponents = rng.integers(110, 140, (CYCLES, n)) << 7
            values = exponents | rng.integers(0, 1 << 16, (CYCLES, n)) & 0x807f
            inputs["mac_x"] = packed(values, 16)
            # A weight never comes from both sides at once.
            inputs["mac_w_west_valid"] &= ~inputs["mac_w_north_valid"]
            inputs["rst"] = (rng.random(CYCLES) < 0.002).astype(np.uint32)
            # Then nothing for a while, so that tiles fall idle.
            quiet = rng.random(CYCLES // 100).repeat(100) < 0.5
            for name in inputs:
                if inputs[name].shape[-1] and name.endswith(("valid", "swap", "token", "write")):
                    inputs[name][quiet] = 0
            seen = bench.run(model, inputs, CYCLES)
    assert seen.mean() > 0.9


@pytest.mark.parametrize("latency", range(1, 7))
def test_idle_cells_and_lanes_are_proven_to_hold(latency):
    parameters = config(4, latency)
    for grid in (mac_grid(parameters), mxu_lanes(parameters)):
        assert compile_grid(grid, tile_verilog(grid)).can_skip


def test_kernel_is_the_same_text_every_time():
    grid = mac_grid(config(4, 2))
    first, second = (compile_grid(grid, tile_verilog(grid)) for _ in range(2))
    assert (first.cpp, first.shim) == (second.cpp, second.shim)
