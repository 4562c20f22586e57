"""The training of `make pod`, and the command."""

import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

from sim.apps import pod
from sim.apps.pod import task, training_step
from systolith import Infeed, Pod, UnsupportedError, jit, profile


def test_command_reports_and_tells_failure(monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pod", "--steps", "2"])
    assert pod.main() == 0
    text = capsys.readouterr().out
    assert "2 x 1 chips in RTL: 4 cores" in text
    assert "NO" not in text


def double(x: Any) -> Any:
    return x + x


def test_training_is_that_of_one_device() -> None:
    """The loss falls; it is near that of numpy."""
    weights, x, y = task(4)
    step, losses = training_step(4), []
    with Pod.open((1, 2), "tiny", "golden") as golden:
        for _ in range(4):
            first, second = weights
            wanted = np.mean((np.tanh(x @ first) @ second - y) ** 2)
            loss, weights = step(weights, x, y, device=golden)
            np.testing.assert_allclose(loss, wanted, rtol=0.03)
            losses.append(float(loss))
        with profile() as profiled:
            for _ in range(2):
                step(weights, x, y, device=golden)
        [program] = profiled.programs
        assert (program.runs, program.executable.name) == (2, "_step")
        assert "_step for two cores" in program.report()
        with pytest.raises(TypeError, match="outfeed must be None on a pod"):
            step(weights, x, y, device=golden, outfeed=print)
        with pytest.raises(TypeError, match="arguments of _step must be arrays on a pod, not an "):
            step(weights, Infeed([x], 1), y, device=golden)
        with pytest.raises(UnsupportedError, match="double, which is not divided between"):
            jit(double, device=golden)(x)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--shape", "2"], "--shape must be like 2x1, with sides from 1 to 32, not 2"),
    (["--shape", "1x1"], "--shape must have more than one chip"),
    (["--steps", "0"], "--steps must be at least 1, not 0")])
def test_wrong_arguments_are_named(monkeypatch: pytest.MonkeyPatch, arguments: list[str],
                                   message: str, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["pod", *arguments])
    with pytest.raises(SystemExit):
        pod.main()
    assert message in capsys.readouterr().err
