"""``make resnet50``: ResNet-50's forward pass on the full-size chip in RTL.

Each core classifies two random images, so there are four images with both cores. The forward pass
is plain JAX and one program on the chip. The host only writes parameters and images to the chip's
memory, and reads the logits.

With ``STEP=1``, one core computes a step of training for one image instead.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from hdl.config import PRESETS, Config
from sim.apps.resnet.network import forward, images, multiplications, parameters
from sim.apps.resnet.roofline import draw, table
from sim.apps.resnet.step import Difference, Step, by_interpreter, by_jax, compile_step
from sim.compiler.executable import Executable
from sim.compiler.importer.importer import import_stablehlo
from sim.compiler.program.cache import compile_cached
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.report import Report
from sim.driver.device import Device
from sim.verilated.toolchain import build_folder

__all__ = ["Result", "arguments", "compile_forward", "main", "run"]

SIDE = 224
STEP_SIDE = 64
IMAGES = 2
"""Number of images for each core."""
_BOUND = 0.02
"""Largest permitted difference from JAX on the CPU, relative to the largest logit. There is a
difference because products use bfloat16."""
_STEP_BOUNDS = 2.0 ** -12, 2.0 ** -18
"""Largest permitted differences of the step's values: from the interpreter, and from JAX. Each is
relative to the largest element of the value. Chip, interpreter and JAX round operands of products
alike, but add in different orders in fp32. With JAX, only products are compared, each on the chip's
own operands. The interpreter also computes batch normalisation, which amplifies differences if it
divides by a small number."""


def arguments(cores: int, side: int, count: int = IMAGES) -> tuple[Any, Any]:
    """Return random parameters, and for each core ``count`` random images of ``side``² pixels."""
    return parameters(), images(count * cores, side)


def compile_forward(config: Config, values: tuple[Any, Any], cores: int) -> Executable:
    """Compile the forward pass for ``cores`` cores; with two, each classifies half of the images.

    ``values`` are the parameters and images, of which only shapes and element types are used.
    """
    function: Any = forward
    if cores == 2:
        split, whole = PartitionSpec("core"), PartitionSpec()
        function = jax.shard_map(forward, mesh=AbstractMesh((2,), ("core",)),
                                 in_specs=(whole, split), out_specs=split, check_vma=False)
    module = jax.jit(function).trace(*values).lower(
        lowering_platforms=("cpu",)).compiler_ir("stablehlo")
    return compile_cached(import_stablehlo(module), config, name="resnet50")


@dataclass(frozen=True)
class Result:
    """Results of a run.

    Attributes
    ----------
    logits : array of float32, shape (images, 1000)
    cycles : int
        Cycles of the core that took longest; 0 on the golden chip.
    seconds : float
        Host time of the run in seconds, without building the simulation.
    share : float
        Multiplications of the network, divided by those that the arrays of the cores could have
        done in ``cycles``.
    counters : dict
        For each core, the counters of the run, as `Device.last_run` returns them.
    """

    logits: Any
    cycles: int
    seconds: float
    share: float
    counters: dict[int, dict[str, int]]


def run(device: Device, executable: Executable, values: tuple[Any, Any], *,
        progress: bool = False) -> Result:
    """Run a compiled forward pass with ``values``, the parameters and images."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(values)]
    began = time.perf_counter()
    [logits] = device.execute(executable, *leaves, progress=progress)
    seconds = time.perf_counter() - began
    counters = {core: dict(counts) for core, counts in device.last_run.items()}
    cycles = max((counts["cycles"] for counts in counters.values()), default=0)
    side, count = values[1].shape[1], len(values[1])
    peak = max(1, cycles) * len(counters) * device.config.array ** 2
    return Result(logits, cycles, seconds, multiplications(side) * count / peak, counters)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="make resnet50", description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", choices=sorted(PRESETS), default="v2")
    parser.add_argument("--cores", type=int, choices=(1, 2), help="number of cores, 2 by default")
    parser.add_argument("--step", action="store_true",
                        help="run a step of training on one core, for one image")
    parser.add_argument("--side", type=int, help=f"height and width of the images; by default "
                        f"{SIDE}, or {STEP_SIDE} with --step")
    parser.add_argument("--images", type=int, help=f"images for each core, {IMAGES} by default")
    parser.add_argument("--backend", choices=("rtl", "golden"), default="rtl")
    options = parser.parse_args(argv)
    for name in "side", "images":
        given = getattr(options, name)
        if given is not None and given < 1:
            parser.error(f"--{name} must be at least 1, not {given}")
    config = Config.preset(options.config)
    if options.step:
        for name in "images", "cores":
            if getattr(options, name) not in (None, 1):
                parser.error(f"--{name} must be 1 with --step, not {getattr(options, name)}")
        return _train(config, options.side or STEP_SIDE, options.backend)
    side, cores = options.side or SIDE, options.cores or 2
    values = arguments(cores, side, options.images or IMAGES)
    began = time.perf_counter()
    executable = compile_forward(config, values, cores)
    print(f"compiled in {time.perf_counter() - began:.1f} s")
    with Device.open(config, options.backend) as device:
        result = run(device, executable, values, progress=True)
    wanted = np.asarray(jax.jit(forward)(*values))
    error = float(np.abs(result.logits - wanted).max() / np.abs(wanted).max())
    same = result.logits.argmax(1) == wanted.argmax(1)
    _show(Report.predicted(compiled_of(executable)))
    print(f"{len(wanted)} images of {side} x {side}, {cores} core(s): "
          f"{result.cycles:,} cycles, {result.share:.1%} of the arrays' peak, "
          f"{result.seconds:.1f} s of simulation")
    for core, counts in sorted(result.counters.items()):
        print(f"core {core}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items()))
    print(f"largest difference from JAX on the CPU: {error:.2%} of the largest logit; "
          f"{same.sum()} of {len(same)} classes are the same")
    if not error <= _BOUND:  # also if it is not a number
        print(f"the difference must be {_BOUND:.0%} or less", file=sys.stderr)
        return 1
    return 0


def _show(report: Report) -> None:
    """Print all kernels of a core with their limits, and plot them in the roofline picture."""
    folder = build_folder()
    folder.mkdir(parents=True, exist_ok=True)
    text = table(report)
    (folder / "resnet50.txt").write_text(f"{report}\n{text}", encoding="utf-8")
    draw(report, folder / "resnet50.svg")
    print(f"kernels of a core, in cycles; `make roofline` measures them one by one\n{text}"
          f"table: {folder / 'resnet50.txt'}\nroofline: {folder / 'resnet50.svg'}")


def _train(config: Config, side: int, backend: str) -> int:
    """Run and check a step of training for an image of ``side`` x ``side`` pixels.

    ``backend`` is that of the device. Return the exit status: 0 if all values are right.
    """
    began = time.perf_counter()
    step = compile_step(config, side)
    print(f"compiled in {time.perf_counter() - began:.1f} s")
    with Device.open(config, backend) as device:
        began = time.perf_counter()
        found = device.execute(step.executable, *step.arrays, progress=True)
        print(f"a step for one image of {side} x {side}: {device.last_run[0]['cycles']:,} cycles, "
              f"{time.perf_counter() - began:.1f} s of simulation, loss {float(found[0]):.3f}")
    good = [_compare("the interpreter", by_interpreter, step, found, _STEP_BOUNDS[0]),
            _compare("JAX on the CPU", by_jax, step, found, _STEP_BOUNDS[1])]
    if backend == "rtl":
        with Device.open(config, "golden") as device:
            expected = device.execute(step.executable, *step.arrays, progress=True)
        same = sum(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True))
        print(f"{same} of {len(found)} values have the golden model's bits")
        good.append(same == len(found))
    return 0 if all(good) else 1


def _compare(reference: str, compare: Callable[[Step, tuple[Any, ...]], Iterator[Difference]],
             step: Step, found: tuple[Any, ...], bound: float) -> bool:
    """Print how far the values of a step are from a reference.

    Return whether all differences are within ``bound``. ``reference`` names the reference in the
    output, ``found`` are the step's values on the chip, and ``compare(step, found)`` yields their
    differences from the reference.
    """
    differences = list(compare(step, found))
    largest = max(differences, key=lambda each: each.error)
    print(f"{len(differences)} values compared with {reference}: the largest difference is "
          f"{largest.error:.1e} of the largest element ({largest.name}, {largest.shape}); "
          f"it must be {bound:.1e} or less")
    return largest.error <= bound


if __name__ == "__main__":
    sys.exit(main())
