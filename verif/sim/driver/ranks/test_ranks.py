"""Pods that several ranks of MPI simulate: the same bits and cycles, and ends instead of hangs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sim.driver.pod import Pod

pytest.importorskip("mpi4py", reason="mpi4py is not installed: see the extra mpi")
PYTHON = Path(sys.executable)
PROGRAM = [str(PYTHON), "-m", "verif.sim.driver.ranks.program"]


def launched(ranks: int, what: str) -> subprocess.CompletedProcess[str]:
    """The outcome of a run of the program by so many ranks."""
    launcher = [str(PYTHON.with_name("mpirun")), "-n", str(ranks)] if ranks > 1 else []
    return subprocess.run([*launcher, *PROGRAM, what], capture_output=True, text=True, timeout=240,
                          check=False)


@pytest.mark.slow
def test_bits_and_cycles_do_not_depend_on_the_number_of_ranks() -> None:
    """Nor do messages: each rank prints the same digest of all results, counters and frames."""
    alone, four = launched(1, "all"), launched(4, "all")
    assert alone.returncode == four.returncode == 0, alone.stderr + four.stderr
    wanted = alone.stdout.splitlines()
    assert len(wanted) == 4
    for line in wanted:
        assert four.stdout.splitlines().count(line) == 4, four.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("what", "message"), [
    ("dies", r"rank 2 \(chips \(0, 1\), \(1, 1\)\) has died"),
    ("leaves", r"waits for rank 2 \(chips \(0, 1\), \(1, 1\)\), which has left the pod")])
def test_rank_that_is_missing_is_named(what: str, message: str) -> None:
    run = launched(4, what)
    assert run.returncode != 0
    assert run.stdout.count("ready") >= 1
    assert re.search(message, run.stdout + run.stderr), run.stdout + run.stderr


def test_communicators_that_cannot_be() -> None:
    with pytest.raises(TypeError, match=r"communicator must be an mpi4py\.MPI\.Comm, not 4"):
        Pod.open((2, 1), "tiny", communicator=4)
