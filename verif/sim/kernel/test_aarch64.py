"""Kernels on ARM: the portable backend, compiled for aarch64, in an emulator."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest
from amaranth.lib.wiring import In, Out

from hdl.config import Config
from hdl.tiles import TileGrid, port_widths
from sim.kernel import compile_grid
from sim.models.core import core_grids
from sim.verilated.toolchain import Toolchain
from verif.sim.kernel.lockstep import random_words, tile_verilog

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
CYCLES = 1500
SEED = 64

GRIDS = {grid.module: grid for grid in core_grids(Config.preset("tiny"))}
SLOW = {"vpu_grid"}

pytestmark = pytest.mark.skipif(
    not shutil.which(COMPILER) or not shutil.which(EMULATOR),
    reason=f"needs {COMPILER} and {EMULATOR}: apt-get install g++-aarch64-linux-gnu qemu-user")


def driver(grid: TileGrid) -> str:
    """C++ of a program that reads each cycle's inputs, steps the kernel, and writes the outputs."""
    ports = {"rst": 1, **port_widths(grid, In)}, port_widths(grid, Out)
    inputs, outputs = ({f"{'io'[side]}{index}": width for index, width in enumerate(some.values())}
                       for side, some in enumerate(ports))

    def declared(names: dict[str, int]) -> list[str]:
        return [f"  static uint32_t {name}[{-(-width // 32)}];" for name, width in names.items()]

    taken = [f"uint8_t({name}[0])" if width == 1 else name for name, width in inputs.items()]
    given = [f"&{name}_bit" if width == 1 else name for name, width in outputs.items()]
    bits = [name for name, width in outputs.items() if width == 1]
    return "\n".join([
        f'#include "{grid.module}.cpp"',
        "#include <cstdio>",
        "int main() {",
        f"  void* const grid = {grid.module}_new();",
        *declared(inputs), *declared(outputs),
        *(f"  uint8_t {name}_bit;" for name in bits),
        f"  while (fread({next(iter(inputs))}, 4, 1, stdin) == 1) {{",
        *(f"    if (fread({name}, sizeof {name}, 1, stdin) != 1) return 1;"
          for name in list(inputs)[1:]),
        f"    {grid.module}_step(grid, {', '.join(taken)});",
        f"    {grid.module}_outputs(grid, {', '.join(given)});",
        *(f"    {name}[0] = {name}_bit;" for name in bits),
        *(f"    fwrite({name}, sizeof {name}, 1, stdout);" for name in outputs),
        "  }",
        f"  {grid.module}_delete(grid);",
        "}", ""])


def stimulus(grid: TileGrid) -> np.ndarray:
    """Inputs by cycle, as rows of words: numbers of similar size, zeros, infinities, NaNs."""
    rng = np.random.default_rng(SEED)
    columns = [(rng.random((CYCLES, 1)) < 0.01).astype(np.uint32)]
    for width in port_widths(grid, In).values():
        words = random_words(rng, width, CYCLES)
        if width >= 16:
            near = rng.random(words.shape) < 0.6
            words[near] = words[near] & 0x81ff81ff ^ 0x3f803f80
            words[rng.random(words.shape) < 0.05] |= 0x7f807f80
            words[rng.random(words.shape) < 0.05] &= 0x80008000
            if width % 32:
                words[:, -1] &= np.uint32((1 << width % 32) - 1)
        columns.append(words)
    return np.concatenate(columns, axis=1)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in GRIDS])
def test_kernel_on_aarch64_equals_the_one_on_this_machine(name: str,
                                                          tmp_path: pathlib.Path) -> None:
    grid = GRIDS[name]
    for file, text in compile_grid(grid, tile_verilog(grid)).sources.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "main.cxx").write_text(driver(grid))
    tools = Toolchain.find()
    words = stimulus(grid).tobytes()
    outputs = []
    for compiler, run in (((*tools.cxx, f"-march={tools.march}"), ()),
                          ((COMPILER,), (EMULATOR,))):
        program = tmp_path / pathlib.Path(compiler[0]).name
        subprocess.run([*compiler, "-std=c++20", "-O2", "-static", "-o", program,
                        tmp_path / "main.cxx"], check=True)
        outputs.append(subprocess.run([*run, program], input=words, capture_output=True,
                                      check=True).stdout)
    size = sum(4 * -(-width // 32) for width in port_widths(grid, Out).values())
    assert len(outputs[0]) == CYCLES * size
    assert len(set(np.frombuffer(outputs[0], np.uint32).tolist())) > 2
    assert outputs[0] == outputs[1]
