"""Checkpoints: files of numpy arrays from which a training can continue.

A checkpoint holds the parameters, the optimizer's memory and the number of the next step, from
which random numbers and the choice of batches follow. It also holds the losses and counters of the
steps so far.
"""

import hashlib
import os
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.apps.training.run import Run
from sim.apps.training.task import State, Task
from sim.compiler.program.cache import source_digest

__all__ = ["Checkpoint"]

_PARTS = "parameters", "optimizer", "step"
"""Names of the parts of a `State`, in order."""


@dataclass(frozen=True)
class Checkpoint:
    """The file that keeps the training of one task on chips of one configuration.

    Attributes
    ----------
    path : path
        The file, ``.npz``; its folder must exist.
    task : Task
    config : Config
    """

    path: pathlib.Path
    task: Task
    config: Config

    def save(self, run: Run) -> None:
        """Write the training to the file, atomically.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        names = list(run.calls[0][0]) if run.calls else []
        counts = [[list(core.values()) for core in call] for call in run.calls]
        arrays = {"digest": np.array(self._digest), "losses": run.losses,
                  "seconds": np.array(run.seconds), "counters": np.array(names),
                  "counts": np.array(counts, np.int64), **_named(run.state)}
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            with partial.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)

    def load(self) -> Run | None:
        """Read the saved training; None if there is no file.

        Raises
        ------
        OSError
            If the file cannot be read.
        ValueError
            If the file is not a checkpoint, or belongs to another training or another version.
        """
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                arrays = dict(parts)
            digest = str(arrays["digest"])
        except FileNotFoundError:
            return None
        except OSError:
            raise
        except Exception as error:
            raise ValueError(f"{self.path} must be a checkpoint of a training: {error}") from error
        if digest != self._digest:
            raise ValueError(f"{self.path} must be a checkpoint of this training, not of another "
                             f"model, optimizer, data set, chip or version")
        names, counts = arrays["counters"].tolist(), arrays["counts"].tolist()
        losses = arrays["losses"]
        return Run(losses=losses, states={len(losses): self._state(arrays)},
                   calls=[[dict(zip(names, core, strict=True)) for core in call]
                          for call in counts],
                   seconds=float(arrays["seconds"]))

    def _state(self, arrays: Mapping[str, npt.NDArray[Any]]) -> State:
        import jax

        state = jax.eval_shape(self.task.start, np.int32(self.task.seed))
        return jax.tree.unflatten(jax.tree.structure(state),
                                  [arrays[name] for name in _named(state)])

    @cached_property
    def _digest(self) -> str:
        """A digest of everything on which the bits of the training's results depend.

        That is: the chip's configuration, the seed and the data; the programs that start the
        training and make a step; the versions of JAX, the compiler and the golden model.
        """
        import jax

        task = self.task
        types = jax.eval_shape(lambda: (task.start(np.int32(task.seed)), task.batches(0, 1)))
        digest = hashlib.sha256(source_digest("golden"))
        digest.update(f"{jax.__version__} {self.config} {task.seed}".encode())
        for program in (jax.jit(task.start).trace(np.int32(task.seed)),
                        jax.jit(task.train(self.config.cores)).trace(*types)):
            digest.update(program.lower(lowering_platforms=("cpu",)).as_text().encode())
        for name in sorted(task.data):
            digest.update(np.ascontiguousarray(task.data[name]).data)
        return digest.hexdigest()


def _named(state: State) -> dict[str, Any]:
    """Map paths such as ``parameters/w1`` to the arrays of a state, in the state's order."""
    import jax

    return {"/".join([name, *(jax.tree_util.keystr([key], simple=True) for key in path)]): leaf
            for name, part in zip(_PARTS, state, strict=True)
            for path, leaf in jax.tree_util.tree_flatten_with_path(part)[0]}
