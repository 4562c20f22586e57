"""``make pod``: trains perceptrons on all cores of a pod in RTL.

The images are digits of MNIST. The chips divide each batch (data parallelism). The two cores of a
chip divide the hidden layers (model parallelism): the columns of one weight matrix, and the rows of
the next one. Sums over cores and chips are all-reduces. The golden pod runs the same programs; all
losses and weights must have the same bits. A picture shows the traffic on the torus.
"""

import argparse
import pathlib
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import PRESETS, Config
from hdl.link.format import MAX_SIDE, LinkConfig
from sim.apps.training.data import mnist
from sim.compiler.graph.torus import CORES
from sim.driver.pod import Pod
from sim.jit.function import JitFunction, jit
from sim.verilated.toolchain import build_folder

__all__ = ["Task", "main", "task", "training_step"]

SEED = 2017
RATE = 0.05
CLASSES = 10
SIZES = (784, 100, CLASSES), (784, 512, 512, CLASSES)
"""Numbers of inputs and of each layer's outputs, for each of the two perceptrons."""
EXAMPLES = 128
"""Number of a batch's examples that each chip gets."""
SMALL = (16, 12, CLASSES), (16, 24, 16, CLASSES)
SMALL_EXAMPLES = 8
"""`SMALL` and `SMALL_EXAMPLES` replace `SIZES` and `EXAMPLES` on chips with an array smaller than
128 x 128, whose vector memory is small. Images are then scaled to 4 x 4 pixels."""

_LINK = LinkConfig()
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Task:
    """A training task.

    Attributes
    ----------
    weights : list of array
        Initial weights of each layer, shape (inputs, outputs).
    images : array, shape (examples, pixels)
        Images of the batch.
    wanted : array, shape (examples, CLASSES)
        1 for each image's digit, and 0 elsewhere.
    """

    weights: list[Float32]
    images: Float32
    wanted: Float32


