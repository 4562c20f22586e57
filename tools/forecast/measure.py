"""Measures in RTL the cycles from which the model is calibrated, and with which it is validated.

Cycles do not depend on the host. The samples of a group replace the earlier ones of this group in
the file.
"""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from hdl.config import Config
from sim.apps.pod import SIZES, task, training_step
from sim.apps.resnet.network import images, parameters
from sim.apps.resnet.step import step as resnet_step
from sim.apps.training.models.transformer import transformer
from sim.apps.training.task import Task
from sim.compiler.program.compiled import compiled_of
from sim.driver.device import Device
from sim.driver.pod import Pod
from sim.jit.function import JitFunction, jit
from tools.bench.reduce import reduce_cycles
from tools.forecast.calibrate import MOST_CHIPS, STRONG_BATCH
from tools.forecast.charts import CORES as CHARTED
from tools.forecast.samples import (
    COMPILED,
    LINKS,
    Plan,
    Program,
    Samples,
    StepSample,
    SumSample,
)
from tools.forecast.sums import streams
from tools.forecast.torus import CORES, Shape, shape_of
from tools.scaling import cycles, sums

__all__ = ["GROUPS", "measured", "perceptron_plan"]

_SOURCES = "golden", "hdl", "sim"
_KIB = 1 << 10
_WORD = 4
_LINK_SUMS: tuple[tuple[Shape, tuple[int, ...], int], ...] = (
    ((2, 1), (64, 256, 1024, 4096, 16384), 1), ((2, 2), (32, 64, 256, 1024, 4096), 1),
    ((4, 1), (64, 256, 1024, 4096), 1), ((2, 1), (256, 2048), 2), ((2, 2), (256, 2048), 2),
    ((4, 2), (256, 1024, 4096), 1), ((4, 4), (256, 1024), 1), ((4, 4), (2048,), 2),
    ((8, 4), (256, 1024, 4096), 1), ((8, 8), (256, 1024, 4096), 1), ((8, 8), (2048,), 2),
    ((16, 16), (256, 1024), 1))
"""Sums by `AllReduce`: (shape of the torus, sizes of an array in KiB, arrays of each chip)."""
_MATRICES = ([*pairwise(SIZES[0])], [*pairwise(SIZES[1])], [(512, 512)] * 4,
             [(1024, 512), (512, 256), (256, 256)])
"""Compiled sums: for each, the shapes of the matrices that the program adds over all cores."""
_STEPS = (("perceptron", SIZES[0], 256, (2, 4, 8, 16, 32, 64, 128)),
          ("large", SIZES[1], 256, (2, 4, 8, 16, 32, 64, 128)),
          ("large1k", SIZES[1], 1024, (2, 4, 8, 16)))
"""Perceptrons: (name, sizes of layers, examples for each core, numbers of cores)."""
_STRONG = 128, 64, 32, 16, 8, 512, STRONG_BATCH
"""Examples for each core, if a batch of `STRONG_BATCH` examples is divided between 1 to 256 cores.
Steps with these numbers are measured in addition to those of `_STEPS`."""
_SHAPES: tuple[Shape, ...] = (1, 1), (2, 1), (2, 2), (4, 1)
_MORE_SHAPES: tuple[Shape, ...] = (4, 2), (4, 4)
_TEXTS, _TRANSFORMERS = 16, (2, 4, 8, 16)
"""Number of texts that the transformer's batch has for each core, and numbers of cores."""
_RESNET = "resnet50"
_RESNETS = ("", 1, 64), ("x4", 4, 64), ("x128", 1, 128)
"""Steps of ResNet-50: (end of the name, images for each core, side of an image). Each takes about
two minutes to compile."""


