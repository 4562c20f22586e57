"""A training task: a model, its data, and how it is trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.apps.training.optimizers import Optimizer

__all__ = ["CORES", "State", "Task"]

CORES = "cores"
"""Name of the mesh axis over which batches are split."""

State = Any
"""Parameters, the optimizer's memory, and the number of the next step."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Task:
    """A model, its data, and how it is trained; all functions are plain JAX.

    Attributes
    ----------
    name, title : str
        A word that names the task, and one line that describes it.
    init : callable
        Makes random parameters, a pytree, from a key of ``jax.random``.
    loss : callable
        A function of the parameters, a core's part of a batch (a mapping), and the step's number.
        It returns the sum of the part's losses, divided by the size of the whole batch.
    predict : callable
        The classes of held-out inputs, as a function of the parameters and the inputs; each core
        receives a part of the inputs.
    optimizer : Optimizer
    data : mapping of str to array
        All batches: the first dimension counts batches, the others are the dimensions of a batch.
    held_out : array
        Inputs for ``predict``: the same dimensions, in the same order, as those of a batch's array
        of inputs, but any number of examples.
    labels : array of int32
        Classes of the held-out inputs.
    steps, steps_per_call : int
        Number of steps of the whole training, and of one call of the chip.
    seed : int
        Seed of the random parameters.
    axis : mapping of str to int
        For each array of a batch, and for ``"held_out"``, the dimension that counts examples and is
        split over the cores; the last dimension if not given.
    show : callable, optional
        Makes a text that shows what was learned. Its arguments are the parameters, and a function
        that runs another function on the chip: ``run(function, *arrays)``.
    """

    name: str
    title: str
    init: Callable[[Any], Any]
    loss: Callable[[Any, Mapping[str, Any], Any], Any]
    predict: Callable[[Any, Any], Any]
    optimizer: Optimizer
    data: Mapping[str, Array]
    held_out: Array
    labels: Array
    steps: int
    steps_per_call: int
    seed: int = 0
    axis: Mapping[str, int] = field(default_factory=dict)
    show: Callable[[Any, Callable[..., Any]], str] | None = None

    @property
    def batch(self) -> int:
        """Number of examples in a step."""
        name, batches = next(iter(self.data.items()))
        return int(batches[0].shape[self.axis.get(name, -1)])

    @cached_property
    def start(self) -> Callable[[Any], State]:
        """A function of a seed that returns the state before the first step."""
        import jax
        import jax.numpy as jnp

        def start(seed: Any) -> State:
            parameters = self.init(jax.random.key(seed))
            return parameters, self.optimizer.init(parameters), jnp.int32(0)

        return start

    def batches(self, first: int, steps: int) -> dict[str, Array]:
        """The batches for ``steps`` steps, the first of which is step number ``first`` (from 0).

        Step n uses batch number n modulo the number of batches.
        """
        return {name: batches[np.arange(first, first + steps) % len(batches)]
                for name, batches in self.data.items()}

    def train(self, cores: int) -> Callable[[State, Mapping[str, Any]], Any]:
        """The training loop: a function of a state and batches that makes one step with each batch.

        It returns the new state, and an array of shape (steps, cores) with each core's part of each
        loss; a batch's loss is the sum over the cores.

        Parameters
        ----------
        cores : int
            Number of cores that share each batch, 1 or 2. Gradients are summed over the cores.
        """
        import jax
        from jax import lax
        from jax.sharding import PartitionSpec

        def together(parts: Any) -> Any:
            return lax.psum(parts, CORES) if cores > 1 else parts

        def part(state: State, data: Mapping[str, Any]) -> Any:
            def step(state: State, batch: Mapping[str, Any]) -> Any:
                parameters, memory, number = state
                value, gradients = jax.value_and_grad(self.loss)(parameters, batch, number)
                gradients = together(gradients)
                parameters, memory = self.optimizer.update(parameters, memory, gradients, number)
                # Only the host needs the sum of the cores' losses, so it adds them.
                return (parameters, memory, number + 1), value[None]

            return lax.scan(step, state, data)

        cuts = {name: [None, *self._cut(name, batches[0])] for name, batches in self.data.items()}
        return _over_cores(part, cores, cuts, (PartitionSpec(), PartitionSpec(None, CORES)))

    def classify(self, cores: int) -> Callable[[Any, Any], Any]:
        """The function of parameters and held-out inputs that returns the inputs' classes.

        ``cores`` is the number of cores that share the inputs, 1 or 2.
        """
        from jax.sharding import PartitionSpec

        cut = self._cut("held_out", self.held_out)
        return _over_cores(self.predict, cores, cut, PartitionSpec(CORES))

    def _cut(self, name: str, array: Array) -> list[str | None]:
        """For each dimension of ``array``, the mesh axis over which it is split; None if it is not.

        ``name`` is the array's name in ``data``, or ``"held_out"``.
        """
        axes: list[str | None] = [None] * array.ndim
        axes[self.axis.get(name, -1)] = CORES
        return axes


def _over_cores(function: Callable[..., Any], cores: int, cuts: Any, results: Any
                ) -> Callable[..., Any]:
    """Return a function that runs ``function`` on all cores.

    Each core gets a copy of the first argument and a part of the second. ``cuts`` has the structure
    of the second argument, with the result of `Task._cut` in place of each array. ``results`` are
    the PartitionSpecs of the function's results.
    """
    import jax
    from jax.sharding import AbstractMesh, PartitionSpec

    if cores == 1:
        return function
    specs = jax.tree.map(lambda axes: PartitionSpec(*axes), cuts,
                         is_leaf=lambda node: isinstance(node, list))
    return jax.shard_map(
        function, mesh=AbstractMesh((cores,), (CORES,)), in_specs=(PartitionSpec(), specs),
        out_specs=results, check_vma=False)


def wrapped(count: int, size: int) -> npt.NDArray[np.int64]:
    """Indices 0 to ``count`` - 1, followed by indices from 0 again that fill the last batch.

    A batch has ``size`` examples; the result has the shape (batches * size,).
    """
    return np.arange(-(-count // size) * size) % count
