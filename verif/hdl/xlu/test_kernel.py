"""The cross-lane unit with kernels, against pure Verilog, and at full size the golden model."""

from collections.abc import Callable

import numpy as np
import pytest
from amaranth.utils import ceil_log2

from hdl.config import Config
from hdl.isa import MiscOp
from hdl.tiles import TileGrid
from hdl.xlu.reduce import reduce_nodes
from hdl.xlu.transpose import transpose_banks
from sim.kernel import compile_grid
from sim.verilated.model import Model
from verif.hdl.xlu.verilated import VerilatedXlu, xlu_model
from verif.models.xlu import (
    OPERATIONS,
    TREE,
    Op,
    config_of,
    drain,
    every_amount,
    fill_tile,
    floats,
    limit,
    random_traffic,
)
from verif.sim.kernel.lockstep import Lockstep, packed, random_words, sparse, tile_verilog
from verif.sim.models.test_lockstep import assert_lockstep

CYCLES = 2000


@pytest.mark.parametrize("make_grid", [reduce_nodes, transpose_banks])
def test_idle_tiles_are_proven_to_hold(make_grid: Callable[[Config], TileGrid]) -> None:
    grid = make_grid(config_of(4, 2))
    assert compile_grid(grid, tile_verilog(grid)).can_skip


def renamed(grid: TileGrid, name: str) -> TileGrid:
    return TileGrid(name, grid.tile_module, grid.make_tile, grid.rows, grid.cols, grid.links)


def test_nodes_kernel_equals_verilog() -> None:
    """The tree's nodes are not connected, so that each has its own operands and valid bits."""
    grid = reduce_nodes(config_of(8, 1))
    rng = np.random.default_rng(8)
    lockstep = Lockstep("xlu_nodes_lockstep", {"grid": lambda name: renamed(grid, name)})
    with Model(lockstep.path) as model:
        for density in (0.5, 0.05, 1.0):
            seen = lockstep.run(model, {
                "rst": sparse(rng, 1, CYCLES, 0.002),
                "grid_valid": sparse(rng, grid.cols, CYCLES, density),
                "grid_maximum": sparse(rng, grid.cols, CYCLES, 0.5),
                **{f"grid_{name}": floats(rng, CYCLES, 1, grid.cols)[:, 0] for name in "ab"},
            }, CYCLES)
            assert seen.all()


@pytest.mark.parametrize("lanes", [3, *(pytest.param(lanes, marks=pytest.mark.slow)
                                        for lanes in (8, 70))])
def test_banks_kernel_equals_verilog(lanes: int) -> None:
    """Rows and columns come at any time; an element may be read while it is written."""
    grid = transpose_banks(config_of(lanes, 1))
    rng = np.random.default_rng(lanes)
    lockstep = Lockstep(f"xlu_banks_lockstep_{lanes}",
                        {"grid": lambda name: renamed(grid, name)})
    numbers = np.tile(np.arange(lanes), (CYCLES, 1))
    with Model(lockstep.path) as model:
        for density in (0.9, 0.05):
            seen = lockstep.run(model, {
                "grid_lane": packed(numbers, ceil_log2(lanes)),
                "grid_write": sparse(rng, 1, CYCLES, density),
                "grid_write_row": rng.integers(lanes, size=(CYCLES, 1)).astype(np.uint32),
                "grid_write_data": random_words(rng, 32 * lanes, CYCLES),
                "grid_read": sparse(rng, 1, CYCLES, density),
                "grid_read_column": rng.integers(lanes, size=(CYCLES, 1)).astype(np.uint32),
            }, CYCLES)
            assert seen.all()


def random_starts(rng: np.random.Generator, config: Config,
                  density: float) -> dict[str, np.ndarray]:
    """Inputs of the unit: operations in a share of the cycles, resets, and random rows."""
    ops = rng.choice(np.array(OPERATIONS), CYCLES)
    limits = np.array([limit(config, MiscOp(op)) for op in ops])
    return {
        "rst": sparse(rng, 1, CYCLES, 0.002),
        "start__valid": sparse(rng, 1, CYCLES, density),
        "start__op": ops.astype(np.uint32),
        "start__d": rng.integers(32, size=CYCLES).astype(np.uint32),
        "start__a": rng.integers(32, size=CYCLES).astype(np.uint32),
        "start__amount": rng.integers(limits).astype(np.uint32),
        "row": floats(rng, CYCLES, 1, config.lanes)[:, 0],
    }


@pytest.mark.parametrize(("lanes", "sublanes"), [
    (6, 3), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((4, 2), (12, 4)))])
def test_unit_by_kernels_equals_verilog(lanes: int, sublanes: int) -> None:
    config = config_of(lanes, sublanes)
    rng = np.random.default_rng([lanes, sublanes])
    with xlu_model(config, kernels=True) as kernels, xlu_model(config) as pure:
        for density in (1.0, 0.3, 0.1, 0.6):
            assert_lockstep(kernels, pure, random_starts(rng, config, density))


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "sublanes"), [(128, 8), (256, 1)])
def test_full_size(lanes: int, sublanes: int) -> None:
    config = config_of(lanes, sublanes)
    rng = np.random.default_rng([lanes, sublanes])
    with xlu_model(config, kernels=True) as model:
        unit = VerilatedXlu(model, config)
        checker = unit.checker
        unit.play(fill_tile(checker, rng))
        expected = 0
        for op in OPERATIONS:
            checker.registers[:16] = floats(rng, *checker.registers[:16].shape)
            ops = every_amount(checker, op)
            if op in TREE:
                ops = [Op(op, d=16 + index, a=index) for index in range(16)]
            unit.run(*ops)
            expected += len(ops) * ops[0].writes
        assert checker.checked == expected
        unit.play(random_traffic(checker, rng, 1000))
        unit.play(drain(checker))
        assert checker.checked > expected + 20
