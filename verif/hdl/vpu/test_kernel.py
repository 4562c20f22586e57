"""The kernel of the vector unit's elements against the golden model and pure Verilog."""

import numpy as np
import pytest

from hdl.config import Config
from hdl.lint import LINT_WAIVERS
from hdl.vpu.element import vpu_grid
from sim.kernel.netlist.reader import read_tile
from sim.kernel.plan.plan import Plan
from sim.kernel.plan.planner import plan_grid
from sim.models.kernels import BLOCK_WAIVERS, with_kernels
from sim.verilated.build import build_model
from sim.verilated.model import Model
from verif.hdl.vpu.test_vpu import fill
from verif.hdl.vpu.verilated import VerilatedVpu, vpu_library
from verif.models.vpu import VpuTraffic
from verif.sim.kernel.lockstep import random_words, sparse, tile_verilog

TINY = Config.preset("tiny")
WIDE = Config.preset("tiny", array=64, sublanes=1, vmem_bytes=16 << 10)
"""A row of elements is a whole chunk, as in ``v2``."""
CYCLES = 1500


@pytest.mark.slow
@pytest.mark.parametrize("config", [TINY, Config.preset("small"), WIDE],
                         ids=["tiny", "small", "whole chunk"])
def test_random_traffic_gives_the_golden_state_in_every_cycle(config: Config) -> None:
    library = vpu_library(config, kernels=True)
    for density in (0.2, 0.6, 0.95):
        rng = np.random.default_rng([23, int(100 * density)])
        with Model(library) as model:
            bench = VerilatedVpu(config, model)
            fill(bench, rng)
            traffic = VpuTraffic(config, rng, density, 40)
            bench.run([traffic.cycle() for _ in range(CYCLES)])
            bench.check(range(40))


def plan_of(config: Config) -> Plan:
    grid = vpu_grid(config)
    return plan_grid(grid, read_tile(tile_verilog(grid), grid.tile_module))


@pytest.mark.slow
def test_elements_are_computed_by_units_and_skipped_when_idle() -> None:
    plan = plan_of(TINY)
    # Proven to hold while no enable is set, whatever the registers hold.
    assert plan.active == []
    # No unit's registers wait for, or are computed with, another's.
    for group in plan.groups:
        assert all(task.enable is group.enable for task in group.tasks)
        names = [plan.registers[update.register].name.split(".") for update in group.updates]
        assert len({tuple(name[:2]) for name in names if len(name) > 2}) <= 1, names


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tiny", "small", "fpga"])
def test_grid_in_lockstep_with_verilog(preset: str) -> None:
    """Every output of the grid in every cycle, with random enables and words."""
    config = Config.preset(preset)
    grid = vpu_grid(config)
    kernel = with_kernels(grid.module, lambda: grid, [grid])
    pure = with_kernels(grid.module, lambda: vpu_grid(config))
    with (Model(build_model(grid.module, kernel["verilog"], cpp=kernel["cpp"],
                            waivers=LINT_WAIVERS, optimise=None)) as fast,
          Model(build_model(grid.module, pure["verilog"], waivers=LINT_WAIVERS + BLOCK_WAIVERS,
                            optimise=None, hierarchical=[grid.tile_module])) as reference):
        outputs = [name for name, port in reference.ports.items() if not port.is_input]
        for seed, density in enumerate((0.5, 0.1, 0.9)):
            rng = np.random.default_rng([29, seed])
            inputs = {}
            for name, port in reference.ports.items():
                if port.is_input and name not in ("clk", "rst"):
                    inputs[name] = sparse(rng, 1, CYCLES, density) if port.width == 1 \
                        else random_words(rng, port.width, CYCLES)
            # Two ports that write one register would be an error of the sequencer.
            for index, port_name in enumerate(("v0_d", "v1_d", "load_d", "chain_d")):
                inputs[port_name] = inputs[port_name] // 4 * 4 + index
            inputs["v0_mask_d"] = inputs["v0_mask_d"] & 6
            inputs["v1_mask_d"] = inputs["v1_mask_d"] | 1
            got, want = (model.run(inputs, outputs) for model in (fast, reference))
            for name in outputs:
                bad = np.argwhere(got[name] != want[name])
                assert not bad.size, f"{name} differs first in cycle {bad[0, 0]}"
                assert want[name].any(), f"{name} never moved"
