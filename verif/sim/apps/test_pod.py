"""The training of `make pod`, and the command."""

import pathlib
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

from sim.apps import pod
from sim.apps.pod import SMALL, task, training_step
from systolith import Infeed, Pod, UnsupportedError, jit, profile


def test_command_reports_and_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pod", "tiny", "--shape", "2x1", "--steps", "1"])
    monkeypatch.setattr(pod, "SMALL", SMALL[:1])
    monkeypatch.setattr(pod, "build_folder", lambda: tmp_path)
    assert pod.main() == 0
    text = capsys.readouterr().out
    assert "2 x 1 chips in RTL" in text
    assert "perceptron 16-12-10, batch 16" in text
    assert "NO" not in text
    assert (tmp_path / "traffic.png").stat().st_size > 4_000


def double(x: Any) -> Any:
    return x + x


def reference(weights: list[Any], x: Any, wanted: Any) -> tuple[float, list[Any]]:
    """A training step in float32 with numpy: returns the loss and the new weights."""
    first, second = weights
    hidden = np.maximum(x @ first, 0)
    scores = hidden @ second
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    loss = -(wanted * np.log(shares)).sum(1).mean()
    error = (shares - wanted) / len(x)
    back = (error @ second.T) * (hidden > 0)
    return loss, [first - pod.RATE * x.T @ back, second - pod.RATE * hidden.T @ error]


def test_training_is_that_of_one_core() -> None:
    """Training divides data and model, or only the model; losses are close to numpy's."""
    work = task(SMALL[0], 16)
    with Pod.open((1, 2), "tiny", "golden") as golden:
        for parts, model in ((2, 2), (1, 4)):
            step = training_step(2, parts, model)
            found, wanted = work.weights, work.weights
            for _ in range(3):
                loss, found = step(found, work.images, work.wanted, device=golden)
                expected, wanted = reference(wanted, work.images, work.wanted)
                np.testing.assert_allclose(loss, expected, rtol=0.004)
        with profile() as profiled:
            for _ in range(2):
                step(found, work.images, work.wanted, device=golden)
        [program] = profiled.programs
        assert (program.runs, program.executable.name) == (2, "_step")
        assert "_step for two cores" in program.report()
        with pytest.raises(TypeError, match="outfeed must be None on a pod"):
            step(found, work.images, work.wanted, device=golden, outfeed=print)
        with pytest.raises(TypeError, match="on a pod, _step must be given arrays, not an Infeed"):
            step(found, Infeed([work.images], 1), work.wanted, device=golden)
        with pytest.raises(UnsupportedError, match="double, which is not divided between"):
            jit(double, device=golden)(work.images)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--shape", "2"], "--shape must be like 2x2, with sides from 1 to 32, not 2"),
    (["--shape", "1x1"], "--shape must have more than one chip"),
    (["--steps", "0"], "--steps must be at least 1, not 0")])
def test_wrong_arguments_are_named(monkeypatch: pytest.MonkeyPatch, arguments: list[str],
                                   message: str, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["pod", *arguments])
    with pytest.raises(SystemExit):
        pod.main()
    assert message in capsys.readouterr().err
