"""The line of the simulated board carries bytes, and garbage if the rates differ."""

import random
import sys

import numpy as np
import pytest

from tools.fpga import board
from tools.fpga.board import LineReceiver, bit_levels


def received(levels: np.ndarray, cycles: float, parts: int) -> bytes:
    """The bytes that are received when the line's levels come in several parts."""
    receiver = LineReceiver()
    levels = np.concatenate([np.ones(7, np.uint32), levels, np.ones(400, np.uint32)])
    return b"".join(receiver.receive(part, cycles) for part in np.array_split(levels, parts))


@pytest.mark.parametrize("cycles", [4, 4.34, 25 / 3, 34.7])
@pytest.mark.parametrize("rate", [0.98, 1.0, 1.02])
@pytest.mark.parametrize("parts", [1, 97])
def test_bytes_pass_at_about_the_same_rate(cycles: float, rate: float, parts: int) -> None:
    sent = random.Random(1).randbytes(40) + b"\x00\xff\x7e"
    assert received(bit_levels(sent, cycles * rate), cycles, parts) == sent


@pytest.mark.parametrize("rate", [0.25, 0.5, 2, 8.7])
def test_other_rates_make_garbage(rate: float) -> None:
    sent = random.Random(2).randbytes(30)
    found = received(bit_levels(sent, 16 * rate), 16, 1)
    assert found
    assert found != sent


def test_receiver_waits_for_the_end_of_a_break() -> None:
    levels = [np.zeros(900, np.uint32), np.ones(9, np.uint32), bit_levels(b"\xa5", 8)]
    assert received(np.concatenate(levels), 8, 5) == b"\x00\xa5"


@pytest.mark.parametrize(("arguments", "message"), [
    (["--baud", "0"], "baud must be at least 1, not 0"),
    (["--noise", "1.5"], "noise must be from 0 to 1, not 1.5"),
    (["--noise", "nan"], "noise must be from 0 to 1, not nan")])
def test_a_board_refuses_wrong_rates_and_noise(
        arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["board", *arguments])
    with pytest.raises(SystemExit):
        board.main()
    assert message in capsys.readouterr().err
