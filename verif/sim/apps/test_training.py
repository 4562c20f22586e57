"""What `make sim` runs, on the smallest array: a small perceptron, a few steps."""

import dataclasses
import json
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

from hdl.config import Config
from sim.apps import output
from sim.apps.training import __main__ as command
from sim.apps.training.data import Digits
from sim.apps.training.models.perceptron import dense_classifier
from sim.apps.training.optimizers import Adam, Momentum, exponential_decay
from sim.apps.training.run import GoldenCheck, Run, accuracy, float32_accuracy, train
from sim.apps.training.task import Task, wrapped
from sim.apps.training.text import decode, topics
from sim.driver.device import Device

jax = pytest.importorskip("jax")

TINY = Config.preset("tiny")
PIXELS, CLASSES, BATCH = 6, 3, 8


def small_task(**changes: Any) -> Task:
    """A task with five training steps, of which each call executes two."""
    rng = np.random.default_rng(7)
    images = rng.standard_normal((24, PIXELS)).astype(np.float32)
    labels = images[:, :CLASSES].argmax(axis=1).astype(np.int32)
    task = dense_classifier((PIXELS, 5, CLASSES), Digits(images, labels, images, labels), BATCH,
                            Momentum(exponential_decay(0.2, ramp=2, half_life=50)))
    return dataclasses.replace(task, steps=5, steps_per_call=2, **changes)


@pytest.fixture(scope="module")
def task() -> Task:
    return small_task()


@pytest.fixture(scope="module")
def rtl(task: Task) -> Run:
    with Device.open(TINY) as device:
        return train(task, device)


@pytest.mark.slow
def test_losses_in_rtl_have_the_bits_of_the_golden_model(task: Task, rtl: Run) -> None:
    assert rtl.losses.shape == (5,)
    check = GoldenCheck(task, TINY, everything=True)
    assert list(check.compare(rtl)) == [(number, True) for number in range(5)]


@pytest.mark.slow
def test_sample_covers_the_start_and_each_call(task: Task, rtl: Run) -> None:
    check = GoldenCheck(task, TINY)
    assert check.steps(rtl) == [0, 1, 2, 4]
    assert [equal for _, equal in check.compare(rtl)] == [True] * 4


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 1, 2, 4])
def test_a_wrong_bit_of_a_loss_is_reported(task: Task, rtl: Run, step: int) -> None:
    losses = rtl.losses.copy()
    losses.view(np.uint32)[step] ^= 1
    found = dict(GoldenCheck(task, TINY).compare(dataclasses.replace(rtl, losses=losses)))
    assert [number for number, equal in found.items() if not equal] == [step]


