"""Pods that several ranks of MPI simulate have the same bits and cycles, and never hang."""

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sim.driver.pod import Pod
from sim.models.ranks import watcher
from sim.models.ranks.ranks import default_communicator

needs_mpi = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None,
                               reason="mpi4py is not installed: see the extra mpi")
PYTHON = Path(sys.executable)
PROGRAM = [str(PYTHON), "-m", "verif.sim.driver.ranks.program"]


def launched(ranks: int, what: str) -> subprocess.CompletedProcess[str]:
    """Runs the test program on this number of ranks; returns the completed process."""
    launcher = [str(PYTHON.with_name("mpirun")), "-n", str(ranks)] if ranks > 1 else []
    return subprocess.run([*launcher, *PROGRAM, what], capture_output=True, text=True, timeout=240,
                          check=False)


@needs_mpi
@pytest.mark.slow
def test_bits_and_cycles_do_not_depend_on_the_number_of_ranks() -> None:
    """Each rank prints the same digest of all results, counters, frames and messages."""
    alone, four = launched(1, "all"), launched(4, "all")
    assert alone.returncode == four.returncode == 0, alone.stderr + four.stderr
    wanted = alone.stdout.splitlines()
    assert len(wanted) == 4
    for line in wanted:
        assert four.stdout.splitlines().count(line) == 4, four.stdout


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize(("what", "message"), [
    ("dies", r"rank 2 \(chips \(1, 1\), \(2, 1\), \(3, 1\)\) has died"),
    ("leaves", r"waits for rank 2 \(chips \(1, 1\), \(2, 1\), \(3, 1\)\), which has left the pod")])
def test_rank_that_is_missing_is_named(what: str, message: str) -> None:
    run = launched(3, what)
    assert run.returncode != 0
    assert run.stdout.count("ready") >= 1
    assert re.search(message, run.stdout + run.stderr), run.stdout + run.stderr


def test_communicators_that_cannot_be() -> None:
    with pytest.raises(TypeError, match=r"communicator must be an mpi4py\.MPI\.Comm, not 4"):
        Pod.open((2, 1), "tiny", communicator=4)


def test_launchers_whose_size_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "many")
    with pytest.raises(ValueError, match="PMI_SIZE must be a number of ranks, not 'many'"):
        default_communicator()


def test_watcher_ignores_connections_without_a_name() -> None:
    """The watcher names the rank that has died, not a rank that said that it leaves."""
    with socket.create_server(("127.0.0.1", 0)) as server, subprocess.Popen(
            [sys.executable, watcher.__file__, "2"], stdin=server.fileno(),
            stderr=subprocess.PIPE, text=True) as process:
        socket.create_connection(server.getsockname()).close()
        leaves, dies = (socket.create_connection(server.getsockname()) for _ in range(2))
        dies.sendall(b"rank 1\n")
        leaves.sendall(b"rank 0\nleaves\n")
        assert dies.recv(99) == b"rank 0\n"
        leaves.close()
        dies.close()
        assert process.communicate(timeout=20)[1] == "rank 1 has died\n"


@pytest.mark.parametrize(("end", "output"), [
    ("", ""), ("import os; os._exit(0)", "rank 0 has died\n")])
def test_ranks_that_end_without_close_have_not_died(end: str, output: str) -> None:
    script = f"""
from types import SimpleNamespace
from sim.models.ranks.lifeline import Lifeline
one = SimpleNamespace(rank=0, allgather=lambda value: [value], bcast=lambda value: value)
life = Lifeline(one, "rank 0")
{end}
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60,
                         check=True)
    assert run.stderr == output
