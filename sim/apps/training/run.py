"""Trains on a chip, and compares the training with the golden model and with float32."""

import pathlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hdl.config import Config
from sim.apps.training.task import State, Task
from sim.compiler.program.compiled import compiled_of
from sim.compiler.program.report import Report
from sim.driver.device import Device
from sim.jit.function import jit
from sim.jit.infeed import Infeed
from sim.jit.program import CompiledProgram

__all__ = ["GoldenCheck", "Run", "accuracy", "float32_accuracy", "measure_step", "products",
           "show", "step_cycles", "trace_step", "train"]

Progress = Callable[["Run", int, float], object]
"""Function that reports progress.

It gets the run so far, and the cycles and host seconds of the chip's current call."""


@dataclass
class Run:
    """The progress and results of a training on a chip.

    A *call* is one run of a program on the chip, which makes one or more steps.

    Attributes
    ----------
    losses : array of float32
        The loss of each step so far.
    states : dict of int to State
        The state before each call that this process made, and the state after its last call. The
        key is the number of the next step.
    calls : list of list of dict
        For each call and each core, its counters.
    seconds : float
        Host time of all calls in seconds.
    predicted : array of int32 or None
        Predicted classes of the held-out inputs; None until the training has ended.
    shown : list of float
        The losses so far of the call in progress.
    """

    losses: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    states: dict[int, State] = field(default_factory=dict)
    calls: list[list[dict[str, int]]] = field(default_factory=list)
    seconds: float = 0.0
    predicted: npt.NDArray[np.int32] | None = None
    shown: list[float] = field(default_factory=list)

    @property
    def state(self) -> State:
        """The state after the most recent step."""
        return self.states[len(self.losses)]

    @property
    def cycles(self) -> int:
        """Cycles of all calls: the sum, over the calls, of the cycles of the slowest core."""
        return sum(max(core["cycles"] for core in call) for call in self.calls)

    @property
    def cores(self) -> list[dict[str, int]]:
        """For each core, the sums of its counters over all calls."""
        return [{name: sum(call[core][name] for call in self.calls) for name in counts}
                for core, counts in enumerate(self.calls[0])]


class _Trainer:
    """Compiles the program that trains one task on chips of one configuration, and calls it."""

    def __init__(self, task: Task, config: Config) -> None:
        self._task = task
        self._config = config
        self._programs: dict[int, CompiledProgram] = {}

    def start(self, device: Device) -> State:
        """The state before the first step, made on the device."""
        return jit(self._task.start)(np.int32(self._task.seed), device=device)

    def program(self, steps: int) -> CompiledProgram:
        """The program that makes ``steps`` steps, compiled once for each value of ``steps``.

        The program takes batches from its infeed, and writes losses to its outfeed.
        """
        import jax

        if steps not in self._programs:
            state = jax.eval_shape(self._task.start, np.int32(self._task.seed))
            self._programs[steps] = jit(self._task.train(self._config.cores)).compile(
                state, Infeed(self._batches(0, 1), steps), config=self._config, outfeed=True)
        return self._programs[steps]

    def call(self, state: State, first: int, steps: int, device: Device,
             progress: Callable[[], object] = lambda: None,
             show: Callable[[float], object] = lambda loss: None) -> tuple[State, Any]:
        """Make ``steps`` steps from ``state`` on; return the new state and the loss of each step.

        ``first`` is the number of the first of these steps, which selects the batches. ``progress``
        is called repeatedly while the chip runs; ``show`` is called with each loss as soon as all
        cores have written their parts of it to HBM.
        """
        import jax

        outputs = self.program(steps)(
            *jax.tree.leaves(state), device=device, progress=progress,
            infeed=map(jax.tree.leaves, self._batches(first, steps)),
            outfeed=lambda step, rows: show(float(np.sum(np.asarray(rows[-1])))))
        return (jax.tree.unflatten(jax.tree.structure(state), outputs[:-1]),
                np.sum(outputs[-1], axis=1))

    def _batches(self, first: int, steps: int) -> Iterator[dict[str, Any]]:
        """Yield the batches of ``steps`` steps from step number ``first`` on, one by one."""
        for number in range(first, first + steps):
            yield {name: batches[0] for name, batches in self._task.batches(number, 1).items()}


