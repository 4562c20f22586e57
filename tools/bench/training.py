"""Training steps in RTL: of a small network on one and on both cores, and of the transformer."""

from typing import Any

import numpy as np

from hdl.config import Config
from sim.apps.training.models.transformer import transformer
from sim.apps.training.run import products, step_cycles
from sim.jit.function import jit
from systolith import Device

__all__ = ["cores_figures", "step", "transformer_figures"]

WIDTH, LAYERS, BATCH = 256, 3, 256
"""Width and number of layers of the trained network, and number of examples for each core: the
batch of a step on both cores is twice as large."""
RATE = 0.1


def _part(layers: Any, x: Any, y: Any, cores: int) -> Any:
    """Compute one core's share of a step of gradient descent on ``cores`` cores.

    ``layers`` lists the weight matrices. ``x`` and ``y`` are the inputs and the wanted outputs of
    this core's part of the batch. Return the loss of the whole batch and the new layers.
    """
    import jax
    import jax.numpy as jnp

    def loss(layers: Any) -> Any:
        values = x
        for weights in layers[:-1]:
            values = jnp.maximum(values @ weights, 0)
        # A part of the mean over the whole batch: the sum over the cores is the mean.
        return jnp.sum((values @ layers[-1] - y) ** 2) / (cores * y.size)

    both = jax.value_and_grad(loss)(layers)
    value, slopes = jax.lax.psum(both, "cores") if cores > 1 else both
    return value, jax.tree.map(lambda old, slope: old - RATE * slope, layers, slopes)


def step(cores: int) -> Any:
    """Return a function of (layers, x, y): a training step on ``cores`` cores.

    Each core has an equal part of the batch. The function returns the loss and the new layers.
    """
    import jax
    from jax.sharding import AbstractMesh, PartitionSpec

    def part(layers: Any, x: Any, y: Any) -> Any:
        return _part(layers, x, y, cores)

    if cores == 1:
        return part
    whole, cut = PartitionSpec(), PartitionSpec("cores")
    return jax.shard_map(part, mesh=AbstractMesh((cores,), ("cores",)), check_vma=False,
                         in_specs=(whole, cut, cut), out_specs=(whole, whole))


def cores_figures(config: Config) -> dict[str, float]:
    """Measure the ratio of the training throughput on both cores to that on one core.

    A step on both cores has a batch twice as large as that of a step on one core.
    """
    rng = np.random.default_rng(3)
    layers = [rng.normal(0, WIDTH ** -0.5, (WIDTH, WIDTH)).astype(np.float32)
              for _ in range(LAYERS)]
    x, y = (rng.normal(size=(2 * BATCH, WIDTH)).astype(np.float32) for _ in range(2))
    cycles: dict[int, int] = {}
    with Device.open(config) as device:
        for cores in (1, 2):
            jit(step(cores))(layers, x[:cores * BATCH], y[:cores * BATCH], device=device)
            cycles[cores] = max(counts["cycles"] for counts in device.last_run.values())
    return {"cores_2_over_1": 2 * cycles[1] / cycles[2],
            **{f"cores_{cores}_cycles": count for cores, count in cycles.items()}}


def transformer_figures(config: Config) -> dict[str, float]:
    """Measure a transformer's training step on all cores: the arrays' utilization, and cycles."""
    task = transformer()
    with Device.open(config) as device:
        cycles = step_cycles(task, device)
    peak = cycles * config.cores * config.array ** 2
    return {"transformer_step": products(task, config) / peak, "transformer_step_cycles": cycles}
