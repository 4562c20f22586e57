"""Assumptions of ``make bench`` that could be wrong without an error."""

import pathlib

import numpy as np
import pytest

from hdl.config import Config
from hdl.sram import Sram
from sim.jit.function import jit
from sim.verilated.toolchain import march
from systolith import Device
from tools.bench import array
from tools.bench.array import Grid
from tools.bench.cell import synthesise
from tools.bench.fpga import count_cells
from tools.bench.machine import AVX2, has_avx2
from tools.bench.reduce import reduce_cycles
from tools.bench.training import step
from tools.fpga.synthesis import comb, passes


@pytest.mark.slow
@pytest.mark.parametrize(("width", "depth", "blocks", "lutram"), [(32, 256, 1, 0), (32, 4, 0, 8)])
def test_memories_become_those_of_the_fpga(tmp_path: pathlib.Path, width: int, depth: int,
                                           blocks: int, lutram: int) -> None:
    memory = Sram(width, depth)
    top = memory.module(width, depth)
    counts = count_cells(synthesise(tmp_path, top, {top: memory.verilog()}, passes(top)))
    assert (counts["ebr"], counts["lutram"], counts["multipliers"]) == (blocks, lutram, 0)
    # Registers for the word read, and for a write, so that a read in the same cycle gives old data.
    assert width <= counts["ff"] <= 2 * width + 16


@pytest.mark.slow
def test_array_is_measured_by_all_models_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def measured(config: Config, *, kernels: bool) -> Grid:
        built.append(march())
        return Grid(config, kernels=kernels, optimise=None)

    for name, count in (("KERNEL_CYCLES", 40), ("LOADING_CYCLES", 40), ("IDLE_CYCLES", 100),
                        ("VERILATOR_CYCLES", 20), ("RUNS", 1)):
        monkeypatch.setattr(array, name, count)
    monkeypatch.setattr(array, "Grid", measured)
    figures = array.array_figures(Config.preset("tiny"))
    assert all(value > 0 for value in figures.values())
    assert ("array_kernel_avx2_cycles_per_second" in figures) is has_avx2()
    usual = march()
    assert built == [usual, usual, *([AVX2] if has_avx2() else [])]


def test_both_cores_make_the_step_of_the_whole_batch() -> None:
    rng = np.random.default_rng(20261122)
    layers = [rng.normal(0, 0.5, (4, 4)).astype(np.float32) for _ in range(2)]
    x, y = (rng.normal(size=(8, 4)).astype(np.float32) for _ in range(2))
    with Device.open(Config.preset("tiny", cores=2), "golden") as device:
        one, both = (jit(step(cores))(layers, x, y, device=device) for cores in (1, 2))
    before = np.mean((np.maximum(x @ layers[0], 0) @ layers[1] - y) ** 2)
    np.testing.assert_allclose(one[0], before, rtol=0.02)
    np.testing.assert_allclose(both[0], one[0], rtol=1e-4)
    for old, alone, shared in zip(layers, one[1], both[1], strict=True):
        assert np.abs(alone - old).max() > 0.01
        np.testing.assert_allclose(shared, alone, atol=1e-4)


@pytest.mark.slow
def test_a_product_becomes_multipliers_of_the_fpga(tmp_path: pathlib.Path) -> None:
    text = "module product(input [23:0] a, b, output [47:0] p); assign p = a * b; endmodule\n"
    cells = synthesise(tmp_path, "product", {"product": text}, passes("product"))
    assert cells["MULT18X18D"] == 4
    # Only carries join the partial products.
    # Besides carry chains, only the sums of bit 0 of three adders.
    assert comb(cells) == 2 * cells["CCU2C"] + 3 > 3


def test_cycles_of_a_sum_are_those_of_the_links_at_least() -> None:
    """Each of two chips sends half of the bytes twice, over two links of 11 bytes a cycle."""
    assert 4096 / 22 < reduce_cycles((2, 1), "tiny", 4096) < 4096
