"""Scheduled code does the same as code in order, and reaches the expected intervals."""

import pytest

from hdl.config import Config
from sim.compiler.machine import emit
from verif.sim.compiler.machine.harness import run
from verif.sim.compiler.machine.programs import Writer

TINY = Config.preset("tiny", imem_bundles=4096)
SMALL = Config.preset("small", imem_bundles=4096)


def check(config: Config, seed: int, size: int, *, flow: bool = True) -> None:
    code = Writer(config, seed, size, flow=flow).code()
    naive = run(emit(code, config, schedule=False))
    scheduled = run(emit(code, config))
    assert (naive.vmem == scheduled.vmem).all(), f"seed {seed}"
    assert (naive.smem == scheduled.smem).all(), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_random_code_is_unchanged(first: int) -> None:
    for seed in range(first, first + 20):
        check(TINY if seed % 3 else SMALL, seed, 10 + seed % 60, flow=seed % 2 == 0)
