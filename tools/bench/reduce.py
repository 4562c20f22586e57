"""Sums over pods of chips: shares of the rate of the links, and the largest pod."""

import time

import numpy as np
from tqdm import tqdm

from golden.torus.reduce import all_reduced
from sim.models.chip.simulation import Until
from systolith import AllReduce, Pod

__all__ = ["reduce_cycles", "reduce_figures"]

LINK_RATE = 88
"""Bytes that a link moves in a cycle at most: 11 flits of 128 bytes in 16 cycles."""
LINKS = 4
STEP = 16
"""Cycles between two looks whether the programs have ended."""
MIB = 1 << 20


def reduce_cycles(shape: tuple[int, int], config: str, size: int) -> int:
    """Return the cycles of an all-reduce of ``size`` bytes a chip, from HBM to HBM, in RTL.

    They count from before the host starts the first core to the end of the last program, when the
    sums of all chips are in HBM.

    Raises
    ------
    RuntimeError
        If a sum has other bits than the golden one.
    """
    elements = size // 4
    rng = np.random.default_rng(size)
    began = time.perf_counter()
    with Pod.open(shape, config) as pod, AllReduce(pod, elements) as reduction:
        opened = time.perf_counter()
        model, plan = pod.model, reduction.plan
        assert model is not None
        values = np.zeros((*shape, plan.bytes // 4), np.float32)
        values[..., :elements] = rng.standard_normal((*shape, elements), np.float32)
        for place in np.ndindex(shape):
            reduction.write(place, values[place][:elements])
        reduction.load()
        loaded = time.perf_counter()
        cores = [(chip, core) for chip in model.chips for core in range(pod.config.cores)]
        first = model.chips[0].cycle
        for chip, core in cores:
            chip.start(core)
        with tqdm(desc=f"sum over {shape[0]} x {shape[1]} chips", unit="cycle",
                  leave=False) as progress:
            while any(chip.running(core) for chip, core in cores):
                progress.update(model.run(STEP, until=Until.NEVER))
        cycles = model.chips[0].cycle - first
        ended = time.perf_counter()
        wanted = all_reduced(values.view(np.uint32), plan.block * plan.vector_bytes // 4,
                             plan.spread)
        for place in np.ndindex(shape):
            if not np.array_equal(reduction.read(place).view(np.uint32), wanted[:elements]):
                raise RuntimeError(f"sums of chip {place} must have the golden bits")
    print(f"{shape[0]} x {shape[1]} chips {config}, {size} bytes: {cycles} cycles; seconds: open "
          f"{opened - began:.1f}, load {loaded - opened:.1f}, run {ended - loaded:.1f}")
    return cycles


def reduce_figures(config: str) -> dict[str, float]:
    """Measure all-reduces as shares of the four links' peak.

    The share is the least number of cycles that the links need for 2 B (1 - 1 / P) bytes a chip,
    where P chips have B bytes each, divided by `reduce_cycles`.

    Returns
    -------
    dict of str to float
        ``allreduce_2x2_1MiB``, ``allreduce_2x2_16MiB``, ``allreduce_4x4_1MiB``.
    """
    figures = {}
    for side, mebibytes in ((2, 1), (2, 16), (4, 1)):
        least = 2 * mebibytes * MIB * (1 - 1 / side ** 2) / (LINKS * LINK_RATE)
        cycles = reduce_cycles((side, side), config, mebibytes * MIB)
        figures[f"allreduce_{side}x{side}_{mebibytes}MiB"] = least / cycles
    return figures
