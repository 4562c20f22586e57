"""The command `make softmax`."""

import sys

import pytest

from golden.core import GoldenCore
from hdl.config import Config
from sim.apps import softmax
from sim.compiler.handwritten import softmax as compiler
from sim.compiler.handwritten.softmax import SoftmaxLayer


def test_command_reports_and_tells_failure(monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["softmax", "tiny"])
    assert softmax.main() == 0
    text = capsys.readouterr().out
    assert "every bit as golden" in text
    assert "NO" not in text
    # A golden core that computes something else must be noticed.
    monkeypatch.setattr(compiler, "_LOG2_E", 1.5)
    program = SoftmaxLayer(Config.preset("tiny")).program()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "argv", ["softmax", "tiny"])
    monkeypatch.setattr(GoldenCore, "load_program",
                        lambda self, bundles, at=0: self.program.__setitem__(
                            slice(0, len(program.bundles)), program.bundles))
    assert softmax.main() == 1
    assert "NO" in capsys.readouterr().out


@pytest.mark.slow
def test_the_real_size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["softmax", "v2"])
    assert softmax.main() == 0
    assert "128x128 core" in capsys.readouterr().out
