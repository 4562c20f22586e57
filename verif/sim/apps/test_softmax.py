"""The layer of `make softmax`, and the command."""

import sys

import numpy as np
import numpy.typing as npt
import pytest

from sim.apps import softmax
from sim.apps.softmax import compile_layer, operands, reference
from systolith import Device


@pytest.mark.parametrize("config", ["tiny", "small", "v2"])
@pytest.mark.parametrize(("rows", "depth"), [(2, 1), (6, 2), (3, 3)])
def test_result_is_the_softmax(config: str, rows: int, depth: int) -> None:
    with Device.open(config, backend="golden") as device:
        array = device.config.array
        program = None
        for seed in range(2):
            arrays = operands(device.config, rows * array, depth * array, seed)
            program = program or compile_layer(device.config, *arrays)
            [p] = program(*arrays, device=device)
            assert p.shape == (rows * array, array)
            # Roundings of a power, which is at most 1, of its sum, and of their quotient.
            assert np.abs(p - reference(*arrays)).max() < 1e-6
            assert np.abs(p.sum(axis=1, dtype=np.float64) - 1).max() < 1e-6


def test_command_reports_and_tells_failure(monkeypatch: pytest.MonkeyPatch,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["softmax", "tiny"])
    assert softmax.main() == 0
    text = capsys.readouterr().out
    assert "every bit as golden" in text
    assert "NO" not in text
    read = Device.read_vmem

    def changed(self: Device, core: int, at: int, count: int) -> npt.NDArray[np.uint32]:
        words = read(self, core, at, count)
        words[1, 0, 2] ^= int(self.backend == "golden")
        return words

    monkeypatch.setattr(Device, "read_vmem", changed)
    assert softmax.main() == 1
    assert capsys.readouterr().out.count("NO") == 1


@pytest.mark.parametrize("option", ["--depth", "--rows"])
def test_sizes_below_one_are_named(monkeypatch: pytest.MonkeyPatch, option: str,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["softmax", "tiny", option, "0"])
    with pytest.raises(SystemExit):
        softmax.main()
    assert f"{option} must be at least 1, not 0" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_size(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["softmax", "v2"])
    assert softmax.main() == 0
    assert "128x128 core" in capsys.readouterr().out
