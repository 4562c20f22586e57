"""Checkpoints of `make sim`: after a kill, the resumed training has the same bits."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.apps import output
from sim.apps.training import __main__ as command
from sim.apps.training.checkpoint import Checkpoint
from sim.apps.training.optimizers import Momentum, exponential_decay
from sim.apps.training.run import GoldenCheck, Run, train
from sim.apps.training.task import Task
from sim.driver.device import Device
from verif.sim.apps.test_training import small_task

jax = pytest.importorskip("jax")

ROOT = pathlib.Path(__file__).resolve().parents[3]
TINY = Config.preset("tiny")


def killed(path: str) -> None:
    """Train, and kill this process in the middle of the second call."""
    task = small_task()

    def follow(run: Run, cycles: int, seconds: float) -> None:
        if len(run.losses) == task.steps_per_call and seconds:
            os.kill(os.getpid(), signal.SIGKILL)

    with Device.open(TINY, "golden") as device:
        train(task, device, follow, save=Checkpoint(pathlib.Path(path), task, TINY).save)


def test_a_killed_training_goes_on_with_the_same_bits(tmp_path: pathlib.Path) -> None:
    task = small_task()
    checkpoint = Checkpoint(tmp_path / "training.npz", task, TINY)
    assert checkpoint.load() is None
    with Device.open(TINY, "golden") as device:
        whole = train(task, device)
    code = f"from {__name__} import killed; killed({str(checkpoint.path)!r})"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True,
                           text=True, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    run = checkpoint.load()
    assert run is not None
    assert len(run.losses) == task.steps_per_call < task.steps
    with Device.open(TINY, "golden") as device:
        train(task, device, run=run, save=checkpoint.save)
    kept = checkpoint.load()
    assert kept is not None
    assert whole.predicted is not None
    assert run.predicted is not None
    np.testing.assert_array_equal(run.predicted, whole.predicted)
    for found in (run, kept):
        assert found.losses.tobytes() == whole.losses.tobytes()
        assert jax.tree.structure(found.state) == jax.tree.structure(whole.state)
        for ours, theirs in zip(jax.tree.leaves(found.state), jax.tree.leaves(whole.state),
                                strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert ours.tobytes() == theirs.tobytes()
        assert len(found.calls) == len(whole.calls) == 3
    # The golden model repeats what this process did, and the first steps.
    assert list(GoldenCheck(task, TINY).compare(run)) == [(n, True) for n in (0, 1, 2, 4)]
    assert GoldenCheck(task, TINY).steps(kept) == [0, 1]


@pytest.fixture
def checkpoint(tmp_path: pathlib.Path) -> Checkpoint:
    """A checkpoint that was saved before the first step."""
    task = small_task()
    checkpoint = Checkpoint(tmp_path / "training.npz", task, TINY)
    checkpoint.save(Run(states={0: jax.jit(task.start)(task.seed)}))
    return checkpoint


def test_another_training_is_refused(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
                                     ) -> None:
    task = checkpoint.task
    same = dataclasses.replace(checkpoint, task=dataclasses.replace(task, steps=500))
    assert same.load() is not None
    images = {**task.data, "images": -task.data["images"]}

    def wider(key: Any) -> Any:
        return jax.tree.map(lambda part: 2 * part, task.init(key))

    slower = Momentum(exponential_decay(0.1, ramp=2, half_life=50))
    for other in (dataclasses.replace(checkpoint, config=dataclasses.replace(TINY, cores=1)),
                  *(dataclasses.replace(checkpoint, task=dataclasses.replace(task, **change))
                    for change in ({"seed": 1}, {"data": images},
                                   {"optimizer": slower}, {"init": wider}))):
        with pytest.raises(ValueError, match="must be a checkpoint of this training"):
            other.load()
    monkeypatch.setattr(jax, "__version__", "0.0")
    with pytest.raises(ValueError, match="data set, chip or version"):
        dataclasses.replace(checkpoint).load()


def test_a_file_is_replaced_as_a_whole(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
                                       ) -> None:
    before = checkpoint.path.read_bytes()

    def fail(file: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(Run(states={0: jax.jit(checkpoint.task.start)(3)}))
    assert checkpoint.path.read_bytes() == before
    assert [*checkpoint.path.parent.iterdir()] == [checkpoint.path]
    checkpoint.path.write_bytes(before[:-100])
    with pytest.raises(ValueError, match=r"training\.npz must be a checkpoint of a training"):
        checkpoint.load()


@pytest.mark.parametrize("saved", [False, True])
def test_an_interrupted_training_goes_on_only_from_its_checkpoint(
        checkpoint: Checkpoint, saved: bool, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    def report(task: Task, config: Config, *, save: Callable[[Run], None], **_: Any) -> None:
        if saved:
            save(Run(states={0: jax.jit(task.start)(task.seed)}))
        raise KeyboardInterrupt

    folder = checkpoint.path.parent
    # That of an earlier training does not count.
    checkpoint.path.rename(folder / "perceptron.npz")
    monkeypatch.setattr(sys, "argv", ["training", "perceptron"])
    monkeypatch.setattr(output, "build_folder", lambda: folder)
    monkeypatch.setattr(command, "PRESETS", {"v2": TINY})
    monkeypatch.setattr(command, "MODELS", {"perceptron": lambda: checkpoint.task})
    monkeypatch.setattr(command, "report", report)
    assert command.main() == 130
    assert ("RESUME=1" in capsys.readouterr().out) is saved
