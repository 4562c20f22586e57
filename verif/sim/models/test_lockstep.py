"""Tile kernels against pure Verilog: every output in every cycle, for arbitrary inputs."""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest

from golden.mxu import tile_matmul
from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.mxu.grid import mac_grid
from hdl.mxu.lane import mxu_lanes
from hdl.mxu.mxu import Mxu
from hdl.tiles import TileGrid, VerilogLibrary
from sim.kernel import compile_grid
from sim.models.kernels import with_kernels
from sim.models.mxu import MxuModel, mxu_library
from sim.verilated.build import build_model
from sim.verilated.cache import cached_json
from sim.verilated.model import Model
from tools.bench.array import Grid

CYCLES = 3000


def config_of(array: int, mac_latency: int) -> Config:
    return Config(array=array, sublanes=1, vmem_bytes=4 * array, mac_latency=mac_latency)


def grid_models(make_grid: Callable[[Config], TileGrid], config: Config) -> tuple[Model, Model]:
    """Models of the grid: one with tile kernels, one in pure Verilog."""
    grid = make_grid(config)
    kernel, pure = cached_json(grid.module, [make_grid.__name__, asdict(config)], lambda: [
        with_kernels(grid.module, lambda: grid, [grid]),
        with_kernels(grid.module, lambda: make_grid(config))])
    return (Model(build_model(grid.module, kernel["verilog"], cpp=kernel["cpp"],
                              waivers=LINT_WAIVERS, optimise=None)),
            Model(build_model(grid.module, pure["verilog"], waivers=LINT_WAIVERS, optimise=None,
                              hierarchical=blocks(grid))))


def blocks(grid: TileGrid) -> list[str]:
    """Modules to verilate separately: the rows, if the array is large enough."""
    return [grid.row_module] if grid.rows > 8 else []


