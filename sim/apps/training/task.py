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
"""Axis of the mesh over which batches are cut."""

State = Any
"""Parameters, the optimizer's memory, and the number of the next step."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Task:
    """A model, its data, and how it is trained; all functions are plain JAX.

    Attributes
    ----------
    name, title : str
        One word, and one line that says what it is.
    init : callable
        Makes random parameters, a pytree, from a key of ``jax.random``.
    loss : callable
        The loss of a batch, a part of which each core has: parameters, the batch as a mapping,
        and the number of the step. It is a sum over the part, divided by the whole batch's size.
    predict : callable
        Classes of held-out inputs: parameters, inputs; a part of the inputs on each core.
    optimizer : Optimizer
    data : mapping of str to array
        Batches: the first dimension counts them, and others are those of a batch.
    held_out : array
        Inputs for ``predict``, as a batch.
    labels : array of int32
        Their classes.
    steps, steps_per_call : int
        Steps in all, and in one call of the chip.
    seed : int
        Of the parameters.
    axis : mapping of str to int
        The dimension of each array of a batch that counts examples and is cut over the cores, and
        of ``held_out`` by that name; the last one if not given.
    show : callable, optional
        Makes a text that shows what was learned, from the parameters and a function that runs a
        function of arrays on the chip.
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
        """Examples of a step."""
        name, batches = next(iter(self.data.items()))
        return int(batches[0].shape[self.axis.get(name, -1)])

    @cached_property
    def start(self) -> Callable[[Any], State]:
        """The state before the first step, from a seed."""
        import jax
        import jax.numpy as jnp

        def start(seed: Any) -> State:
            parameters = self.init(jax.random.key(seed))
            return parameters, self.optimizer.init(parameters), jnp.int32(0)

        return start

    def batches(self, first: int, steps: int) -> dict[str, Array]:
        """The data of so many steps from step ``first`` on, which counts from 0."""
        return {name: batches[np.arange(first, first + steps) % len(batches)]
                for name, batches in self.data.items()}

    def train(self, cores: int) -> Callable[[State, Mapping[str, Any]], Any]:
        """A step with each batch, the whole loop as one function: state, data; the state, losses.

        Parameters
        ----------
        cores : int
            Devices that share each batch, 1 or 2. Gradients are summed over them.
        """
        import jax
        from jax import lax

        def together(parts: Any) -> Any:
            return lax.psum(parts, CORES) if cores > 1 else parts

        def part(state: State, data: Mapping[str, Any]) -> Any:
            def step(state: State, batch: Mapping[str, Any]) -> Any:
                parameters, memory, number = state
                value, gradients = jax.value_and_grad(self.loss)(parameters, batch, number)
                gradients = together(gradients)
                parameters, memory = self.optimizer.update(parameters, memory, gradients, number)
                return (parameters, memory, number + 1), value

            state, losses = lax.scan(step, state, data)
            # Nothing in the loop needs the losses: their parts are added once.
            return state, together(losses)

        cuts = {name: [None, *self._cut(name, batches[0])] for name, batches in self.data.items()}
        return _over_cores(part, cores, cuts, cut_result=False)

    def classify(self, cores: int) -> Callable[[Any, Any], Any]:
        """Classes of held-out inputs: parameters, inputs; classes."""
        cut = self._cut("held_out", self.held_out)
        return _over_cores(self.predict, cores, cut, cut_result=True)

    def _cut(self, name: str, array: Array) -> list[str | None]:
        """For each dimension of an array, the axis of the mesh over which it is cut."""
        axes: list[str | None] = [None] * array.ndim
        axes[self.axis.get(name, -1)] = CORES
        return axes


def _over_cores(function: Callable[..., Any], cores: int, cuts: Any, *, cut_result: bool
                ) -> Callable[..., Any]:
    """Cut the second argument's arrays over the cores; each has all of the first argument."""
    import jax
    from jax.sharding import AbstractMesh, PartitionSpec

    if cores == 1:
        return function
    specs = jax.tree.map(lambda axes: PartitionSpec(*axes), cuts,
                         is_leaf=lambda node: isinstance(node, list))
    return jax.shard_map(
        function, mesh=AbstractMesh((cores,), (CORES,)), in_specs=(PartitionSpec(), specs),
        out_specs=PartitionSpec(CORES) if cut_result else PartitionSpec(), check_vma=False)


def wrapped(count: int, size: int) -> npt.NDArray[np.int64]:
    """Indices of ``count`` examples for batches of ``size``: the first ones fill the last batch."""
    return np.arange(-(-count // size) * size) % count
