"""Random packets over a torus, as ``make packets`` sends them, in small numbers."""

import sys

import pytest

from verif.system.random_packets import main, send_random


@pytest.mark.parametrize(("shape", "faults"), [((8, 8), 1e-3), ((3, 5), 0.0), ((1, 8), 1e-2)])
def test_random_packets_arrive(shape: tuple[int, int], faults: float) -> None:
    outcome = send_random(shape, 1000, 3, faults=faults, accept=0.5, optimise=None)
    assert outcome.packets == 1000
    assert 2000 < outcome.flits < 3000
    assert outcome.hops > outcome.flits
    assert (outcome.repeated > 0) == (faults > 0)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--shape", "1", "1"], "torus must have at least two fabrics, not shape (1, 1)"),
    (["--shape", "0", "4"], "side of the torus must be from 1 to 32, not 0"),
    (["--count", "0"], "count must be at least 1, not 0")])
def test_wrong_arguments_are_refused(arguments: list[str], message: str,
                                     monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["random_packets", *arguments])
    assert main() == 1
    assert message in capsys.readouterr().err