def measured(groups: Sequence[str], samples: Samples, keep: Callable[[Samples], None]) -> Samples:
    """Measure groups of samples.

    Parameters
    ----------
    groups : sequence of str
        Keys of `GROUPS`.
    samples : Samples
        The samples so far; new samples of a group replace the earlier ones of this group.
    keep : callable
        Called with all samples after each group.
    """
    config = Config.preset(samples.config)
    for group in groups:
        samples = GROUPS[group](samples, config)
        samples = replace(samples, revisions={**samples.revisions, group: _revision()})
        keep(samples)
    return samples


def _revision() -> str:
    """Return the hash of the last commit that changed `_SOURCES`, on which cycles depend.

    ", edited" follows the hash if there are changes that are not committed.
    """
    last, edited = (subprocess.run(["git", *command, "--", *_SOURCES], check=True, text=True,
                                   capture_output=True).stdout.strip()
                    for command in (("log", "-1", "--format=%h"), ("status", "--porcelain")))
    return f"{last}, edited" if edited else last


def _links(samples: Samples, config: Config) -> Samples:
    """Measure sums by `AllReduce` on at most `MOST_CHIPS` chips."""
    del config
    return _with_sums(samples, LINKS, False, _reduced(samples.config, few=True))


def _compiled(samples: Samples, config: Config) -> Samples:
    """Measure compiled sums of matrices on at most `MOST_CHIPS` chips."""
    return _with_sums(samples, COMPILED, False, [
        _matrices(shape, shapes, config) for shape, shapes in product(_SHAPES, _MATRICES)])


def _more_links(samples: Samples, config: Config) -> Samples:
    """Measure sums by `AllReduce` on 8 to 256 chips."""
    del config
    return _with_sums(samples, LINKS, True, _reduced(samples.config, few=False))


def _more_compiled(samples: Samples, config: Config) -> Samples:
    """Measure compiled sums on 8 and 16 chips."""
    return _with_sums(samples, COMPILED, True, [
        _matrices(shape, shapes, config)
        for shape, shapes in product(_MORE_SHAPES, _MATRICES[:2])])


def _more_steps(samples: Samples, config: Config) -> Samples:
    """Measure steps on 8 to 64 chips."""
    return _with_steps(samples, True, _trained(config, few=False))


def _reduced(name: str, *, few: bool) -> list[SumSample]:
    return [_shown(SumSample(LINKS, shape, (size * _KIB,), arrays,
                             reduce_cycles(shape, name, size * _KIB, arrays)))
            for shape, sizes, arrays in _LINK_SUMS if few is (prod(shape) <= MOST_CHIPS)
            for size in sizes]


def _matrices(shape: Shape, matrices: Sequence[tuple[int, ...]], config: Config) -> SumSample:
    """Measure a compiled sum of matrices over all cores of a torus."""
    arrays = [np.zeros(matrix, np.float32) for matrix in matrices]
    with _opened(shape, config) as device:
        sums(CORES * prod(shape), len(arrays))(arrays, device=device)
        found = cycles(device)
    return _shown(SumSample(COMPILED, shape, tuple(array.nbytes for array in arrays), CORES, found))


def _with_sums(samples: Samples, kind: str, more: bool, found: Sequence[SumSample]) -> Samples:
    """Replace the sums of a kind by ``found``.

    If ``more``, replace those on more than `MOST_CHIPS` chips; otherwise those on fewer or as many.
    """
    kept = [sample for sample in samples.sums
            if sample.kind != kind or (prod(sample.shape) > MOST_CHIPS) is not more]
    return replace(samples, sums=tuple(sorted((*kept, *found), key=lambda each: (
        each.kind, prod(each.shape), each.shape, each.contributions, each.sizes))))


def _with_steps(samples: Samples, more: bool, found: Sequence[StepSample]) -> Samples:
    """Replace steps by ``found``; ``more`` as in `_with_sums`."""
    kept = [sample for sample in samples.steps
            if (prod(shape_of(sample.cores)) > MOST_CHIPS) is not more]
    return replace(samples, steps=tuple(sorted(
        (*kept, *found), key=lambda each: (each.program, each.cores))))


