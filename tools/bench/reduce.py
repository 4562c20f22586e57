"""Measures the cycles of a sum of arrays over the chips of a pod, in RTL.

    python -m tools.bench.reduce 16x16 1

adds arrays of 1 MiB over 16 x 16 chips of preset `v2`, and compares the bits with the golden sum.
"""

import argparse
import sys
import time

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from golden.torus.reduce import all_reduced
from hdl.config import Config
from sim.compiler.collectives.plan import RingPlan
from sim.compiler.collectives.program import reduce_program, scalar_memory
from sim.driver.pod import with_links
from sim.models.chip import ChipModel
from sim.models.chip.torus import ChipTorus
from tools.forecast.torus import LINK_RATE

__all__ = ["reduce_cycles", "reduce_figures"]

LINKS = 4
MIB = 1 << 20


def _least_cycles(chips: int, size: int) -> float:
    """Return the least cycles in which the links can do an all-reduce of ``size`` bytes a chip."""
    return 2 * size * (1 - 1 / chips) / (LINKS * LINK_RATE)


class _Loaded(ChipTorus):
    """Chips with the programs and the arrays of an all-reduce.

    ``values`` has the arrays of all chips, shape (width, height, arrays, rows, lanes).
    """

    def __init__(self, plan: RingPlan, values: npt.NDArray[np.uint32]) -> None:
        self._plan, self._values = plan, values
        self._programs = {core: reduce_program(plan, core) for core in range(plan.config.cores)}
        super().__init__(plan.config, plan.shape)

    def prepare(self, number: int, chip: ChipModel) -> None:
        place = number % self.shape[0], number // self.shape[0]
        arrays = self._values[place]
        chip.hbm[:arrays.shape[0] * arrays.shape[1]] = arrays.reshape(-1, arrays.shape[2])
        chip.load_programs(self._programs)
        at = [array * self._plan.bytes for array in range(len(arrays))]
        for core in self._programs:
            chip.write_smem(core, 0, scalar_memory(self._plan, core, place, at, at))


def reduce_cycles(shape: tuple[int, int], name: str, size: int, arrays: int = 1) -> int:
    """Return the cycles of an all-reduce of arrays of ``size`` bytes, from HBM to HBM, in RTL.

    They count from the host's command that starts all cores to the end of the last program, when
    the sums of all chips are in HBM.

    Parameters
    ----------
    shape : tuple of int
        Chips along X and along Y.
    name : str
        Preset of the chips, to which links are added.
    size : int
        Bytes of an array, a multiple of a row's.
    arrays : int
        Arrays of each chip, 1 or 2. All arrays of all chips are added; each array gets the sum.

    Raises
    ------
    RuntimeError
        If a sum has other bits than the golden one.
    """
    config = with_links(Config.preset(name))
    plan = RingPlan.of(config, shape, size, arrays)
    rows = plan.bytes // config.row_bytes
    values = np.zeros((*shape, arrays, rows, config.lanes), np.float32)
    used = values[..., :size // config.row_bytes, :]
    used[...] = np.random.default_rng(size).standard_normal(used.shape, np.float32)

    with _Loaded(plan, values.view(np.uint32)) as torus:
        began = torus.start((chip, core) for chip in range(plan.chips)
                            for core in range(config.cores))
        with tqdm(desc=f"sum over {shape[0]} x {shape[1]} chips", unit="cycle",
                  leave=False, disable=None) as progress:
            torus.chips[0].run(progress=progress.update)
        cycles = torus.rested - began
        wanted = all_reduced(values.sum(2).view(np.uint32).reshape(*shape, -1),
                             plan.block * plan.vector_bytes // 4, plan.spread)
        for number, chip in enumerate(torus.chips):
            if not np.array_equal(chip.hbm[:arrays * rows].reshape(-1), np.tile(wanted, arrays)):
                raise RuntimeError(f"sums of chip {number} must have the golden bits")
    return cycles


def reduce_figures(name: str) -> dict[str, float]:
    """Measure all-reduces on chips of preset ``name``, as shares of the four links' peak.

    The share is the least number of cycles that the links need, divided by `reduce_cycles`.

    Returns
    -------
    dict of str to float
        ``allreduce_2x2_1MiB``, ``allreduce_2x2_16MiB``, ``allreduce_4x4_1MiB``: the shares. The
        keys name the torus and the bytes of each chip's array.
    """
    return {f"allreduce_{side}x{side}_{size}MiB": _least_cycles(side ** 2, size * MIB)
            / reduce_cycles((side, side), name, size * MIB)
            for side, size in ((2, 1), (2, 16), (4, 1))}


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.reduce",
                                     description="Add arrays over a pod of chips in RTL.")
    parser.add_argument("shape", help="chips along X and along Y, such as 16x16")
    parser.add_argument("mebibytes", type=int, help="size of a chip's array")
    parser.add_argument("--config", default="v2", help="preset of the chips")
    given = parser.parse_args()
    width, height = map(int, given.shape.split("x"))
    began = time.perf_counter()
    size = given.mebibytes * MIB
    cycles = reduce_cycles((width, height), given.config, size)
    share = _least_cycles(width * height, size) / cycles
    print(f"{cycles:,} cycles, {share:.2f} of the links' rate, golden bits on all chips; "
          f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