def random_bits(rng: np.random.Generator, cycles: int, width: int, density: float) -> np.ndarray:
    """Words whose bits are set with a given probability."""
    chosen = rng.random((cycles, width)) < density
    spare = -width % 32
    packed = np.packbits(np.pad(chosen, ((0, 0), (0, spare))), axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view(np.uint32)


def moderate(words: np.ndarray) -> np.ndarray:
    """Pairs of random bfloat16 with exponents near that of 1, so that sums stay finite."""
    halves = words.view(np.uint16)
    exponents = 112 + (halves >> 7) % 32
    return (halves & 0x807F | exponents << 7).view(np.uint32)


def random_traffic(model: Model, rng: np.random.Generator, density: float) -> dict[str, np.ndarray]:
    """Random values of every input; control bits have a given density, resets are rare.

    Operands are of moderate size in the first half of the cycles and of any size later. Now and
    then nothing is valid for a while, so that tiles fall idle and wake up again.
    """
    inputs = {}
    quiet = (rng.random(CYCLES // 60) < 0.3).repeat(60)
    for name, port in model.ports.items():
        if not port.is_input or name == "clk":
            continue
        control = name == "rst" or "valid" in name or "swap" in name or "token" in name
        share = 0.002 if name == "rst" else density if control else 0.5
        inputs[name] = random_bits(rng, CYCLES, port.width, share)
        if control and name != "rst":
            inputs[name][quiet] = 0
        if name in ("x", "w_north", "w_west") and port.width % 32 == 0:
            inputs[name][:CYCLES // 2] = moderate(inputs[name][:CYCLES // 2])
    return inputs


def assert_lockstep(kernel: Model, pure: Model, inputs: dict[str, np.ndarray]) -> None:
    outputs = [name for name, port in pure.ports.items() if not port.is_input]
    assert outputs == [name for name, port in kernel.ports.items() if not port.is_input]
    got, want = (model.run(inputs, outputs) for model in (kernel, pure))
    for name in outputs:
        bad = np.argwhere(got[name] != want[name])
        assert not bad.size, f"{name} differs first in cycle {bad[0, 0]}, word {bad[0, 1]}"
        assert want[name].any(), f"{name} never moved"


@pytest.mark.parametrize(("array", "mac_latency"), [(4, 2), (16, 2), (5, 1), (4, 4), (17, 6)])
def test_array_kernel_equals_verilog(array: int, mac_latency: int) -> None:
    rng = np.random.default_rng([array, mac_latency])
    kernel, pure = grid_models(mac_grid, config_of(array, mac_latency))
    with kernel, pure:
        # Bubbles everywhere, half the cells busy, nearly all of them, nearly none, then again.
        for density in (0.5, 0.95, 0.02, 0.3):
            assert_lockstep(kernel, pure, random_traffic(pure, rng, density))


@pytest.mark.parametrize("mac_latency", range(1, 7))
def test_idle_cells_and_lanes_are_proven_to_hold(mac_latency: int) -> None:
    for grid in (mac_grid(config_of(4, mac_latency)), mxu_lanes(config_of(4, mac_latency))):
        tile = VerilogLibrary().write(grid.tile_module, grid.make_tile)
        assert compile_grid(grid, "\n".join(tile.values())).can_skip


@pytest.mark.parametrize(("array", "mac_latency"), [(4, 2), (17, 4)])
def test_lane_kernel_equals_verilog(array: int, mac_latency: int) -> None:
    rng = np.random.default_rng([array, mac_latency])
    kernel, pure = grid_models(mxu_lanes, config_of(array, mac_latency))
    with kernel, pure:
        for density in (0.5, 0.9):
            assert_lockstep(kernel, pure, random_traffic(pure, rng, density))


@pytest.mark.parametrize(("array", "mac_latency"), [(4, 2), (16, 3)])
def test_matrix_unit_by_kernels_equals_verilog(array: int, mac_latency: int) -> None:
    rng = np.random.default_rng([array, mac_latency])
    config = config_of(array, mac_latency)
    pure = cached_json("mxu", asdict(config),
                       lambda: VerilogLibrary().write("mxu", lambda: Mxu(config)))
    with (Model(mxu_library(config)) as kernel,
          Model(build_model("mxu", pure, waivers=LINT_WAIVERS, optimise=None,
                            hierarchical=blocks(mac_grid(config)))) as reference):
        for model in (kernel, reference):
            model.reset()
        for density in (0.5, 0.9):
            assert_lockstep(kernel, reference, random_traffic(reference, rng, density))


@pytest.mark.slow
def test_one_tile_at_full_size_in_pure_rtl() -> None:
    """A 128x128 tile without any kernel has the bits of the golden model and of the kernel."""
    config = Config.preset("v2")
    rng = np.random.default_rng(128)
    weights = rng.standard_normal((1, 128, 128)).astype(np.float32)
    x = rng.standard_normal((1, 128, 128)).astype(np.float32)
    want = tile_matmul(x[0], weights[0]).view(np.uint32)
    for kernels in (False, True):
        with MxuModel(config, kernels=kernels) as model:
            got = model.multiply(weights, x, [(0, 0)])[0].view(np.uint32)
        assert np.array_equal(got, want), f"kernels={kernels}"


@pytest.mark.slow
def test_bench_grids_give_one_result() -> None:
    """The models that `make bench` measures compute the golden product; here at another size."""
    config = config_of(16, 2)
    rng = np.random.default_rng(16)
    weights = rng.standard_normal((16, 16)).astype(np.float32)
    x = rng.standard_normal((40, 16)).astype(np.float32)
    want = tile_matmul(x, weights).view(np.uint32)
    for kernels in (True, False):
        grid = Grid(config, kernels=kernels, optimise=None)
        with grid.model as model:
            grid.load(weights)
            p = model.run(grid.stream(x), ["p"])["p"]
        assert np.array_equal(grid.results(p, len(x)), want), f"kernels={kernels}"