def task(sizes: Sequence[int], examples: int, seed: int = SEED) -> Task:
    """Make a task: a perceptron with layers of these sizes, and the first digits of MNIST.

    If there are fewer digits than ``examples``, they are used again. Images are scaled to
    ``sizes[0]`` pixels. ``seed`` seeds the weights.
    """
    rng, digits = np.random.default_rng(seed), mnist()
    chosen = np.arange(examples) % len(digits.images)
    images = digits.images[chosen]
    if sizes[0] != images.shape[1]:
        side = round(sizes[0] ** 0.5)
        images = images.reshape(-1, side, 28 // side, side, 28 // side).mean((2, 4))
        images = images.reshape(len(images), -1)
    weights = [(rng.standard_normal(shape) * np.sqrt(2 / shape[0])).astype(np.float32)
               for shape in pairwise(sizes)]
    return Task(weights, images, np.eye(CLASSES, dtype=np.float32)[digits.labels[chosen]])


def _loss(weights: Any, x: Any, wanted: Any) -> Any:
    """Return the mean cross entropy of the whole batch.

    The arguments are the executing core's parts of the weights of each layer, of the images, and of
    `Task.wanted`.
    """
    import jax

    for number, part in enumerate(weights):
        last = number == len(weights) - 1
        # Even layers have some of the columns, and odd ones the rows for these.
        x = x @ part
        x = jax.lax.psum(x, "model") if number % 2 else x
        x = x if last else jax.nn.relu(x)
    return jax.lax.pmean(-(wanted * jax.nn.log_softmax(x)).sum(1).mean(), "data")


def _step(weights: Any, x: Any, wanted: Any) -> Any:
    """Step of one core: return the loss and the new parts of the weights."""
    import jax

    value, gradients = jax.value_and_grad(_loss)(weights, x, wanted)
    return value, jax.tree.map(lambda one, other: one - RATE * other, weights, gradients)


def training_step(layers: int, parts: int, model: int = CORES) -> JitFunction:
    """Return the function (weights, images, wanted) -> (loss, new weights) of a training step.

    ``layers`` is the number of weight matrices. The batch is divided into ``parts`` parts. For each
    part, ``model`` cores with consecutive numbers divide the columns of every even matrix between
    them, and the rows of every odd one. If ``layers`` is odd, each core has the whole last matrix.

    Raises
    ------
    ImportError
        If JAX is not installed.
    """
    import jax
    from jax.sharding import AbstractMesh, PartitionSpec

    cuts = PartitionSpec(None, "model"), PartitionSpec("model")
    weights = [cuts[number % 2] for number in range(layers)]
    if layers % 2:
        weights[-1] = PartitionSpec()
    batch = PartitionSpec("data")
    return jit(jax.shard_map(
        _step, mesh=AbstractMesh((parts, model), ("data", "model")),
        in_specs=(weights, batch, batch), out_specs=(PartitionSpec(), weights)))


@dataclass(frozen=True)
class _Run:
    """A training on a pod.

    Attributes
    ----------
    results : list of array
        The loss of each step, followed by the weights of each layer after the last step.
    cycles : list of int
        For each step, the cycles of the core that took longest.
    frames : list of array
        For each step, the frames that each chip sent in each direction, as from `_sent`.
    seconds : float
        Host time of all steps in seconds.
    """

    results: list[Float32]
    cycles: list[int]
    frames: list[npt.NDArray[np.int64]]
    seconds: float


def _train(pod: Pod, work: Task, steps: int) -> _Run:
    step = training_step(len(work.weights), pod.shape[0] * pod.shape[1])
    weights, losses, cycles, frames, began = work.weights, [], [], [], time.perf_counter()
    for _ in range(steps):
        before = _sent(pod)
        loss, weights = step(weights, work.images, work.wanted, device=pod)
        losses.append(loss)
        cycles.append(max(counts["cycles"] for counts in pod.last_run.values()))
        frames.append(_sent(pod) - before)
    return _Run([*losses, *weights], cycles, frames, time.perf_counter() - began)


def _sent(pod: Pod) -> npt.NDArray[np.int64]:
    """Return the frames that each chip of a pod has sent in each direction, shape (chips, 4)."""
    return np.array([counts["frames"] for counts in pod.link_counters().values()]).reshape(-1, 4)


def _report(shape: tuple[int, int], config: Config, steps: int
            ) -> tuple[str, bool, npt.NDArray[np.float64]]:
    """Train both perceptrons in RTL and on the golden pod.

    Return the report, whether all bits are equal, and the share of the peak rate that each link
    carried in the last step of the larger perceptron.
    """
    chips, small = shape[0] * shape[1], config.array < 128
    lines, same, shares = [f"training on {shape[0]} x {shape[1]} chips in RTL: {chips} parts of a "
                           f"batch by {CORES} parts of the layers"], True, np.zeros((chips, 4))
    for sizes in SMALL if small else SIZES:
        examples = (SMALL_EXAMPLES if small else EXAMPLES) * chips
        work = task(sizes, examples)
        with Pod.open(shape, config, "golden") as pod:
            wanted = _train(pod, work, steps)
        with Pod.open(shape, config) as pod:
            found = _train(pod, work, steps)
        equal = all(np.array_equal(one.view(np.uint32), other.view(np.uint32))
                    for one, other in zip(found.results, wanted.results, strict=True))
        same, cycles = same and equal, found.cycles[-1]
        shares = found.frames[-1] * _LINK.rate_cycles / (_LINK.rate_flits * cycles)
        losses = found.results[:steps]
        lines.append(f"perceptron {'-'.join(map(str, sizes))}, batch {examples}")
        for name, value in (
                ("every bit as golden", "yes" if equal else "NO"),
                ("losses", " ".join(f"{float(loss):.4f}" for loss in losses)),
                ("cycles of a step", f"{cycles:,}"),
                ("frames on links", f"{int(found.frames[-1].sum()):,}"),
                ("busiest link", f"{shares.max():.1%} of its peak"),
                ("mean of all links", f"{shares[shares > 0].mean() if shares.any() else 0:.1%}"),
                ("seconds of all steps", f"{found.seconds:.1f}")):
            lines.append(f"  {name:24}{value}")
    return "\n".join(lines), same, shares


def main() -> int:
    """Run the command; return the exit status."""
    parser = argparse.ArgumentParser(prog="make pod", description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", default="v2", help="preset", choices=[
        name for name, preset in PRESETS.items() if preset.cores == CORES])
    parser.add_argument("--shape", default="2x2", help="chips along X and Y; default: %(default)s")
    parser.add_argument("--steps", type=int, default=5, help="default: %(default)s")
    arguments = parser.parse_args()
    sides = re.fullmatch(r"(\d+)x(\d+)", arguments.shape)
    if sides is None or not all(1 <= int(side) <= MAX_SIDE for side in sides.groups()):
        parser.error(f"--shape must be like 2x2, with sides from 1 to {MAX_SIDE}, not "
                     f"{arguments.shape}")
    if sides.groups() == ("1", "1"):
        parser.error("--shape must have more than one chip")
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, not {arguments.steps}")
    shape = int(sides[1]), int(sides[2])
    text, good, shares = _report(shape, Config.preset(arguments.config), arguments.steps)
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    _draw(shares, shape, folder / "traffic.png")
    print(f"{text}\npicture: {folder / 'traffic.png'}")
    return 0 if good else 1


def _draw(shares: npt.NDArray[np.float64], shape: tuple[int, int], path: pathlib.Path) -> None:
    """Draw the links of a torus to ``path``, with the share of the peak rate that each carried.

    ``shares`` has shape (chips, 4): the links of each chip in the directions X+, X-, Y+, Y-.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(2 + 2 * shape[0], 1 + 2 * shape[1]),
                                   layout="constrained")
    colours, most = pyplot.get_cmap("plasma_r"), max(float(shares.max()), 1e-9)
    for chip, links in enumerate(shares):
        x, y = chip % shape[0], chip // shape[0]
        axis.text(x, y, f"{x}, {y}", ha="center", va="center", zorder=3,
                  bbox={"boxstyle": "round,pad=0.5", "facecolor": "white"})
        for share, (dx, dy) in zip(links, ((1, 0), (-1, 0), (0, 1), (0, -1)), strict=True):
            if shape[0 if dx else 1] == 1:
                continue
            # Each direction has a lane of its own; an arrow that leaves the picture comes back in
            # at the other side.
            x0, y0 = x - 0.1 * dy + 0.2 * dx, y + 0.1 * dx + 0.2 * dy
            axis.annotate("", (x0 + 0.6 * dx, y0 + 0.6 * dy), (x0, y0), arrowprops={
                "arrowstyle": "-|>", "color": colours(share / most), "linewidth": 2.5})
            axis.text(x0 + 0.28 * dx - 0.09 * dy, y0 + 0.28 * dy + 0.07 * dx, f"{share:.0%}",
                      ha="center", va="center", fontsize=8)
    axis.set_xlim(-0.9, shape[0] - 0.1)
    axis.set_ylim(shape[1] - 0.1, -0.9)
    axis.set_axis_off()
    figure.suptitle("Links of the torus: share of the peak in a training step", fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