def _trained(config: Config, *, few: bool) -> list[StepSample]:
    """Measure steps of all programs on at most `MOST_CHIPS` chips, or on more."""
    wanted: list[tuple[str, int, Callable[[int], int]]] = [
        (name, cores, partial(_perceptron, sizes, batch, config=config))
        for name, sizes, batch, numbers in _STEPS for cores in numbers]
    wanted += [("transformer", cores, partial(_transformer, config=config))
               for cores in _TRANSFORMERS]
    return [_shown(StepSample(name, cores, measure(cores))) for name, cores, measure in wanted
            if few is (prod(shape_of(cores)) <= MOST_CHIPS)]


def _steps(samples: Samples, config: Config) -> Samples:
    """Measure steps on up to `MOST_CHIPS` chips."""
    return _with_steps(samples, False, _trained(config, few=True))


def _perceptron(sizes: Sequence[int], batch: int, cores: int, config: Config) -> int:
    """Return the cycles of a step of a perceptron's training on ``cores`` cores.

    ``sizes`` are those of its layers; each core has ``batch`` examples.
    """
    work = task(sizes, batch * cores)
    step = training_step(len(work.weights), cores, 1)
    with _opened(shape_of(cores), config) as device:
        step(work.weights, work.images, work.wanted, device=device)
        return cycles(device)


def _opened(shape: Shape, config: Config) -> Device | Pod:
    return Device.open(config) if prod(shape) == 1 else Pod.open(shape, config)


def _transformer(cores: int, config: Config) -> int:
    """Return the cycles of a step of the transformer with `_TEXTS` texts for each core."""
    work = transformer(_TEXTS * cores)
    with _opened(shape_of(cores), config) as device:
        jit(work.train(cores))(_state(work), work.batches(0, 1), device=device)
        return cycles(device)


def _state(work: Task) -> Any:
    """Return a task's state before the first step. Any numbers do: cycles do not depend on them."""
    import jax

    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype),
                        jax.eval_shape(work.start, np.int32(0)))


