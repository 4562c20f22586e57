"""The AVX-512 code of kernels compiles on machines that cannot run it."""

import pathlib
import subprocess

import pytest

from hdl.config import Config
from hdl.tiles import TileGrid
from sim.kernel import compile_grid
from sim.models.core import core_grids
from sim.verilated.toolchain import Toolchain
from verif.sim.kernel.lockstep import HAS_AVX512, tile_verilog

MACHINE = "skylake-avx512"


@pytest.mark.skipif(HAS_AVX512, reason="all other tests compile and run the AVX-512 code here")
@pytest.mark.parametrize("grid", core_grids(Config.preset("tiny")), ids=lambda grid: grid.module)
def test_kernel_compiles_for_avx512(grid: TileGrid, tmp_path: pathlib.Path) -> None:
    compiler = [*Toolchain.find().cxx, "-std=c++20", f"-march={MACHINE}", "-fsyntax-only"]
    probe = tmp_path / "probe.cpp"
    probe.touch()
    if subprocess.run([*compiler, probe], capture_output=True, check=False).returncode:
        pytest.skip(f"the compiler has no machine {MACHINE}")
    for name, text in compile_grid(grid, tile_verilog(grid)).sources.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run([*compiler, tmp_path / f"{grid.module}.cpp"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
