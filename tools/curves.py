"""Compares in RTL the losses of model-parallel training with those of training on one core.

    python -m tools.curves --steps 30

trains a perceptron 784-512-512-10 (668,672 parameters) on digits of MNIST twice: on one core, and
on the four cores of 2 x 1 chips. The four cores divide the columns of one weight matrix between
them, and the rows of the next one. Both trainings begin with the same weights, and have the same
batch in each step. The command fails if the two losses of a step differ by more than `TOLERANCE`,
relative to the loss on one core.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

from hdl.config import PRESETS, Config
from sim.apps.pod import SIZES, SMALL, Task, task, training_step
from sim.compiler.graph.torus import CORES
from sim.driver.device import Device
from sim.driver.pod import Pod
from sim.verilated.toolchain import build_folder
from tools.scaling import cycles

__all__ = ["SHAPE", "TOLERANCE", "Curve", "difference", "main", "trained"]

SHAPE = 2, 1
"""Chips along X and along Y of the model-parallel training."""
TOLERANCE = 2.0 ** -8
"""Largest distance of two neighbouring bfloat16 numbers, relative to the smaller one."""


@dataclass(frozen=True)
class Curve:
    """The results of a training.

    Attributes
    ----------
    cores : int
        Number of cores between which the layers are divided.
    losses : list of float
        Loss of each step's batch, before the step.
    cycles : int
        Cycles of the last step; 0 with the golden backend.
    seconds : float
        Time of all steps on the host.
    """

    cores: int
    losses: list[float]
    cycles: int
    seconds: float


def trained(cores: int, work: Task, steps: int, config: Config, backend: str = "rtl") -> Curve:
    """Train on one core, or on the four cores of `SHAPE`.

    Parameters
    ----------
    cores : int
        1 or 4.
    work : Task
        Weights, and the examples of all steps, which are divided into a batch for each step.
    steps : int
        Number of steps.
    config : Config
        Configuration of each chip.
    backend : str
        "rtl" or "golden".
    """
    step, weights, losses = training_step(len(work.weights), 1, cores), work.weights, []
    began = time.perf_counter()
    with (Device.open(config, backend) if cores == 1
          else Pod.open(SHAPE, config, backend)) as device:
        for images, wanted in zip(np.split(work.images, steps), np.split(work.wanted, steps),
                                  strict=True):
            loss, weights = step(weights, images, wanted, device=device)
            losses.append(float(loss))
        spent = cycles(device)
    return Curve(cores, losses, spent, time.perf_counter() - began)


def difference(one: Curve, several: Curve) -> float:
    """Return the largest difference of a step's two losses, relative to the loss in ``one``."""
    losses = np.array(one.losses)
    return float(np.max(np.abs(np.array(several.losses) - losses) / np.abs(losses)))


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.curves",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="v2", help="preset; default: %(default)s", choices=[
        name for name, preset in PRESETS.items() if preset.cores == CORES])
    parser.add_argument("--steps", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=128,
                        help="examples of a step; default: %(default)s")
    given = parser.parse_args()
    for name in ("steps", "batch"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(given, name)}")
    config = Config.preset(given.config)
    sizes = SIZES[1] if config.array >= 128 else SMALL[1]
    work = task(sizes, given.batch * given.steps)
    curves = [trained(cores, work, given.steps, config) for cores in (1, SHAPE[0] * CORES)]
    one, several = curves
    print(f"perceptron {'-'.join(map(str, sizes))}, batch {given.batch}\n"
          f"step  one core  {several.cores} cores  difference")
    for number, (first, second) in enumerate(zip(one.losses, several.losses, strict=True)):
        print(f"{number:4}{first:10.5f}{second:9.5f}{second / first - 1:12.1e}")
    largest = difference(one, several)
    print(f"largest relative difference: {largest:.1e}, of at most {TOLERANCE:.1e}")
    for curve in curves:
        print(f"{curve.cores} core{'s' if curve.cores > 1 else ''}: {curve.cycles:,} cycles in the "
              f"last step, {curve.seconds:.0f} s")
    path = build_folder() / "curves.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(curve) for curve in curves], indent=1) + "\n",
                    encoding="utf-8")
    print(f"figures: {path}")
    return 0 if largest <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