def _plans(samples: Samples, config: Config) -> Samples:
    """Plan the steps of the perceptrons and of the transformer, on 1 core and on several chips."""
    wanted = [(name, sizes, batch, _charted(_sizes(sizes), config))
              for name, sizes, batch, _ in _STEPS]
    wanted += [(_strong_name(batch), SIZES[1], batch, [1, STRONG_BATCH // batch])
               for batch in _STRONG if STRONG_BATCH // batch > CORES]
    found = [_shown(perceptron_plan(name, sizes, batch, cores, config))
             for name, sizes, batch, numbers in wanted for cores in numbers]
    for cores in _charted(_gradients(transformer(_TEXTS)), config):
        work = transformer(_TEXTS * cores)
        found.append(_shown(_planned("transformer", cores, jit(work.train(cores)),
                                     (_state(work), work.batches(0, 1)), config)))
    return replace(samples, plans=tuple(found))


def _charted(sizes: Sequence[int], config: Config) -> list[int]:
    """Return the numbers of cores for which the charts need a plan.

    They are 1, and those of several chips on which the compiler streams the sum of arrays of
    ``sizes`` bytes.
    """
    return [1, *(cores for cores in CHARTED if cores > CORES
                 and streams(config, shape_of(cores), sizes))]


def perceptron_plan(name: str, sizes: Sequence[int], batch: int, cores: int, config: Config
                    ) -> Plan:
    """Plan a step of a perceptron's training; the parameters are those of `_STEPS`."""
    import jax

    weights = [jax.ShapeDtypeStruct(shape, np.float32) for shape in pairwise(sizes)]
    data = (jax.ShapeDtypeStruct((batch * cores, size), np.float32)
            for size in (sizes[0], sizes[-1]))
    return _planned(name, cores, training_step(len(weights), cores, 1), (weights, *data), config)


def _planned(name: str, cores: int, step: JitFunction, arguments: Any, config: Config) -> Plan:
    """Compile a step for ``cores`` cores; ``name`` is that of its `Program`."""
    chips = [step.compile(*arguments, config=config).executable] if cores == 1 else (
        step.compile_pod(*arguments, shape=shape_of(cores), config=config).chips)
    codes = [code for chip in {id(chip): chip for chip in chips}.values()
             for code in compiled_of(chip).cores]
    kernels = max(sum(kernel.predicted for kernel in code.kernels if kernel.kind != "pod_sum")
                  for code in codes)
    return Plan(name, cores, kernels, codes[0].sums)


def _programs(samples: Samples, config: Config) -> Samples:
    """Measure steps of the perceptrons and of the transformer on one core."""
    found = [_alone(name, sizes, batch, config) for name, sizes, batch, _ in _STEPS]
    found.append(_shown(Program(
        "transformer", f"transformer, {_TEXTS} texts", _TEXTS, "texts",
        _gradients(transformer(_TEXTS)), _transformer(1, config), "RTL")))
    others = (each for each in samples.programs if each.name.startswith(_RESNET))
    return replace(samples, programs=(*found, *others))


def _strong(samples: Samples, config: Config) -> Samples:
    """Measure steps of a perceptron on one core, for each number of examples in `_STRONG`."""
    return replace(samples, strong=tuple(
        _alone(_strong_name(batch), SIZES[1], batch, config) for batch in _STRONG))


def _strong_name(batch: int) -> str:
    return f"large{batch}"


def _alone(name: str, sizes: Sequence[int], batch: int, config: Config) -> Program:
    """Measure a step of a perceptron on one core."""
    return _shown(Program(
        name, f"perceptron {'-'.join(map(str, sizes))}, {batch:,} digits", batch, "digits",
        _sizes(sizes),
        _perceptron(sizes, batch, 1, config), "RTL"))


def _sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the number of bytes of each array of a perceptron's gradients."""
    return tuple(_WORD * prod(shape) for shape in pairwise(sizes))


def _gradients(work: Task) -> tuple[int, ...]:
    """Return the number of bytes of each array of a task's parameters."""
    import jax

    return tuple(_WORD * prod(leaf.shape)
                 for leaf in jax.tree.leaves(jax.eval_shape(work.init, jax.random.key(0))))


def _resnet(samples: Samples, config: Config) -> Samples:
    """Predict steps of ResNet-50's training on one core by compiling them."""
    import jax

    def train(weights: Any, x: Any, labels: Any) -> Any:
        loss, _, new = resnet_step(weights, x, labels)
        return loss, new

    weights = parameters()
    sizes, found = tuple(leaf.nbytes for leaf in jax.tree.leaves(weights)), []
    for end, number, side in _RESNETS:
        made = jit(train).compile(weights, images(number, side), np.zeros(number, np.int32),
                                  config=config)
        predicted = sum(kernel.predicted for kernel in compiled_of(made.executable).kernels)
        found.append(_shown(Program(
            _RESNET + end, f"ResNet-50, {number} image{'s' * (number > 1)} of {side} x {side}",
            number, "images", sizes, predicted, "compiler")))
    others = (each for each in samples.programs if not each.name.startswith(_RESNET))
    return replace(samples, programs=(*others, *found))


def _shown(sample: Any) -> Any:
    """Print a sample, and return it."""
    print(sample, flush=True)
    return sample


GROUPS: dict[str, Callable[[Samples, Config], Samples]] = {
    "links": _links, "compiled": _compiled, "programs": _programs, "resnet50": _resnet,
    "steps": _steps, "strong": _strong, "plans": _plans, "more-links": _more_links,
    "more-compiled": _more_compiled, "more-steps": _more_steps}
"""Groups of samples, and the functions that measure them. The last three groups have the samples
for validation; the model is fitted to the others."""