def train(task: Task, device: Device,
          progress: Progress = lambda run, cycles, seconds: None, *, run: Run | None = None,
          save: Callable[[Run], object] = lambda run: None) -> Run:
    """Train on all cores of a device, and classify the held-out inputs on it.

    Parameters
    ----------
    task : Task
    device : Device
    progress : callable
        A `Progress`, called repeatedly during each call of the chip, and after it.
    run : Run, optional
        An interrupted training to continue.
    save : callable
        Called after each call of the chip, with the run so far.

    Returns
    -------
    Run
        The complete training.
    """
    trainer = _Trainer(task, device.config)
    run = Run(states={0: trainer.start(device)}) if run is None else run
    while len(run.losses) < task.steps:
        done = len(run.losses)
        steps = min(task.steps_per_call, task.steps - done)
        before, began = device.counters(0)["cycles"], time.perf_counter()

        def follow(before: int = before, began: float = began) -> None:
            progress(run, device.counters(0)["cycles"] - before, time.perf_counter() - began)

        run.shown = []
        state, losses = trainer.call(run.state, done, steps, device, follow, run.shown.append)
        run.seconds += time.perf_counter() - began
        run.calls.append([device.last_run[core] for core in sorted(device.last_run)])
        run.losses, run.shown = np.concatenate([run.losses, losses]), []
        run.states[len(run.losses)] = state
        save(run)
        progress(run, 0, 0.0)
    run.predicted = jit(task.classify(device.config.cores))(run.state[0], task.held_out,
                                                            device=device)
    return run


class GoldenCheck:
    """Compares losses of a run with those of the golden model, bit by bit.

    The golden chip repeats the first ``first`` steps from the same seed. For each later call that
    this process made, it repeats the call's first step, from the simulated chip's state before the
    call. With ``everything``, it repeats all steps from the seed.

    Parameters
    ----------
    task : Task
    config : Config
    everything : bool
        Whether all steps are repeated.
    first : int
        Number of steps at the start of the training that are repeated in any case.
    """

    def __init__(self, task: Task, config: Config, *, everything: bool = False, first: int = 2
                 ) -> None:
        self._task = task
        self._config = config
        self._first = task.steps if everything else min(first, task.steps)

    def steps(self, run: Run) -> list[int]:
        """Numbers of the steps that are repeated, in order; they count from 0."""
        return sorted({*range(self._first), *run.states} - {self._task.steps})

    def compare(self, run: Run) -> Iterator[tuple[int, bool]]:
        """Repeat steps; yield the number of each, and whether its loss has the same bits."""
        trainer = _Trainer(self._task, self._config)
        with Device.open(self._config, "golden") as golden:
            state = trainer.start(golden)
            for number in self.steps(run):
                if number >= self._first:
                    state = run.states[number]
                state, losses = trainer.call(state, number, 1, golden)
                yield number, bool(np.array_equal(losses.view(np.uint32),
                                                  run.losses[[number]].view(np.uint32)))


def show(task: Task, state: State, device: Device) -> str | None:
    """Return ``task.show``'s text about what was learned, computed on ``device``.

    The model has the parameters in ``state``. Return None if ``task.show`` is None.
    """
    if task.show is None:
        return None
    return task.show(state[0], lambda function, *arguments: jit(function)(*arguments,
                                                                          device=device))


def trace_step(task: Task, state: State, config: Config, trace: pathlib.Path) -> None:
    """Make one step from ``state`` on a new device in RTL, with a trace.

    ``trace`` is the prefix of the trace's files, as in `Device.open`.
    """
    with Device.open(config, trace=trace) as device:
        _Trainer(task, config).call(state, 0, 1, device)


def accuracy(predicted: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """Fraction of the predictions that equal their labels."""
    return float((np.asarray(predicted) == labels).mean())


def float32_accuracy(task: Task) -> float:
    """Accuracy after the same training in float32, by JAX on the host."""
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        state, train = jax.jit(task.start)(task.seed), jax.jit(task.train(1))
        for first in range(0, task.steps, task.steps_per_call):
            steps = min(task.steps_per_call, task.steps - first)
            state, _ = train(state, task.batches(first, steps))
        return accuracy(jax.jit(task.classify(1))(state[0], task.held_out), task.labels)


def products(task: Task, config: Config) -> int:
    """Number of multiplications in a training step of ``task``, without padding, on all cores."""
    program = _Trainer(task, config).program(1)
    return config.cores * sum(kernel.products
                              for kernel in compiled_of(program.executable).kernels)


def step_cycles(task: Task, device: Device) -> int:
    """Run the first step on all cores of ``device``; return the cycles of the slowest core."""
    trainer = _Trainer(task, device.config)
    trainer.call(trainer.start(device), 0, 1, device)
    return max(counts["cycles"] for counts in device.last_run.values())


def measure_step(task: Task, state: State, device: Device) -> Report:
    """Run a training step from ``state`` on one core, and measure each of its kernels.

    The step's batch is the part of the first batch that one core gets when all cores share it.
    """
    import jax

    part = range(task.batch // device.config.cores)
    data = {name: np.stack([batch.take(part, task.axis.get(name, -1)) for batch in batches])
            for name, batches in task.batches(0, 1).items()}
    program = jit(task.train(1)).compile(state, data, config=device.config)
    _, report = device.profile(program.executable,
                               *map(np.asarray, jax.tree.leaves((state, data))))
    return report
