"""Measures in RTL how data-parallel training scales from one core to the cores of a pod.

    python -m tools.scaling --batch 256 --cores 1 2 8

trains a perceptron 784-512-512-10 (668,672 parameters) on digits of MNIST. Each core has the same
number of examples, whatever the number of cores; all cores sum their gradients in each step. The
efficiency is the cycles of a step on one core, divided by those of a step on all cores.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hdl.config import PRESETS, Config
from sim.apps.pod import SIZES, SMALL, task, training_step
from sim.compiler.graph.torus import CORES
from sim.driver.device import Device
from sim.driver.pod import Pod
from sim.jit.function import JitFunction, jit
from sim.verilated.toolchain import build_folder
from tools.forecast.torus import shape_of

__all__ = ["SHAPES", "Point", "cycles", "efficiency", "main", "measured", "sums"]

SHAPES = {cores: shape_of(cores) for cores in (1, 2, 4, 8, 16)}
"""Chips along X and along Y, by the number of cores."""


@dataclass(frozen=True)
class Point:
    """Measurements of a step of training on some number of cores.

    Attributes
    ----------
    cores, batch : int
        Number of cores, and of examples for each of them in a step.
    cycles : int
        Cycles of a step, from the common start of the cores to the end of the last program.
    sum_cycles : int
        Cycles of a program that only adds the gradients, from HBM to HBM; 0 on one core.
    loss : float
        Loss before the step.
    seconds : float
        Time of all runs on the host.
    """

    cores: int
    batch: int
    cycles: int
    sum_cycles: int
    loss: float
    seconds: float


def measured(cores: int, batch: int, config: Config, backend: str = "rtl") -> Point:
    """Run a step of training, and the sums alone.

    Parameters
    ----------
    cores : int
        One of `SHAPES`.
    batch : int
        Examples for each core.
    config : Config
        Configuration of each chip. With arrays smaller than 128 x 128, the perceptron is a small
        one.
    backend : str
        "rtl" or "golden", which has no cycles.
    """
    sizes = SIZES[1] if config.array >= 128 else SMALL[1]
    work, began = task(sizes, batch * cores), time.perf_counter()
    with (Device.open(config, backend) if cores <= CORES
          else Pod.open(SHAPES[cores], config, backend)) as device:
        step = training_step(len(work.weights), cores, 1)
        loss, _ = step(work.weights, work.images, work.wanted, device=device)
        step_cycles, alone = cycles(device), 0
        if cores > 1:
            sums(cores, len(work.weights))(work.weights, device=device)
            alone = cycles(device)
    return Point(cores, batch, step_cycles, alone, float(loss), time.perf_counter() - began)


def cycles(device: Device | Pod) -> int:
    """Return the cycles of the last run, from the cores' start to the end of the last program."""
    return max((counts["cycles"] for counts in device.last_run.values()), default=0)


def sums(cores: int, count: int) -> JitFunction:
    """Return a function that adds each of ``count`` arrays over all cores.

    The arrays that it takes are not divided: each core has the whole of them.
    """
    import jax
    from jax.sharding import AbstractMesh, PartitionSpec

    def added(arrays: Any) -> Any:
        return [jax.lax.psum(array, "data") for array in arrays]

    return jit(jax.shard_map(
        added, mesh=AbstractMesh((cores,), ("data",)), in_specs=([PartitionSpec()] * count,),
        out_specs=[PartitionSpec()] * count, check_vma=False))


def efficiency(one: Point, several: Point) -> tuple[float, float]:
    """Return the efficiency of several cores, and what it would be without overlap.

    Without overlap, a step would take the cycles of a step on one core, and those of the sums.
    """
    return one.cycles / several.cycles, one.cycles / (one.cycles + several.sum_cycles)


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.scaling",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="v2", help="preset; default: %(default)s", choices=[
        name for name, preset in PRESETS.items() if preset.cores == CORES])
    parser.add_argument("--batch", type=int, default=256,
                        help="examples for each core; default: %(default)s")
    parser.add_argument("--cores", type=int, nargs="+", choices=SHAPES, default=[1, 2, 4, 8, 16],
                        help="numbers of cores; the first one is the reference")
    given = parser.parse_args()
    if given.batch < 1:
        parser.error(f"--batch must be at least 1, not {given.batch}")
    config, points = Config.preset(given.config), list[Point]()
    for cores in given.cores:
        point = measured(cores, given.batch, config)
        points.append(point)
        share, apart = efficiency(points[0], point)
        shape = "x".join(map(str, SHAPES[cores]))
        print(f"{cores:3} cores ({shape} chips), {given.batch} examples each: "
              f"{point.cycles:,} cycles, efficiency {share:.1%}; sums alone {point.sum_cycles:,} "
              f"cycles, efficiency without overlap {apart:.1%}; loss {point.loss:.4f}; "
              f"{point.seconds:.0f} s", flush=True)
    path = build_folder() / f"scaling-{given.batch}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n",
                    encoding="utf-8")
    print(f"figures: {path}")
    return 0 if np.isfinite([point.loss for point in points]).all() else 1


if __name__ == "__main__":
    sys.exit(main())