@pytest.mark.slow
def test_training_is_that_of_jax(task: Task, rtl: Run) -> None:
    """The chip's results differ from JAX's on the CPU only by the rounding to bfloat16."""
    state, losses = jax.jit(task.train(1))(jax.jit(task.start)(task.seed),
                                                  task.batches(0, 5))
    np.testing.assert_allclose(rtl.losses, losses[:, 0], rtol=0.03)
    for ours, theirs in zip(jax.tree.leaves(rtl.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=0.03)
    assert rtl.predicted is not None
    assert abs(accuracy(rtl.predicted, task.labels) - float32_accuracy(task)) <= 0.1


def test_cores_share_a_batch() -> None:
    """Two cores that share a batch differ from one core only in the order of sums.

    Losses are shown while a call runs.
    """
    task = dataclasses.replace(small_task(), steps_per_call=4)
    shown: list[list[float]] = []
    with Device.open(dataclasses.replace(TINY, cores=2), "golden") as device:
        both = train(task, device, lambda run, cycles, seconds: shown.append(
            [*run.losses, *run.shown]))
    assert all(losses == list(both.losses[:len(losses)]) for losses in shown)
    assert {len(losses) for losses in shown} > {4, 5}
    with Device.open(dataclasses.replace(TINY, cores=1), "golden") as device:
        one = train(task, device)
    np.testing.assert_allclose(both.losses, one.losses, rtol=1e-3)


@pytest.mark.slow
def test_report_and_pictures(task: Task, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["training", "perceptron", "--check", "all", "--trace"])
    monkeypatch.setattr(output, "build_folder", lambda: tmp_path)
    monkeypatch.setattr(command, "PRESETS", {"v2": TINY})
    monkeypatch.setattr(command, "MODELS", {"perceptron": lambda: task})
    assert command.main() == 0
    figures = json.loads((tmp_path / "report.json").read_text())
    assert figures["loss_bit_exact"] is True
    assert figures["losses_compared"] == figures["train_steps"] == 5
    assert figures["final_loss"] < figures["first_loss"]
    assert {"accuracy", "accuracy_float32", "bit_exact", "cycles", "cycles_with_loading", "cores",
            "cycles_per_step", "mxu_active", "cycles_per_second", "open_seconds"} <= figures.keys()
    assert figures["cycles"] == round(5 * figures["cycles_per_step"])
    assert 0 < figures["mxu_utilisation"] <= figures["mxu_active"] <= 1
    assert "losses as golden              yes  in every bit, in 5 steps" in capsys.readouterr().out
    for name in ("loss.png", "cycles.png", "trace.json", "trace.vcd"):
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "resnet", "transformer"])
def test_first_step_of_a_model_is_that_of_jax(name: str) -> None:
    """One core of the full-size golden chip differs from JAX only by the rounding to bfloat16.

    With two cores, dropout and batch normalisation would apply to each core's part of the batch.
    """
    task = dataclasses.replace(command.MODELS[name](batch=2), steps=1, steps_per_call=1,
                               predict=lambda parameters, x: jax.numpy.zeros(1))
    with Device.open(Config.preset("v2", cores=1), "golden") as device:
        run = train(task, device)
    start = jax.jit(task.start)(task.seed)
    state, losses = jax.jit(task.train(1))(start, task.batches(0, 1))
    np.testing.assert_allclose(run.losses, losses[:, 0], rtol=0.02)
    # The first steps of Adam have the same length in each parameter: signs of gradients.
    moved = [np.sign(np.asarray(after) - np.asarray(before)) for after, before
             in zip(jax.tree.leaves(run.state[0]), jax.tree.leaves(start[0]), strict=True)]
    expected = [np.sign(np.asarray(after) - np.asarray(before)) for after, before
                in zip(jax.tree.leaves(state[0]), jax.tree.leaves(start[0]), strict=True)]
    # Not those that do not move, such as the weights of pixels that no digit has.
    same = sum(((ours == theirs) & (theirs != 0)).sum()
               for ours, theirs in zip(moved, expected, strict=True))
    moving = sum((array != 0).sum() for array in expected)
    assert same > 0.9 * moving > 0.8 * sum(array.size for array in moved)


def test_text_is_that_of_pythons_documentation() -> None:
    text = decode(topics())
    assert len(text) > 400_000
    assert text.startswith('The "assert" statement\n')


def test_schedule_ramps_and_decays() -> None:
    rate = exponential_decay(0.8, ramp=4, half_life=10)
    got = [float(rate(np.asarray(step, np.int32))) for step in (0, 1, 3, 10, 20)]
    np.testing.assert_allclose(
        got, [0.2, 0.4 * 2 ** -0.1, 0.8 * 2 ** -0.3, 0.4, 0.2], rtol=1e-6)


def test_adam_is_that_of_the_paper() -> None:
    adam = Adam(exponential_decay(0.01, ramp=1, half_life=1e9))
    rng = np.random.default_rng(3)
    w = want = rng.standard_normal(5)
    memory, m, v = adam.init(w), np.zeros(5), np.zeros(5)
    for step in range(20):
        gradient = rng.standard_normal(5)
        w, memory = adam.update(w, memory, gradient, np.asarray(step, np.int32))
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient ** 2
        t = step + 1
        want = want - 0.01 * (m / (1 - 0.9 ** t)) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
    np.testing.assert_allclose(w, want, rtol=1e-4)


def test_last_batch_is_filled_with_the_first_examples() -> None:
    assert wrapped(5, 2).tolist() == [0, 1, 2, 3, 4, 0]
    assert wrapped(4, 2).tolist() == [0, 1, 2, 3]
