"""``make pod``: data-parallel training of a perceptron on all cores of a pod in RTL.

Each core computes loss and gradients for its part of the batch. The means over all cores are
all-reduces over the links. The golden pod runs the same program; all losses and weights must have
the same bits.
"""

import argparse
import re
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import PRESETS, Config
from hdl.link.format import MAX_SIDE
from sim.compiler.graph.torus import CORES
from sim.driver.pod import Pod
from sim.jit.function import JitFunction, jit

__all__ = ["main", "task", "training_step"]

SEED = 2017
RATE = 0.5
FEATURES, HIDDEN, EXAMPLES = 6, 8, 4
"""Sizes of the perceptron's input and hidden layer, and examples for each core."""

Float32 = npt.NDArray[np.float32]


def task(devices: int, seed: int = SEED) -> tuple[list[Float32], Float32, Float32]:
    """Random weights of both layers; inputs and targets of a batch for ``devices`` cores."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((EXAMPLES * devices, FEATURES)).astype(np.float32)
    weights = [rng.standard_normal(shape).astype(np.float32) * np.float32(0.5)
               for shape in ((FEATURES, HIDDEN), (HIDDEN, 1))]
    return weights, x, np.sign(x[:, :1] * x[:, 1:2])


def _loss(weights: Any, x: Any, y: Any) -> Any:
    import jax.numpy as jnp

    first, second = weights
    return jnp.mean((jnp.tanh(x @ first) @ second - y) ** 2)


def _step(weights: Any, x: Any, y: Any) -> Any:
    """Step of one device, on its part of the batch."""
    import jax

    value, gradients = jax.lax.pmean(jax.value_and_grad(_loss)(weights, x, y), "data")
    return value, jax.tree.map(lambda one, other: one - RATE * other, weights, gradients)


def training_step(devices: int) -> JitFunction:
    """Return the function (weights, x, y) -> (loss, new weights) for so many devices.

    Raises
    ------
    ImportError
        If JAX is not installed.
    """
    import jax
    from jax.sharding import AbstractMesh, PartitionSpec

    batch = PartitionSpec("data")
    return jit(jax.shard_map(_step, mesh=AbstractMesh((devices,), ("data",)),
                             in_specs=(PartitionSpec(), batch, batch), out_specs=PartitionSpec(),
                             check_vma=False))


def _train(pod: Pod, step: JitFunction, steps: int) -> tuple[list[Float32], list[int], float]:
    """Train; return losses and last weights, the cycles of each step, and the seconds."""
    weights, x, y = task(pod.shape[0] * pod.shape[1] * CORES)
    losses, cycles, began = [], [], time.perf_counter()
    for _ in range(steps):
        loss, weights = step(weights, x, y, device=pod)
        losses.append(loss)
        cycles.append(max(counts["cycles"] for counts in pod.last_run.values()))
    return [*losses, *weights], cycles, time.perf_counter() - began


def _report(shape: tuple[int, int], config: Config, steps: int) -> tuple[str, bool]:
    """Train in RTL and on the golden pod; return the report, and whether all bits are equal."""
    devices = shape[0] * shape[1] * CORES
    step = training_step(devices)
    with Pod.open(shape, config, "golden") as pod:
        wanted, _, _ = _train(pod, step, steps)
    with Pod.open(shape, config) as pod:
        found, cycles, seconds = _train(pod, step, steps)
        assert pod.model is not None
        frames = int(pod.model.sent().sum())
    same = all(np.array_equal(one.view(np.uint32), other.view(np.uint32))
               for one, other in zip(found, wanted, strict=True))
    lines = [f"perceptron {FEATURES}-{HIDDEN}-1 on {shape[0]} x {shape[1]} chips in RTL: "
             f"{devices} cores, {EXAMPLES} examples each"]
    for name, value in (
            ("every bit as golden", "yes" if same else "NO"),
            ("loss, first and last", f"{float(found[0]):.4f} {float(found[steps - 1]):.4f}"),
            ("cycles of a step", f"{cycles[-1]:,}"), ("frames on links", f"{frames:,}"),
            ("seconds of all steps", f"{seconds:.1f}")):
        lines.append(f"  {name:24}{value:>16}")
    return "\n".join(lines), same


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="make pod", description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", default="tiny", help="preset", choices=[
        name for name, preset in PRESETS.items() if preset.cores == CORES])
    parser.add_argument("--shape", default="2x1", help="chips along X and Y; default: %(default)s")
    parser.add_argument("--steps", type=int, default=5, help="default: %(default)s")
    arguments = parser.parse_args()
    sides = re.fullmatch(r"(\d+)x(\d+)", arguments.shape)
    if sides is None or not all(1 <= int(side) <= MAX_SIDE for side in sides.groups()):
        parser.error(f"--shape must be like 2x1, with sides from 1 to {MAX_SIDE}, not "
                     f"{arguments.shape}")
    if sides.groups() == ("1", "1"):
        parser.error("--shape must have more than one chip")
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, not {arguments.steps}")
    text, good = _report((int(sides[1]), int(sides[2])), Config.preset(arguments.config),
                         arguments.steps)
    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
